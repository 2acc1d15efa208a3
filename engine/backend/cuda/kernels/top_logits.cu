#include "engine/backend/cuda/kernels/top_logits.h"
#include "engine/backend/cuda/kernels/vector.cuh"
#include "engine/backend/cuda/profile/scratch_top_logits.h"

namespace engine::backend::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kBins = 256;                                          // of 8 bits of a key
constexpr int kHeld = static_cast<int>(kTopLogitsPart) / kThreads;  // keys of a thread
constexpr int kMost = static_cast<int>(kMostTopLogits);
static_assert(kBins == kThreads, "a thread counts one bin");

// A logit and its column as a number: of a larger logit, and of equal ones of a lower column, it is larger. 0: there is none.
using Key = std::uint64_t;

__device__ __forceinline__ Key KeyOf(float logit, int column) {
  const std::uint32_t bits = __float_as_uint(logit + 0.0F);  // −0 is equal to 0
  const std::uint32_t ordered = (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
  return (static_cast<Key>(ordered) << 32) | ~static_cast<std::uint32_t>(column);
}
__device__ __forceinline__ float LogitOf(Key key) {
  const auto ordered = static_cast<std::uint32_t>(key >> 32);
  return __uint_as_float((ordered & 0x80000000U) != 0 ? ordered & 0x7FFFFFFFU : ~ordered);
}
__device__ __forceinline__ int ColumnOf(Key key) {
  return static_cast<int>(~static_cast<std::uint32_t>(key));
}

__device__ __forceinline__ float MinusInfinity() { return __int_as_float(static_cast<int>(0xFF800000U)); }
// The number that is subtracted from each logit before exp: the largest logit, or 0 where all are −∞, as −∞ − −∞ is no number.
__device__ __forceinline__ float Finite(float max) { return max == MinusInfinity() ? 0.0F : max; }

// Keys of which the largest are found by comparing each with each.
constexpr int kCompared = 1024;
constexpr int kBlockWarps = kThreads / kWarp;

struct Shared {
  alignas(16) Key compared[kCompared];
  Key chosen[kMost];  // the largest keys, the largest one first
  Key bounds[kBlockWarps];
  int counts[kBins];
  int warp_counts[kBlockWarps];
  int bin, above, in_bin, next;
  float floats[kBlockWarps];
  double doubles[kBlockWarps];
};

// Finds in `counts` the bin of the key that is the `wanted`-th of the largest: bin, how many keys are in bins above it, and how
// many are in it. Of fewer keys than wanted: bin 0.
__device__ void FindBin(int wanted, Shared& shared) {
  const int bin = kBins - 1 - static_cast<int>(threadIdx.x);  // the first thread has the highest
  const int own = shared.counts[bin];
  int sum = own;  // of this bin and those above it
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    const int before = __shfl_up_sync(kAllLanes, sum, step);
    if (lane >= step) sum += before;
  }
  if (lane == kWarp - 1) shared.warp_counts[threadIdx.x / kWarp] = sum;
  __syncthreads();
  for (int warp = 0; warp < static_cast<int>(threadIdx.x) / kWarp; ++warp) sum += shared.warp_counts[warp];
  const bool is_it = sum >= wanted && sum - own < wanted;
  const bool is_last = bin == 0 && sum < wanted;
  if (is_it || is_last) {
    shared.bin = bin;
    shared.above = sum - own;
    shared.in_bin = own;
  }
  __syncthreads();
}

// Sorts shared.chosen (bitonic sort).
__device__ void Sort(Shared& shared) {
  const int thread = static_cast<int>(threadIdx.x);
  for (int size = 2; size <= kMost; size *= 2) {
    for (int distance = size / 2; distance > 0; distance /= 2) {
      const int low = 2 * distance * (thread / distance) + thread % distance;
      if (thread < kMost / 2) {
        Key& a = shared.chosen[low];
        Key& b = shared.chosen[low + distance];
        const bool falls = (low & size) == 0;
        if ((a < b) == falls) {
          const Key swapped = a;
          a = b;
          b = swapped;
        }
      }
      __syncthreads();
    }
  }
}

