// Whole documents put together so that they fill samples: best-fit decreasing, as for bins. Documents are taken from the
// longest to the shortest, and each goes where it leaves the least room; where no sample has room for it, a new one is begun.
// Source: Ding et al., "Fewer Truncations Improve Language Modeling", arXiv:2404.10830, section 3.
//
// A sample has room for sequence_length + 1 tokens: what is read and, one further on, what is predicted. A document that is longer
// is cut into pieces of so many tokens, each of which begins with the last token of the one before, so that every token but the
// document's first is predicted once; or it is left out. A piece of one token predicts nothing and is left out.
//
// Time: O(documents · room / 4096). Memory: 12 bytes a piece, and 4 a sample and epoch.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/data/split.h"

namespace engine::data {

// Tokens [offset, offset + tokens) of a sequence of the data set.
struct PackedPiece {
  std::int32_t sequence = 0;
  std::int32_t offset = 0;
  std::int32_t tokens = 0;
  bool operator==(const PackedPiece&) const = default;
};

struct PackFacts {
  std::int64_t pieces = 0;
  std::int64_t cut = 0;      // documents that became several pieces
  std::int64_t dropped = 0;  // documents left out, for their length; and those of less than 2 tokens
  std::int64_t tokens = 0;   // of all pieces
  bool operator==(const PackFacts&) const = default;
};

struct PackIndex {
  PackFacts facts;
  std::int64_t epochs = 0;
  std::vector<PackedPiece> pieces;   // those of a sample stand together, the longest first
  std::vector<std::uint32_t> packs;  // where the pieces of each begin, and the end
  std::vector<std::uint32_t>
      shuffle;  // sample i has the pieces of packs[shuffle[i]]; each epoch is shuffled by itself
};

struct PackIndexOptions {
  SequenceRange range;               // sequences of the split
  std::int64_t sequence_length = 0;  // tokens of a sample without its extra token
  bool drops_long = false;           // leave out documents that no sample holds, instead of cutting them
  std::optional<std::int64_t> num_samples = std::nullopt;  // at least so many; nullopt: `epochs`
  std::int64_t epochs = 1;
  std::uint32_t seed = 0;
};

// `lengths[i]` is the length of sequence i of the data set, in tokens. Fails where no document is left, or where the index
// would not fit 32 bits.
absl::StatusOr<PackIndex> BuildPackIndex(std::span<const std::int32_t> lengths,
                                         const PackIndexOptions& options);

}  // namespace engine::data
