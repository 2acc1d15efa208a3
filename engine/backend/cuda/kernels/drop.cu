#include "engine/backend/cuda/kernels/drop.h"

namespace engine::backend::cuda {
namespace {

constexpr int kDropThreads = 256;
constexpr int kDigits = 256;  // of 8 bits: four of them make a weight

// Adds up the values of all threads of a block; each of them gets the sum.
__device__ int BlockSum(int value) {
  __shared__ int sum;
  __syncthreads();
  if (threadIdx.x == 0) sum = 0;
  __syncthreads();
  atomicAdd(&sum, value);
  __syncthreads();
  return sum;
}

// How many threads before this one, and how many in all, have a flag set.
struct Ranked {
  int before, all;
};
__device__ Ranked RankOf(bool flag) {
  __shared__ int of_warp[kDropThreads / 32];
  const unsigned lane = threadIdx.x % 32;
  const unsigned ballot = __ballot_sync(~0U, flag);
  __syncthreads();
  if (lane == 0) of_warp[threadIdx.x / 32] = __popc(ballot);
  __syncthreads();
  Ranked ranked = {__popc(ballot & ((1U << lane) - 1U)), 0};
  for (int w = 0; w < kDropThreads / 32; ++w) {
    if (w < static_cast<int>(threadIdx.x / 32)) ranked.before += of_warp[w];
    ranked.all += of_warp[w];
  }
  return ranked;
}

// Among an expert's choices of a sample, this is how the last one that stays compares with the others. Weights are at least 0, so
// that their bits are in the order of the numbers.
struct Threshold {
  unsigned bits = 0;  // of the weight of the last that stays
  int equal = 0;      // how many of exactly this weight stay, the earliest
};

// The cap-th largest, digit by digit from the highest.
__device__ Threshold Select(const std::int32_t* choice, const float* weight, std::int64_t count, int expert,
                            int cap) {
  __shared__ int histogram[kDigits];
  __shared__ int digit, rest;
  Threshold threshold = {0, cap};
  for (int shift = 24; shift >= 0; shift -= 8) {
    for (int i = static_cast<int>(threadIdx.x); i < kDigits; i += kDropThreads) histogram[i] = 0;
    __syncthreads();
    for (std::int64_t c = threadIdx.x; c < count; c += kDropThreads) {
      if (choice[c] != expert) continue;
      const unsigned bits = __float_as_uint(weight[c]);
      const bool same = shift == 24 || bits >> (shift + 8) == threshold.bits >> (shift + 8);
      if (same) atomicAdd(&histogram[bits >> shift & 0xFFU], 1);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      rest = threshold.equal;
      for (digit = kDigits - 1; digit > 0 && histogram[digit] < rest; --digit) rest -= histogram[digit];
    }
    __syncthreads();
    threshold.bits |= static_cast<unsigned>(digit) << shift;
    threshold.equal = rest;
    __syncthreads();
  }
  return threshold;
}

// A block an expert and sample.
__global__ void __launch_bounds__(kDropThreads)
    DropKernel(SampleChoices choices, const float* __restrict__ weight, int cap,
               std::int32_t* __restrict__ kept) {
  const int expert = static_cast<int>(blockIdx.x);
  const std::int64_t begin = blockIdx.y * choices.of_sample;
  const std::int32_t* choice = choices.choice + begin;
  int mine = 0;
  for (std::int64_t c = threadIdx.x; c < choices.of_sample; c += kDropThreads)
    mine += choice[c] == expert ? 1 : 0;
  const bool all_stay = BlockSum(mine) <= cap;
  Threshold threshold = {0, cap};
  if (!all_stay && weight != nullptr)
    threshold = Select(choice, weight + begin, choices.of_sample, expert, cap);
  int seen = 0;  // of those of equal weight, so far
  for (std::int64_t first = 0; first < choices.of_sample; first += kDropThreads) {
    const std::int64_t c = first + threadIdx.x;
    const bool chosen = c < choices.of_sample && choice[c] == expert;
    const unsigned bits = chosen && weight != nullptr ? __float_as_uint(weight[begin + c]) : 0;
    const Ranked equal = RankOf(chosen && bits == threshold.bits);
    const bool stays = all_stay || bits > threshold.bits ||
                       (bits == threshold.bits && seen + equal.before < threshold.equal);
    if (chosen) kept[begin + c] = stays ? expert : -1;
    seen += equal.all;
  }
}

// A choice that is −1 already, of a token that went nowhere, stays −1.
__global__ void CopyNone(const std::int32_t* __restrict__ choice, std::int64_t count,
                         std::int32_t* __restrict__ kept) {
  for (std::int64_t c = blockIdx.x * std::int64_t{kDropThreads} + threadIdx.x; c < count;
       c += std::int64_t{gridDim.x} * kDropThreads) {
    if (choice[c] < 0) kept[c] = -1;
  }
}

__global__ void __launch_bounds__(kDropThreads)
    CountKernel(const std::int32_t* __restrict__ kept, std::int64_t choices, bool accumulate,
                double* __restrict__ count) {
  int mine = 0;
  for (std::int64_t c = threadIdx.x; c < choices; c += kDropThreads) mine += kept[c] < 0 ? 1 : 0;
  const int sum = BlockSum(mine);
  if (threadIdx.x == 0) *count = (accumulate ? *count : 0.0) + static_cast<double>(sum);
}

__global__ void __launch_bounds__(kDropThreads)
    LoadKernel(const std::int32_t* __restrict__ choice, std::int64_t choices, std::int32_t experts,
               bool accumulate, float* __restrict__ load) {
  const auto expert = static_cast<std::int32_t>(blockIdx.x);
  int mine = 0;
  for (std::int64_t c = threadIdx.x; c < choices; c += kDropThreads) mine += choice[c] == expert ? 1 : 0;
  const std::int64_t sum = BlockSum(mine);
  if (threadIdx.x == 0)
    load[expert] = (accumulate ? load[expert] : 0.0F) + static_cast<float>(experts * sum - choices);
}

// Counts in shared memory, then whole numbers in float64, whose sum is the same in any order.
__global__ void __launch_bounds__(kDropThreads)
    RouteCountKernel(const std::int32_t* __restrict__ choice, std::int64_t choices, std::int32_t experts,
                     double* __restrict__ count) {
  extern __shared__ int of_block[];
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += kDropThreads) of_block[e] = 0;
  __syncthreads();
  for (std::int64_t c = blockIdx.x * std::int64_t{kDropThreads} + threadIdx.x; c < choices;
       c += std::int64_t{gridDim.x} * kDropThreads) {
    atomicAdd(&of_block[choice[c]], 1);
  }
  __syncthreads();
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += kDropThreads) {
    if (of_block[e] > 0) atomicAdd(&count[e], static_cast<double>(of_block[e]));
  }
}