// Select of any keys: 8 bits at a time (radix select), each after several barriers.
__device__ void SelectOfMany(const Key (&keys)[kHeld], int wanted, Shared& shared) {
  Key prefix = 0;  // the bits of the last of the largest that are known
  int missing = wanted;
  int shift = 64;
  while (true) {
    shift -= 8;
    shared.counts[threadIdx.x] = 0;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const bool in_prefix = shift == 56 || (keys[i] >> (shift + 8)) == prefix;
      if (in_prefix && keys[i] != 0) atomicAdd(&shared.counts[(keys[i] >> shift) & (kBins - 1)], 1);
    }
    __syncthreads();
    FindBin(missing, shared);
    prefix = (prefix << 8) | static_cast<Key>(shared.bin);
    missing -= shared.above;
    const bool is_found = shared.in_bin <= missing || shift == 0;
    __syncthreads();
    if (is_found) break;
  }
  const Key least = prefix << shift;
  if (threadIdx.x == 0) shared.next = 0;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    if (keys[i] != 0 && keys[i] >= least) shared.chosen[atomicAdd(&shared.next, 1)] = keys[i];
  }
  __syncthreads();
  Sort(shared);
}

// The keys of a warp's lanes, the largest one in the first lane (bitonic sort).
__device__ Key SortedByLanes(Key key) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int size = 2; size <= kWarp; size *= 2) {
#pragma unroll
    for (int distance = size / 2; distance > 0; distance /= 2) {
      const Key other = __shfl_xor_sync(kAllLanes, key, distance);
      const bool takes_larger = ((lane & distance) == 0) == ((lane & size) == 0);
      key = takes_larger ? max(key, other) : min(key, other);
    }
  }
  return key;
}

// Puts the `wanted` largest of the keys that the block's threads hold into shared.chosen, in their order, and 0 behind them.
//
// In each warp several lanes hold a key that is not below a bound, in all warps together as many as are wanted: no smaller key
// counts. Where large keys lie in all warps alike few are left, each of which finds its place by being compared with all of them.
__device__ void Select(const Key (&keys)[kHeld], int wanted, Shared& shared) {
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kWarp;
  Key largest = 0;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) largest = max(largest, keys[i]);
  const Key bound_of_warp =
      __shfl_sync(kAllLanes, SortedByLanes(largest), (wanted + kBlockWarps - 1) / kBlockWarps - 1);
  __syncthreads();  // all threads have read what was chosen before
  if (lane == 0) shared.bounds[thread / kWarp] = bound_of_warp;
  if (thread == 0) shared.next = 0;
  if (thread < kMost) shared.chosen[thread] = 0;
  __syncthreads();
  Key bound = bound_of_warp;
#pragma unroll
  for (int warp = 0; warp < kBlockWarps; ++warp) bound = min(bound, shared.bounds[warp]);
  bound = max(bound, Key{1});  // 0 is no key
  int own = 0;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) own += keys[i] >= bound ? 1 : 0;
  int at = own;  // of this lane and those before it
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    const int before = __shfl_up_sync(kAllLanes, at, step);
    if (lane >= step) at += before;
  }
  int begin = 0;
  if (lane == kWarp - 1) begin = atomicAdd(&shared.next, at);
  at += __shfl_sync(kAllLanes, begin, kWarp - 1) - own;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    if (keys[i] < bound) continue;
    if (at < kCompared) shared.compared[at] = keys[i];
    ++at;
  }
  __syncthreads();
  const int count = shared.next;
  if (count > kCompared) return SelectOfMany(keys, wanted, shared);
  for (int i = thread; i < count; i += kThreads) {
    const Key key = shared.compared[i];
    int place = 0;
#pragma unroll 8
    for (int other = 0; other < count; ++other) place += shared.compared[other] > key ? 1 : 0;
    if (place < wanted) shared.chosen[place] = key;
  }
  __syncthreads();
}

// A block looks at one part of one sample's row.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    TopOfPartsKernel(const T* __restrict__ logits, int rows, int columns, int classes, int count,
                     const float* __restrict__ temperatures, Key* __restrict__ keys_out,
                     float* __restrict__ numbers_out) {
  __shared__ Shared shared;
  const int sample = static_cast<int>(blockIdx.y);
  const T* const row = logits + ((sample + std::int64_t{1}) * rows - 1) * columns;
  const int first = static_cast<int>(blockIdx.x) * static_cast<int>(kTopLogitsPart);
  Key keys[kHeld];
  float values[kHeld];
  float max = MinusInfinity();
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int column = first + i * kThreads + static_cast<int>(threadIdx.x);
    const bool counts = column < classes;
    values[i] = counts ? static_cast<float>(row[column]) : MinusInfinity();
    keys[i] = counts ? KeyOf(values[i], column) : 0;
    max = fmaxf(max, values[i]);
  }
  max = BlockMax<kThreads>(max, shared.floats);
  const float shift = Finite(max);
  const float temperature = temperatures[sample];
  float sum = 0;
  float tempered = 0;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    sum += expf(values[i] - shift);
    tempered += expf((values[i] - shift) / temperature);
  }
  const double part_sum = BlockSum<kThreads>(static_cast<double>(sum), shared.doubles);
  const double part_tempered = BlockSum<kThreads>(static_cast<double>(tempered), shared.doubles);
  const std::int64_t part = sample * static_cast<std::int64_t>(gridDim.x) + blockIdx.x;
  if (threadIdx.x == 0) {
    numbers_out[3 * part] = max;
    numbers_out[3 * part + 1] = static_cast<float>(part_sum);
    numbers_out[3 * part + 2] = static_cast<float>(part_tempered);
  }
  Select(keys, count, shared);
  if (static_cast<int>(threadIdx.x) < count)
    keys_out[part * count + threadIdx.x] = shared.chosen[threadIdx.x];
}

