// The models: a word becomes ids. What a word becomes depends on nothing around it.
#pragma once

#include <absl/container/flat_hash_map.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "engine/data/tokenizer/description.h"

namespace engine::tokenizer {

// Memory of one thread's encoding, kept so that words do not allocate.
struct WordWorkspace {
  struct Symbol {
    std::int32_t id;
    std::int32_t previous;
    std::int32_t next;
    std::int32_t rank;  // of merging with the next symbol; kNoRank if the two do not
  };
  std::vector<Symbol> symbols;
  std::vector<std::int32_t> ids;
  std::vector<std::int32_t> ranks;
  std::vector<std::uint64_t> candidates;  // a heap of rank << 32 | position
  std::vector<std::uint64_t> round;       // those of one rank
  struct Node {
    double score;
    std::int32_t id;
    std::uint32_t begin;
  };
  std::vector<Node> nodes;
  absl::flat_hash_map<std::int32_t, std::pair<std::int32_t, std::int32_t>> parts;  // of unused tokens
};

class WordEncoder {
 public:
  virtual ~WordEncoder() = default;
  // Appends the ids of `word`, which is not empty. InvalidArgument where a part of it has no token and the model no
  // token for what is unknown. Thread safe, a workspace a thread.
  virtual absl::Status Encode(std::string_view word, WordWorkspace* work,
                              std::vector<std::int32_t>* ids) const = 0;
};

// `of_bytes`: words are bytes, which the token strings of a BPE show as GPT-2's characters (byte_characters.h); else
// they are UTF-8, as token strings are. The model must outlive the encoder.
absl::StatusOr<std::unique_ptr<WordEncoder>> MakeWordEncoder(const Model& model, bool of_bytes);

// Of each model, for MakeWordEncoder.
absl::StatusOr<std::unique_ptr<WordEncoder>> MakeBpeEncoder(const BpeModel& model, bool of_bytes);
std::unique_ptr<WordEncoder> MakeUnigramEncoder(const UnigramModel& model);
std::unique_ptr<WordEncoder> MakeWordPieceEncoder(const WordPieceModel& model);
std::unique_ptr<WordEncoder> MakeWordLevelEncoder(const WordLevelModel& model);

// "the tokenizer has no token for "…", and none for what is unknown".
absl::Status NoTokenFor(std::string_view text);

}  // namespace engine::tokenizer
