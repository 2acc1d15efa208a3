#include "engine/train/feed.h"

#include <vector>

#include "engine/model/build.h"

namespace engine::train {
namespace {

// Offset of an input's values in a sample's tokens; −1: positions, which are no tokens.
int TokenOffset(const std::string& input) {
  if (input == model::kPositions) return -1;
  return input == model::kLabels ? 1 : 0;
}

}  // namespace

executor::FeedFunction MakeFeed(const plan::Plan& plan, const data::Source& source, data::Split split,
                                std::int64_t first_sample) {
  return [&plan, &source, split, first_sample](const std::string& input, std::int64_t microbatch,
                                               const backend::TensorView& host) -> absl::Status {
    const int offset = TokenOffset(input);
    std::vector<std::int32_t> sample(static_cast<size_t>(plan.sequence) + 1);
    std::int32_t* out = host.as<std::int32_t>();
    for (std::int64_t b = 0; b < host.shape[0]; ++b) {
      const std::int64_t index =
          first_sample + microbatch * plan.microbatch_samples + LogicalIndex(host.extent.dims[0], b);
      if (offset >= 0) RETURN_IF_ERROR(source.Sample(split, index, sample));
      for (const Interval& interval : host.extent.dims[1]) {
        for (std::int64_t s = interval.start; s < interval.start + interval.length; ++s) {
          *out++ = offset < 0 ? static_cast<std::int32_t>(s) : sample[static_cast<size_t>(s + offset)];
        }
      }
    }
    return absl::OkStatus();
  };
}

}  // namespace engine::train
