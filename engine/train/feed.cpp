#include "engine/train/feed.h"

#include <vector>

#include "engine/model/build.h"

namespace engine::train {
executor::FeedFunction MakeFeed(const plan::Plan& plan, const data::Source& source, data::Split split,
                                std::int64_t first_sample) {
  return [&plan, &source, split, first_sample](const std::string& input, std::int64_t microbatch,
                                               const backend::TensorView& host) -> absl::Status {
    const int offset = model::TokenOffset(input).value_or(-1);  // −1: positions, which are no tokens
    std::vector<std::int32_t> sample(static_cast<size_t>(plan.sequence) + 1);
    std::int32_t* out = host.as<std::int32_t>();
    for (std::int64_t b = 0; b < host.shape[0]; ++b) {
      const std::int64_t index =
          first_sample + microbatch * plan.microbatch_samples + LogicalIndex(host.extent.dims[0], b);
      if (offset >= 0) RETURN_IF_ERROR(source.Sample(split, index, sample));
      for (const Interval& interval : host.extent.dims[1]) {
        for (std::int64_t s = interval.start; s < interval.start + interval.length; ++s) {
          *out++ = offset < 0                    ? static_cast<std::int32_t>(s)
                   : s + offset <= plan.sequence ? sample[static_cast<size_t>(s + offset)]
                                                 : -1;
        }
      }
    }
    return absl::OkStatus();
  };
}

}  // namespace engine::train
