#include "engine/data/sample_index.h"

#include <algorithm>
#include <utility>

#include "engine/base/status.h"

namespace engine::data {
namespace {

SampleIndex ViewOf(GptIndex built, std::int64_t sequence_length) {
  const auto owner = std::make_shared<const GptIndex>(std::move(built));
  SampleIndex index;
  index.sequence_length = sequence_length;
  index.tokens_per_epoch = owner->tokens_per_epoch;
  index.epochs = owner->epochs;
  index.shuffle = owner->shuffle;
  index.documents = owner->documents;
  index.starts = owner->starts;
  index.owner = owner;
  return index;
}

SampleIndex ViewOf(PackIndex built, std::int64_t sequence_length) {
  const auto owner = std::make_shared<const PackIndex>(std::move(built));
  SampleIndex index;
  index.packed = true;
  index.sequence_length = sequence_length;
  index.tokens_per_epoch = owner->facts.tokens;
  index.epochs = owner->epochs;
  index.facts = owner->facts;
  index.shuffle = owner->shuffle;
  index.pieces = owner->pieces;
  index.packs = owner->packs;
  index.owner = owner;
  return index;
}

}  // namespace

void SampleIndex::AppendPieces(std::int64_t sample, std::span<const std::int32_t> lengths,
                               std::vector<PackedPiece>* out) const {
  ENGINE_CHECK(sample >= 0 && sample < samples(), "sample {} of {}", sample, samples());
  const std::uint32_t row = shuffle[static_cast<std::size_t>(sample)];
  if (packed) {
    out->insert(out->end(), pieces.begin() + packs[row], pieces.begin() + packs[row + 1]);
    return;
  }
  SampleStart at = starts[row];
  std::int64_t missing = sequence_length + 1;
  while (missing > 0) {
    const std::int32_t sequence = documents[at.position];
    const std::int64_t available = lengths[static_cast<std::size_t>(sequence)] - at.offset;
    const std::int64_t taken = std::min(missing, available);
    if (taken > 0) out->push_back({sequence, at.offset, static_cast<std::int32_t>(taken)});
    missing -= taken;
    at = {at.position + 1, 0};
  }
}

absl::StatusOr<SampleIndex> BuildSampleIndex(std::span<const std::int32_t> lengths,
                                             const SampleIndexOptions& options) {
  if (options.packs) {
    ASSIGN_OR_RETURN(PackIndex built, BuildPackIndex(lengths, {.range = options.range,
                                                               .sequence_length = options.sequence_length,
                                                               .drops_long = options.drops_long,
                                                               .num_samples = options.num_samples,
                                                               .epochs = options.epochs,
                                                               .seed = options.seed}));
    return ViewOf(std::move(built), options.sequence_length);
  }
  ASSIGN_OR_RETURN(GptIndex built, BuildGptIndex(lengths, {.range = options.range,
                                                           .sequence_length = options.sequence_length,
                                                           .num_samples = options.num_samples,
                                                           .epochs = options.epochs,
                                                           .seed = options.seed}));
  return ViewOf(std::move(built), options.sequence_length);
}

}  // namespace engine::data