// A block joins what the parts of one sample's row have left.
__global__ void __launch_bounds__(kThreads)
    JoinTopKernel(const Key* __restrict__ keys_in, const float* __restrict__ numbers_in, int parts, int count,
                  std::int64_t first_class, const float* __restrict__ temperatures,
                  std::int32_t* __restrict__ tokens, float* __restrict__ values,
                  float* __restrict__ log_sums) {
  __shared__ Shared shared;
  const int thread = static_cast<int>(threadIdx.x);
  const int sample = static_cast<int>(blockIdx.x);
  const Key* const of_sample = keys_in + static_cast<std::int64_t>(sample) * parts * count;
  if (thread < kMost) shared.chosen[thread] = 0;
  // The largest so far come before as many more keys as there is room for.
  for (int begin = 0; begin < parts * count; begin += static_cast<int>(kTopLogitsPart) - kMost) {
    __syncthreads();
    Key keys[kHeld];
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int at = i * kThreads + thread;
      const int more = begin + at - kMost;
      keys[i] = 0;
      if (at < kMost) {
        keys[i] = shared.chosen[at];
      } else if (more < parts * count) {
        // The largest of each part, then the second ones, and so on: Select wants large keys in all warps.
        keys[i] = of_sample[more % parts * count + more / parts];
      }
    }
    __syncthreads();
    Select(keys, count, shared);
  }
  if (thread < count) {
    const Key key = shared.chosen[thread];
    const std::int64_t at = static_cast<std::int64_t>(sample) * count + thread;
    tokens[at] = key != 0 ? static_cast<std::int32_t>(first_class + ColumnOf(key)) : -1;
    values[at] = key != 0 ? LogitOf(key) : MinusInfinity();
  }
  const float* const numbers = numbers_in + static_cast<std::int64_t>(sample) * parts * 3;
  float max = MinusInfinity();
  for (int p = thread; p < parts; p += kThreads) max = fmaxf(max, numbers[3 * p]);
  max = BlockMax<kThreads>(max, shared.floats);
  const float shift = Finite(max);
  const float temperature = temperatures[sample];
  double sum = 0;
  double tempered = 0;
  for (int p = thread; p < parts; p += kThreads) {
    const double below = static_cast<double>(numbers[3 * p]) - static_cast<double>(shift);
    sum += static_cast<double>(numbers[3 * p + 1]) * exp(below);
    tempered += static_cast<double>(numbers[3 * p + 2]) * exp(below / static_cast<double>(temperature));
  }
  sum = BlockSum<kThreads>(sum, shared.doubles);
  tempered = BlockSum<kThreads>(tempered, shared.doubles);
  if (thread != 0) return;
  log_sums[2 * sample] = static_cast<float>(static_cast<double>(shift) + log(sum));
  log_sums[2 * sample + 1] =
      static_cast<float>(static_cast<double>(shift) / static_cast<double>(temperature) + log(tempered));
}

}  // namespace

void LaunchTopLogits(const TopLogits& top, cudaStream_t stream) {
  const TopLogitsCut cut = CutTopLogits(top.samples, top.columns, top.count);
  auto* const keys = reinterpret_cast<Key*>(top.scratch);
  auto* const numbers = reinterpret_cast<float*>(top.scratch + cut.key_bytes);
  const auto parts = static_cast<unsigned>(cut.parts);
  const auto samples = static_cast<unsigned>(top.samples);
  const int count = static_cast<int>(top.count);
  WithElementType(top.dtype, [&](auto type) {
    using T = decltype(type);
    TopOfPartsKernel<T><<<dim3(parts, samples), kThreads, 0, stream>>>(
        static_cast<const T*>(top.logits), static_cast<int>(top.rows), static_cast<int>(top.columns),
        static_cast<int>(top.classes), count, top.temperatures, keys, numbers);
  });
  JoinTopKernel<<<samples, kThreads, 0, stream>>>(keys, numbers, static_cast<int>(cut.parts), count,
                                                  top.first_class, top.temperatures, top.tokens, top.values,
                                                  top.log_sums);
}

}  // namespace engine::backend::cuda