// One block. load may be before: a thread has read what it overwrites.
__global__ void __launch_bounds__(kDropThreads)
    RunningLoadKernel(const float* __restrict__ count, std::int64_t groups, std::int32_t experts,
                      const float* before, const double* __restrict__ iteration, float* __restrict__ mean,
                      float* load) {
  const auto now = static_cast<float>(*iteration + 1);
  const bool goes_on = before[0] == now;
  const float microbatches = (goes_on ? before[1] : 0.0F) + 1.0F;
  __syncthreads();
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += kDropThreads) {
    float sum = goes_on ? before[2 + e] : 0.0F;
    for (std::int64_t g = 0; g < groups; ++g) sum += count[g * experts + e];
    load[2 + e] = sum;
    mean[e] = sum / microbatches;
  }
  if (threadIdx.x != 0) return;
  load[0] = now;
  load[1] = microbatches;
}

}  // namespace

void Drop(const SampleChoices& choices, const float* weight, std::int64_t cap, std::int32_t* kept,
          cudaStream_t stream) {
  const std::int64_t count = choices.samples * choices.of_sample;
  CopyNone<<<264, kDropThreads, 0, stream>>>(choices.choice, count, kept);
  const dim3 grid(static_cast<unsigned>(choices.experts), static_cast<unsigned>(choices.samples));
  const std::int64_t most = cap < choices.of_sample ? cap : choices.of_sample;
  DropKernel<<<grid, kDropThreads, 0, stream>>>(choices, weight, static_cast<int>(most), kept);
}

void DropCount(const std::int32_t* kept, std::int64_t choices, bool accumulate, double* count,
               cudaStream_t stream) {
  CountKernel<<<1, kDropThreads, 0, stream>>>(kept, choices, accumulate, count);
}

void RouteLoad(const std::int32_t* choice, std::int64_t choices, std::int32_t experts, bool accumulate,
               float* load, cudaStream_t stream) {
  LoadKernel<<<static_cast<unsigned>(experts), kDropThreads, 0, stream>>>(choice, choices, experts,
                                                                          accumulate, load);
}

void RouteCount(const std::int32_t* choice, std::int64_t choices, std::int32_t experts, bool accumulate,
                double* count, cudaStream_t stream) {
  const auto numbers = static_cast<std::size_t>(experts);
  if (!accumulate) cudaMemsetAsync(count, 0, numbers * sizeof(double), stream);
  constexpr unsigned kBlocks = 64;
  RouteCountKernel<<<kBlocks, kDropThreads, numbers * sizeof(int), stream>>>(choice, choices, experts, count);
}

void RunningLoad(const float* count, std::int64_t groups, std::int32_t experts, const float* before,
                 const double* iteration, float* mean, float* load, cudaStream_t stream) {
  RunningLoadKernel<<<1, kDropThreads, 0, stream>>>(count, groups, experts, before, iteration, mean, load);
}

}  // namespace engine::backend::cuda
