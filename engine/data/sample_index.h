// The order of one data set's samples in a split, however samples are made of documents (gpt_index.h, pack_index.h); built in
// memory, or mapped from a file that another process, or an earlier run, has built (index_cache.h).
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/data/gpt_index.h"
#include "engine/data/pack_index.h"

namespace engine::data {

struct SampleIndexOptions {
  SequenceRange range;
  std::int64_t sequence_length = 0;
  bool packs = false;
  bool drops_long = false;                                 // of packed ones
  std::optional<std::int64_t> num_samples = std::nullopt;  // at least so many; nullopt: `epochs`
  std::int64_t epochs = 1;
  std::uint32_t seed = 0;
};

struct SampleIndex {
  bool packed = false;
  std::int64_t sequence_length = 0;
  std::int64_t tokens_per_epoch = 0;
  std::int64_t epochs = 0;
  PackFacts facts;                         // of packed ones
  std::span<const std::uint32_t> shuffle;  // sample → row, or pack
  // The arrays of a GptIndex, which is not packed.
  std::span<const std::int32_t> documents;
  std::span<const SampleStart> starts;
  // The arrays of a PackIndex, which is.
  std::span<const PackedPiece> pieces;
  std::span<const std::uint32_t> packs;
  std::shared_ptr<const void> owner;  // of what the spans show

  std::int64_t samples() const { return static_cast<std::int64_t>(shuffle.size()); }

  // Appends the pieces of sample `sample` of [0, samples()), of a data set with these lengths, in their order: together
  // sequence_length + 1 tokens, or up to so many of a packed one.
  void AppendPieces(std::int64_t sample, std::span<const std::int32_t> lengths,
                    std::vector<PackedPiece>* out) const;
};

absl::StatusOr<SampleIndex> BuildSampleIndex(std::span<const std::int32_t> lengths,
                                             const SampleIndexOptions& options);

}  // namespace engine::data
