#include "engine/train/feed.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <vector>

#include "engine/model/build.h"

namespace engine::train {
namespace {

// For which data on a server is asked before they are wanted. Samples follow one another over the borders of iterations.
constexpr std::int64_t kMicrobatchesAhead = 16;

// Where a document begins, and where the one behind it does.
struct Document {
  std::int32_t first, last;
};

// That of place s of a sample of `sequence` places, whose documents begin at `starts`.
Document DocumentOf(const std::vector<std::int32_t>& starts, std::int64_t s, std::int64_t sequence) {
  const auto next = std::upper_bound(starts.begin(), starts.end(), static_cast<std::int32_t>(s));
  return {*(next - 1), next == starts.end() ? static_cast<std::int32_t>(sequence) : *next};
}

}  // namespace

executor::FeedFunction MakeFeed(const plan::Plan& plan, const data::Source& source, data::Split split,
                                std::int64_t first_sample) {
  return [&plan, &source, split, first_sample](const std::string& input, std::int64_t microbatch,
                                               const backend::TensorView& host) -> absl::Status {
    const std::optional<int> offset = model::TokenOffset(input);
    const bool spans = input == model::kDocumentSpans;
    const bool of_documents = spans || (source.masks_documents() && input == model::kPositions);
    std::vector<std::int32_t> sample(static_cast<size_t>(plan.sequence) + 1);
    std::vector<std::int32_t> starts = {0};
    std::int32_t* out = host.as<std::int32_t>();
    const auto index_of = [&](std::int64_t b) {
      return first_sample + microbatch * plan.microbatch_samples + LogicalIndex(host.extent.dims[0], b);
    };
    for (std::int64_t b = 0; offset == 0 && b < host.shape[0]; ++b)
      source.Prefetch(split, index_of(b), storage::When::kNow);
    for (std::int64_t b = 0; offset == 0 && b < host.shape[0]; ++b)
      source.Prefetch(split, index_of(b) + kMicrobatchesAhead * plan.microbatch_samples,
                      storage::When::kLater);
    for (std::int64_t b = 0; b < host.shape[0]; ++b) {
      const std::int64_t index = index_of(b);
      if (offset || of_documents) RETURN_IF_ERROR(source.Sample(split, index, sample));
      if (of_documents) starts = source.DocumentStarts(split, index, sample);
      for (const Interval& interval : host.extent.dims[1]) {
        for (std::int64_t s = interval.start; s < interval.start + interval.length; ++s) {
          if (offset) {
            *out++ = s + *offset <= plan.sequence ? sample[static_cast<size_t>(s + *offset)] : -1;
            continue;
          }
          const Document document = DocumentOf(starts, s, plan.sequence);
          if (spans) {
            *out++ = document.first;
            *out++ = document.last;
          } else {
            *out++ = static_cast<std::int32_t>(s) - document.first;
          }
        }
      }
    }
    return absl::OkStatus();
  };
}

}  // namespace engine::train
