#include "engine/data/gpt_index.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "engine/base/status.h"
#include "engine/base/units.h"
#include "engine/data/numpy_random.h"

namespace engine::data {
namespace {

constexpr std::int64_t kExtraToken = 1;  // a sample's last label
constexpr std::int64_t kMaxPositions = std::numeric_limits<std::uint32_t>::max() - 2;

void AppendEpochs(const SequenceRange& range, std::int64_t epochs, NumpyRandom* random,
                  std::vector<std::int32_t>* documents) {
  const std::size_t begin = documents->size();
  documents->resize(begin + static_cast<std::size_t>(epochs * range.size()));
  for (std::size_t at = begin; at < documents->size(); at += static_cast<std::size_t>(range.size())) {
    std::iota(documents->begin() + static_cast<std::ptrdiff_t>(at),
              documents->begin() + static_cast<std::ptrdiff_t>(at) + range.size(),
              static_cast<std::int32_t>(range.begin));
  }
  random->Shuffle(std::span(*documents).subspan(begin));
}

std::vector<SampleStart> CutSamples(std::span<const std::int32_t> lengths,
                                    std::span<const std::int32_t> documents, std::int64_t samples,
                                    std::int64_t sequence_length) {
  std::vector<SampleStart> starts;
  starts.reserve(static_cast<std::size_t>(samples) + 1);
  std::uint32_t position = 0;
  std::int64_t offset = 0;
  starts.push_back({0, 0});
  for (std::int64_t row = 0; row < samples; ++row) {
    std::int64_t missing = sequence_length + kExtraToken;
    while (true) {
      const std::int64_t available = lengths[static_cast<std::size_t>(documents[position])] - offset;
      missing -= available;
      if (missing <= 0) {
        offset += missing + available - kExtraToken;
        break;
      }
      ENGINE_CHECK(position + 1 < documents.size(), "{} tokens missing in row {}", missing, row);
      ++position;
      offset = 0;
    }
    starts.push_back({position, static_cast<std::int32_t>(offset)});
  }
  return starts;
}

struct Epochs {
  std::int64_t count = 1;
  std::int64_t samples = 0;  // in all of them
  bool separate_last = false;
  std::int64_t samples_before_last = 0;
};

absl::StatusOr<Epochs> CountEpochs(std::int64_t tokens, const GptIndexOptions& options) {
  const std::int64_t length = options.sequence_length;
  const std::int64_t wanted = options.num_samples.value_or(0);
  if (wanted < 0 || wanted > kMaxPositions) {
    return InvalidArgument("{} samples asked for, an index holds at most {}", WithThousands(wanted),
                           WithThousands(kMaxPositions));
  }
  Epochs epochs;
  epochs.count = options.num_samples
                     ? std::max<std::int64_t>(1, CeilDiv(wanted * length + kExtraToken, tokens))
                     : options.epochs;
  if (__builtin_mul_overflow(epochs.count, tokens, &epochs.samples)) {
    return ResourceExhausted("{} epochs of {} tokens are more than 63 bits count", epochs.count, tokens);
  }
  epochs.samples = (epochs.samples - kExtraToken) / length;
  if (options.num_samples && epochs.count > 1) {
    epochs.samples_before_last = ((epochs.count - 1) * tokens - kExtraToken) / length;
    const std::int64_t samples_of_last = wanted - epochs.samples_before_last;
    const std::int64_t samples_per_epoch = (tokens - kExtraToken) / length;
    epochs.separate_last = samples_of_last < static_cast<std::int64_t>(0.80 * samples_per_epoch);
  }
  if (epochs.samples > kMaxPositions || epochs.count > kMaxPositions / options.range.size()) {
    return ResourceExhausted(
        "{} epochs of {} sequences and {} tokens in samples of {} do not fit an index of {} positions; ask "
        "for "
        "fewer samples, or merge short sequences",
        epochs.count, options.range.size(), tokens, length, kMaxPositions);
  }
  return epochs;
}

}  // namespace

absl::StatusOr<GptIndex> BuildGptIndex(std::span<const std::int32_t> lengths,
                                       const GptIndexOptions& options) {
  const SequenceRange range = options.range;
  ENGINE_CHECK(range.begin >= 0 && range.end <= static_cast<std::int64_t>(lengths.size()),
               "range [{}, {}) of {}", range.begin, range.end, lengths.size());
  if (options.sequence_length < 1 || options.sequence_length > std::numeric_limits<std::int32_t>::max() - 1) {
    return InvalidArgument("sequence length is {}, and must be from 1 to 2^31 - 2", options.sequence_length);
  }
  if (range.end > std::numeric_limits<std::int32_t>::max()) {
    return ResourceExhausted("{} sequences, an index numbers at most 2^31 - 1", range.end);
  }
  GptIndex index;
  index.tokens_per_epoch =
      std::accumulate(lengths.begin() + range.begin, lengths.begin() + range.end, std::int64_t{0});
  const std::int64_t needed = options.sequence_length + kExtraToken;
  if (index.tokens_per_epoch < needed) {
    return InvalidArgument(
        "{} tokens in {} sequences are too few: one sample of sequence length {} needs {}; use more text, "
        "another split or a shorter sequence",
        index.tokens_per_epoch, range.size(), options.sequence_length, needed);
  }
  ASSIGN_OR_RETURN(const Epochs epochs, CountEpochs(index.tokens_per_epoch, options));
  index.epochs = epochs.count;
  index.separate_last_epoch = epochs.separate_last;

  NumpyRandom random(options.seed);  // one generator: the order of the draws is part of the format
  if (epochs.separate_last) {
    AppendEpochs(range, epochs.count - 1, &random, &index.documents);
    AppendEpochs(range, 1, &random, &index.documents);
  } else {
    AppendEpochs(range, epochs.count, &random, &index.documents);
  }
  index.starts = CutSamples(lengths, index.documents, epochs.samples, options.sequence_length);
  index.shuffle.resize(static_cast<std::size_t>(epochs.samples));
  std::iota(index.shuffle.begin(), index.shuffle.end(), 0U);
  const std::span<std::uint32_t> shuffle(index.shuffle);
  const std::size_t first_part =
      epochs.separate_last ? static_cast<std::size_t>(epochs.samples_before_last) : shuffle.size();
  random.Shuffle(shuffle.first(first_part));
  random.Shuffle(shuffle.subspan(first_part));
  return index;
}

}  // namespace engine::data
