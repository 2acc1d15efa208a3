#include "engine/state/weights.h"

#include <algorithm>

#include "engine/base/core_limit.h"
#include "engine/base/half.h"
#include "engine/base/parallel.h"

namespace engine::state {
namespace {

constexpr size_t kElementsAtOnce = size_t{1} << 20;

void Round(std::span<const float> from, DType dtype, std::uint16_t* to) {
  if (dtype == DType::kBF16) {
    BFloat16FromFloats(from, to);
  } else {
    ENGINE_CHECK(dtype == DType::kF16, "weights of {}", Name(dtype));
    HalfFromFloats(from, to);
  }
}

}  // namespace

absl::Status UploadFloats(std::span<const float> host, void* device, DType dtype, backend::Backend& backend) {
  auto* const to = static_cast<std::byte*>(device);
  const auto count = static_cast<std::int64_t>(host.size());
  if (dtype == DType::kF32) return backend.Upload(to, host.data(), count * SizeOf(dtype));
  const auto narrow = std::make_unique_for_overwrite<std::uint16_t[]>(host.size());
  ParallelPieces(CoresOfProcess(), host.size(), kElementsAtOnce, [&](size_t first, size_t last) {
    Round(host.subspan(first, last - first), dtype, narrow.get() + first);
  });
  return backend.Upload(to, narrow.get(), count * SizeOf(dtype));
}

absl::Status DownloadFloats(const void* device, DType dtype, backend::Backend& backend,
                            std::span<float> host) {
  const auto* const from = static_cast<const std::byte*>(device);
  const auto count = static_cast<std::int64_t>(host.size());
  if (dtype == DType::kF32) return backend.Download(host.data(), from, count * SizeOf(dtype));
  ENGINE_CHECK(dtype == DType::kBF16 || dtype == DType::kF16, "weights of {}", Name(dtype));
  const auto narrow = std::make_unique_for_overwrite<std::uint16_t[]>(host.size());
  RETURN_IF_ERROR(backend.Download(narrow.get(), from, count * SizeOf(dtype)));
  ParallelPieces(CoresOfProcess(), host.size(), kElementsAtOnce, [&](size_t first, size_t last) {
    std::transform(narrow.get() + first, narrow.get() + last,
                   host.begin() + static_cast<std::ptrdiff_t>(first),
                   dtype == DType::kBF16 ? FloatFromBFloat16 : FloatFromHalf);
  });
  return absl::OkStatus();
}

absl::Status UploadParameter(std::span<const float> host, const executor::LocalTensor& tensor,
                             std::span<const executor::OptimizerRange> ranges, backend::Backend& backend) {
  if (tensor.view.data != nullptr) {
    RETURN_IF_ERROR(UploadFloats(host, tensor.view.data, tensor.view.dtype, backend));
  }
  for (const executor::OptimizerRange& range : ranges) {
    if (range.parameter != tensor.parameter) continue;
    const auto part =
        host.subspan(static_cast<size_t>(range.begin), static_cast<size_t>(range.end - range.begin));
    if (range.master != nullptr) RETURN_IF_ERROR(UploadFloats(part, range.master, DType::kF32, backend));
    if (range.weights != nullptr)
      RETURN_IF_ERROR(UploadFloats(part, range.weights, range.weight_dtype, backend));
  }
  return absl::OkStatus();
}

void RoundStretch(ParameterStretch& stretch, DType dtype, size_t first, size_t last) {
  if (dtype == DType::kF32) return;
  Round(std::span(stretch.values.get() + first, last - first), dtype, stretch.rounded.get() + first);
}

absl::Status UploadStretch(const ParameterStretch& stretch, std::int64_t begin, std::int64_t count,
                           const executor::LocalTensor& tensor,
                           std::span<const executor::OptimizerRange> ranges, backend::Backend& backend) {
  const float* const values = stretch.values.get();
  const DType dtype = tensor.view.dtype;
  const auto* const host = dtype == DType::kF32 ? reinterpret_cast<const std::byte*>(values)
                                                : reinterpret_cast<const std::byte*>(stretch.rounded.get());
  if (tensor.view.data != nullptr) {
    RETURN_IF_ERROR(
        backend.Upload(tensor.view.as<std::byte>() + begin * SizeOf(dtype), host, count * SizeOf(dtype)));
  }
  for (const executor::OptimizerRange& range : ranges) {
    if (range.parameter != tensor.parameter) continue;
    const std::int64_t from = std::max(begin, range.begin);
    const std::int64_t to = std::min(begin + count, range.end);
    if (from >= to) continue;
    if (range.master != nullptr) {
      RETURN_IF_ERROR(backend.Upload(range.master + (from - range.begin) * SizeOf(DType::kF32),
                                     values + (from - begin), (to - from) * SizeOf(DType::kF32)));
    }
    if (range.weights != nullptr) {
      RETURN_IF_ERROR(backend.Upload(range.weights + (from - range.begin) * SizeOf(dtype),
                                     host + (from - begin) * SizeOf(dtype), (to - from) * SizeOf(dtype)));
    }
  }
  return absl::OkStatus();
}

}  // namespace engine::state
