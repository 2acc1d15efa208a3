#include "engine/state/histograms.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>

#include "engine/base/parallel.h"
#include "engine/state/tensors.h"
#include "engine/state/weights.h"

namespace engine::state {
namespace {

// Of `elements` of the type that lie one behind the other in the rank's arena, through a little memory of the host.
absl::StatusOr<Histogram> HistogramAt(const std::byte* device, std::int64_t elements, DType dtype,
                                      int threads, backend::Backend& backend) {
  constexpr std::int64_t kAtOnce = std::int64_t{1} << 24;
  constexpr std::size_t kGrain = std::size_t{1} << 18;
  std::vector<float> host(static_cast<std::size_t>(std::min(elements, kAtOnce)));
  Histogram result;
  for (std::int64_t at = 0; at < elements; at += kAtOnce) {
    const std::span<float> some(host.data(), static_cast<std::size_t>(std::min(kAtOnce, elements - at)));
    RETURN_IF_ERROR(DownloadFloats(device + at * SizeOf(dtype), dtype, backend, some));
    // Sums in an order that the number of threads has no part in.
    std::vector<Histogram> parts((some.size() + kGrain - 1) / kGrain);
    ParallelPieces(threads, some.size(), kGrain, [&](std::size_t first, std::size_t last) {
      parts[first / kGrain].Add(some.subspan(first, last - first));
    });
    for (const Histogram& part : parts) result.Add(part);
  }
  return result;
}

}  // namespace

absl::StatusOr<std::vector<PartialHistogram>> HistogramsOf(const plan::Plan& plan,
                                                           executor::RankExecutor& executor) {
  const int threads = executor.host_threads();
  std::vector<PartialHistogram> result;
  const auto add = [&](std::int32_t parameter, bool is_gradient, const void* data, std::int64_t elements,
                       DType dtype) -> absl::Status {
    if (elements == 0) return absl::OkStatus();
    ASSIGN_OR_RETURN(Histogram histogram, HistogramAt(static_cast<const std::byte*>(data), elements, dtype,
                                                      threads, executor.backend()));
    result.push_back({parameter, is_gradient, std::move(histogram)});
    return absl::OkStatus();
  };
  for (const executor::LocalTensor& tensor : executor.Parameters()) {
    if (tensor.view.data == nullptr || !Saves(executor, BucketOf(executor, tensor.parameter), false))
      continue;
    RETURN_IF_ERROR(add(tensor.parameter, false, tensor.view.data,
                        LocalBox(plan, executor, tensor.parameter).count.elements(), tensor.view.dtype));
  }
  for (const executor::OptimizerRange& range : executor.OptimizerState()) {
    const plan::Bucket& bucket = BucketOf(executor, range.parameter);
    std::int64_t elements = 0;
    for (const checkpoint::Box& box : RangeBoxes(plan, executor, range)) elements += box.count.elements();
    if (range.weights != nullptr && Saves(executor, bucket, true))
      RETURN_IF_ERROR(add(range.parameter, false, range.weights, elements, range.weight_dtype));
    if (range.gradient != nullptr && Saves(executor, bucket, bucket.shards > 1))
      RETURN_IF_ERROR(add(range.parameter, true, range.gradient, elements, range.gradient_dtype));
  }
  return result;
}

}  // namespace engine::state
