#include "engine/train/weights.h"

#include <algorithm>

#include "engine/base/half.h"
#include "engine/base/parallel.h"

namespace engine::train {
namespace {

constexpr size_t kElementsAtOnce = size_t{1} << 20;

}  // namespace

absl::Status UploadFloats(std::span<const float> host, void* device, DType dtype, backend::Backend& backend) {
  auto* const to = static_cast<std::byte*>(device);
  const auto count = static_cast<std::int64_t>(host.size());
  if (dtype == DType::kF32) return backend.Upload(to, host.data(), count * SizeOf(dtype));
  ENGINE_CHECK(dtype == DType::kBF16 || dtype == DType::kF16, "weights of {}", Name(dtype));
  std::vector<std::uint16_t> narrow(host.size());
  const auto narrowed = dtype == DType::kBF16 ? BFloat16FromFloat : HalfFromFloat;
  ParallelPieces(HardwareThreads(), host.size(), kElementsAtOnce, [&](size_t first, size_t last) {
    std::transform(host.begin() + static_cast<std::ptrdiff_t>(first),
                   host.begin() + static_cast<std::ptrdiff_t>(last),
                   narrow.begin() + static_cast<std::ptrdiff_t>(first), narrowed);
  });
  return backend.Upload(to, narrow.data(), count * SizeOf(dtype));
}

absl::Status DownloadFloats(const void* device, DType dtype, backend::Backend& backend,
                            std::span<float> host) {
  const auto* const from = static_cast<const std::byte*>(device);
  const auto count = static_cast<std::int64_t>(host.size());
  if (dtype == DType::kF32) return backend.Download(host.data(), from, count * SizeOf(dtype));
  ENGINE_CHECK(dtype == DType::kBF16 || dtype == DType::kF16, "weights of {}", Name(dtype));
  std::vector<std::uint16_t> narrow(host.size());
  RETURN_IF_ERROR(backend.Download(narrow.data(), from, count * SizeOf(dtype)));
  std::transform(narrow.begin(), narrow.end(), host.begin(),
                 dtype == DType::kBF16 ? FloatFromBFloat16 : FloatFromHalf);
  return absl::OkStatus();
}

absl::Status UploadParameter(std::span<const float> host, const executor::LocalTensor& tensor,
                             std::span<const executor::OptimizerRange> ranges, backend::Backend& backend) {
  RETURN_IF_ERROR(UploadFloats(host, tensor.view.data, tensor.view.dtype, backend));
  for (const executor::OptimizerRange& range : ranges) {
    if (range.parameter != tensor.parameter || range.master == nullptr) continue;
    const auto part =
        host.subspan(static_cast<size_t>(range.begin), static_cast<size_t>(range.end - range.begin));
    RETURN_IF_ERROR(UploadFloats(part, range.master, DType::kF32, backend));
  }
  return absl::OkStatus();
}

}  // namespace engine::train
