// What trying kernels against each other needs: operands like those of a run, and a stopwatch.
#pragma once

#include <cuda_runtime_api.h>
#include <library_types.h>

#include <cstdint>
#include <functional>

#include "engine/backend/cuda/libraries/status.h"

namespace engine::backend::cuda {

// Enqueues standard normal numbers into device memory, the same for each seed: power, and so the clock, depends on the bits
// that toggle. The type is one of FP8, 16 bits or fp32.
absl::Status FillRandom(cudaStream_t stream, void* data, std::int64_t bytes, cudaDataType type,
                        std::uint64_t seed = 0);

class Stopwatch {
 public:
  explicit Stopwatch(cudaStream_t stream) : stream_(stream) {}
  ~Stopwatch();
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

  absl::Status Open();

  // Milliseconds of one of `repetitions` runs in a row of what `work` enqueues on the stream, which must not be captured.
  absl::StatusOr<float> Time(const std::function<absl::Status()>& work, int repetitions);

 private:
  cudaStream_t stream_;
  cudaEvent_t start_ = nullptr;
  cudaEvent_t stop_ = nullptr;
};

// How often work of `milliseconds` is repeated to fill the budget, at least once.
int Repetitions(float milliseconds, float budget_milliseconds, int most);

}  // namespace engine::backend::cuda
