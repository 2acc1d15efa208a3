// Names of a tokenizer's parts, as tokenizer.json has them, for people.
#pragma once

#include <string>
#include <vector>

#include "engine/data/tokenizer/description.h"

namespace engine::tokenizer {

std::string NameOf(const Model& model);
std::vector<std::string> NamesOf(const std::vector<Normalizer>& normalizers);
std::vector<std::string> NamesOf(const std::vector<PreTokenizer>& pre_tokenizers);
std::vector<std::string> NamesOf(const std::vector<Decoder>& decoders);

}  // namespace engine::tokenizer
