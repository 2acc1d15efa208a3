// The order of one split's samples, bit for bit Megatron's GPTDataset indices: sequences repeated over epochs
// and shuffled (documents), cut into samples of sequence_length + 1 tokens that overlap by one (starts), and
// shuffled again (shuffle). Source: megatron/core/datasets/gpt_dataset.py with the extra token and drop-last
// defaults.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/data/split.h"

namespace engine::data {

// Where a sample starts: token `offset` of the sequence at `position` of the document index.
struct SampleStart {
  std::uint32_t position = 0;
  std::int32_t offset = 0;
  bool operator==(const SampleStart&) const = default;
};

struct GptIndex {
  std::int64_t tokens_per_epoch = 0;
  std::int64_t epochs = 0;
  bool separate_last_epoch = false;  // the last epoch is shuffled by itself (less than 80 % of it is needed)
  std::vector<std::int32_t> documents;  // sequence numbers, epochs × sequences of the split
  std::vector<SampleStart> starts;      // one row a sample and one for the end
  std::vector<std::uint32_t> shuffle;   // sample i of the split is row shuffle[i] of starts

  // Samples that the epochs hold: at least the number asked for.
  std::int64_t samples() const { return static_cast<std::int64_t>(shuffle.size()); }
};

struct GptIndexOptions {
  SequenceRange range;                                     // sequences of the split
  std::int64_t sequence_length = 0;                        // tokens of a sample without its extra token
  std::optional<std::int64_t> num_samples = std::nullopt;  // at least so many; nullopt: `epochs`
  std::int64_t epochs = 1;                                 // shuffled together
  std::uint32_t seed = 0;
};

// `lengths[i]` is the length of sequence i of the data set, in tokens. Fails if the split has not the
// sequence_length + 1 tokens of one sample, or if the index would not fit 32-bit positions.
absl::StatusOr<GptIndex> BuildGptIndex(std::span<const std::int32_t> lengths, const GptIndexOptions& options);

}  // namespace engine::data
