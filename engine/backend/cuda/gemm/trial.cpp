#include "engine/backend/cuda/gemm/trial.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "engine/backend/cuda/gemm/gemm.h"
#include "engine/base/philox.h"

namespace engine::backend::cuda {
namespace {

constexpr std::int64_t kPatternElements = std::int64_t{1} << 20;

std::vector<char> Pattern(cudaDataType type, std::uint64_t seed) {
  const PhiloxKey key = MakePhiloxKey(seed, "gemm_tuner");
  std::vector<char> bytes(static_cast<std::size_t>(kPatternElements * SizeOf(type)));
  const auto store = [&](std::int64_t i, const auto& value) {
    std::memcpy(bytes.data() + static_cast<std::size_t>(i) * sizeof(value), &value, sizeof(value));
  };
  // Twelve uniform numbers of four bits make a sum of variance 1.
  for (std::int64_t i = 0; i < kPatternElements; i += 2) {
    const std::array<std::uint32_t, 4> words = Philox4x32(key, static_cast<std::uint64_t>(i), 0);
    for (std::int64_t half = 0; half < 2; ++half) {
      const std::uint64_t bits = words[2 * half] | std::uint64_t{words[2 * half + 1]} << 32;
      int sum = 0;
      for (int nibble = 0; nibble < 12; ++nibble) sum += static_cast<int>(bits >> 4 * nibble & 15);
      const float low_bits = static_cast<float>(bits >> 48) * 0x1p-16F;
      const float value = (static_cast<float>(sum) + low_bits - 90.5F) / 16.0F;
      switch (type) {
        case CUDA_R_32F:
          store(i + half, value);
          break;
        case CUDA_R_16BF:
          store(i + half, __float2bfloat16(value));
          break;
        case CUDA_R_16F:
          store(i + half, __float2half(value));
          break;
        default:
          store(i + half,
                __nv_cvt_float_to_fp8(value, __NV_SATFINITE, type == CUDA_R_8F_E4M3 ? __NV_E4M3 : __NV_E5M2));
      }
    }
  }
  return bytes;
}

}  // namespace

absl::Status FillRandom(cudaStream_t stream, void* data, std::int64_t bytes, cudaDataType type,
                        std::uint64_t seed) {
  const std::vector<char> pattern = Pattern(type, seed);
  auto* to = static_cast<char*>(data);
  std::int64_t filled = std::min<std::int64_t>(bytes, static_cast<std::int64_t>(pattern.size()));
  RETURN_IF_CUDA_ERROR(
      cudaMemcpyAsync(to, pattern.data(), static_cast<std::size_t>(filled), cudaMemcpyHostToDevice, stream));
  RETURN_IF_CUDA_ERROR(cudaStreamSynchronize(stream));  // `pattern` goes
  while (filled < bytes) {
    const std::int64_t now = std::min(filled, bytes - filled);
    RETURN_IF_CUDA_ERROR(
        cudaMemcpyAsync(to + filled, to, static_cast<std::size_t>(now), cudaMemcpyDeviceToDevice, stream));
    filled += now;
  }
  return absl::OkStatus();
}

Stopwatch::~Stopwatch() {
  if (start_ != nullptr) cudaEventDestroy(start_);
  if (stop_ != nullptr) cudaEventDestroy(stop_);
}

absl::Status Stopwatch::Open() {
  RETURN_IF_CUDA_ERROR(cudaEventCreate(&start_));
  RETURN_IF_CUDA_ERROR(cudaEventCreate(&stop_));
  return absl::OkStatus();
}

absl::StatusOr<float> Stopwatch::Time(const std::function<absl::Status()>& work, int repetitions) {
  RETURN_IF_CUDA_ERROR(cudaEventRecord(start_, stream_));
  for (int i = 0; i < repetitions; ++i) RETURN_IF_ERROR(work());
  RETURN_IF_CUDA_ERROR(cudaEventRecord(stop_, stream_));
  RETURN_IF_CUDA_ERROR(cudaEventSynchronize(stop_));
  float milliseconds = 0;
  RETURN_IF_CUDA_ERROR(cudaEventElapsedTime(&milliseconds, start_, stop_));
  return milliseconds / static_cast<float>(repetitions);
}

int Repetitions(float milliseconds, float budget_milliseconds, int most) {
  return static_cast<int>(
      std::clamp(budget_milliseconds / std::max(milliseconds, 1e-3F), 1.0F, static_cast<float>(most)));
}

}  // namespace engine::backend::cuda
