// A copy of a large tokenizer.json that need not be parsed: its vocabulary, merges and added tokens as tables, and the rest
// of it as JSON. It is a file of the cache folder, named by a checksum of the tokenizer.json's contents; one that is damaged, or of
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
  std::string rest;  // the tokenizer.json without model.vocab, model.merges and added_tokens
  Vocabulary vocabulary;
  MergeTable merges;
  std::vector<AddedToken> added_tokens;
};

// How much is in a tokenizer.json, and the XXH3 checksum of 128 bits by which its copy knows it.
struct Contents {
  explicit Contents(std::string_view text);
  std::uint64_t bytes;
  std::uint64_t low;
  std::uint64_t high;
};

// Name in `folder` of the copy of a file with these contents.
std::string CompiledFile(const std::string& folder, const Contents& contents);

// None where there is no such file or it is not what WriteCompiled writes for these contents.
std::optional<CompiledModel> ReadCompiled(const std::string& file, const Contents& contents);

// Makes the folder, too. Where it cannot be written nothing is: the next load takes longer.
void WriteCompiled(const std::string& file, const Contents& contents, std::string_view rest,
                   const BpeModel& model, const std::vector<AddedToken>& added_tokens);

}  // namespace engine::tokenizer
