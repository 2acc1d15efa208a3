// Ranks of tokens and experts that are balanced over each sample (engine/ops/sinkhorn.cpp).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace engine::backend::cuda {

// logits f32 [samples, T, E] → ranks f32 of the same shape, in an order of sums that is fixed by T and E. E at most
// kMostExperts (route.h), `rounds` at least 1.
void LaunchSinkhorn(const float* logits, std::int64_t samples, std::int64_t of_sample, int experts,
                    int rounds, float* ranks, cudaStream_t stream);

}  // namespace engine::backend::cuda
