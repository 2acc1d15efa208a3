// A copy of a large tokenizer.json that need not be parsed: its vocabulary and its merges as tables, and the rest of it as
// JSON. It is a file of the cache folder, named by a checksum of the tokenizer.json's contents; one that is damaged, or of
// another version of this program, counts as absent and is written anew.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/data/tokenizer/description.h"

namespace engine::tokenizer {

// A model as it is kept in a compiled copy: a BPE, as no other model has files that are large enough to need one.
struct CompiledModel {
  std::string rest;  // the tokenizer.json without model.vocab and model.merges
  Vocabulary vocabulary;
  std::vector<Merge> merges;
};

// Name in `folder` of the copy of a file with these contents.
std::string CompiledFile(const std::string& folder, std::string_view contents);

// None where there is no such file or it is not what WriteCompiled writes for these contents.
std::optional<CompiledModel> ReadCompiled(const std::string& file, std::string_view contents);

// Makes the folder, too. Where it cannot be written nothing is: the next load takes longer.
void WriteCompiled(const std::string& file, std::string_view contents, std::string_view rest,
                   const BpeModel& model);

}  // namespace engine::tokenizer
