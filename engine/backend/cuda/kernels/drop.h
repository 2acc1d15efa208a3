// Launchers of drop.cu: how many tokens experts take, and how many they were chosen by.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace engine::backend::cuda {

// Choices of experts, i32, in rows of a sample, or group of samples, each.
struct SampleChoices {
  const std::int32_t* choice = nullptr;
  std::int64_t samples = 0;
  std::int64_t of_sample = 0;
  std::int32_t experts = 0;
};

// kept = choice, or −1 where the expert has more than `cap` choices of the sample and this is not among those that stay:
// the cap of largest weight (float32, at least 0; of equals the earlier), or (weight null) the earliest.
void Drop(const SampleChoices& choices, const float* weight, std::int64_t cap, std::int32_t* kept,
          cudaStream_t stream);

// *count (+)= how many of kept[choices] are −1.
void DropCount(const std::int32_t* kept, std::int64_t choices, bool accumulate, double* count,
               cudaStream_t stream);

// load[experts] (+)= experts · (choices of each expert) − (all choices).
void RouteLoad(const std::int32_t* choice, std::int64_t choices, std::int32_t experts, bool accumulate,
               float* load, cudaStream_t stream);

// count[experts] (+)= choices of each expert; at most 12,288 experts.
void RouteCount(const std::int32_t* choice, std::int64_t choices, std::int32_t experts, bool accumulate,
                double* count, cudaStream_t stream);

// mean[experts] and load[experts + 2] of count[groups, experts] and `before`, the load until now, which may be `load`
// (engine/ops/running_load.cpp). iteration: in the device's memory.
void RunningLoad(const float* count, std::int64_t groups, std::int32_t experts, const float* before,
                 const double* iteration, float* mean, float* load, cudaStream_t stream);

}  // namespace engine::backend::cuda
