// Which logits of a row are the largest, in two kernels. Blocks of the first each look at a part of a row: at its sums, and at the
// largest of each group of 16 logits, which one thread has. A block of the second has a whole row: as many groups as logits are wanted
// have a largest one that is not below some bound, so that the logits that are wanted are not below it either. It looks at these groups
// alone, and the few logits that it finds there take their places by being compared with each other. Both may begin before what they
// read is written (early.cuh): no pointer is __restrict__.
#include "engine/backend/cuda/kernels/top_logits.h"

#include "engine/backend/cuda/kernels/early.cuh"
#include "engine/backend/cuda/kernels/vector.cuh"
#include "engine/backend/cuda/profile/scratch_top_logits.h"

namespace engine::backend::cuda {
namespace {

constexpr int kThreads = static_cast<int>(kTopLogitsGroups);
constexpr int kBins = 256;                                          // of 8 bits of a key
constexpr int kHeld = static_cast<int>(kTopLogitsPart) / kThreads;  // logits of a group
constexpr int kMost = static_cast<int>(kMostTopLogits);
static_assert(kBins == kThreads, "a thread counts one bin");

// A logit and its column as a number: of a larger logit, and of equal ones of a lower column, it is larger. 0: there is none.
using Key = std::uint64_t;

// A logit as a number in the same order, larger than 0.
__device__ __forceinline__ std::uint32_t OrderOf(float logit) {
  const std::uint32_t bits = __float_as_uint(logit + 0.0F);  // −0 is equal to 0
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}
__device__ __forceinline__ Key KeyOf(float logit, int column) {
  return (static_cast<Key>(OrderOf(logit)) << 32) | ~static_cast<std::uint32_t>(column);
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
  Key chosen[kMost];  // the largest keys, the largest one first, and 0 behind the last
  int places[kCompared];
  int counts[kBins];
  uint2 warp_counts[2][kBlockWarps];
  int warp_sums[kBlockWarps];
  int bin, above, in_bin, next, keys;
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
  if (lane == kWarp - 1) shared.warp_sums[threadIdx.x / kWarp] = sum;
  __syncthreads();
  for (int warp = 0; warp < static_cast<int>(threadIdx.x) / kWarp; ++warp) sum += shared.warp_sums[warp];
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

// Puts the `wanted` largest of the keys that the block's threads hold, in whose number those of shared.chosen are, into it: 8 bits of
// a key at a time (radix select), each after several barriers.
__device__ void Select(const Key (&keys)[kHeld], int wanted, Shared& shared) {
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
  if (threadIdx.x < kMost) shared.chosen[threadIdx.x] = 0;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    if (keys[i] != 0 && keys[i] >= least) shared.chosen[atomicAdd(&shared.next, 1)] = keys[i];
  }
  __syncthreads();
  Sort(shared);
}

// The sums of all threads' numbers. Calls one behind the other have `turn` 0 and 1 in turns.
struct Counts {
  std::uint32_t first, second;
};
__device__ __forceinline__ Counts CountsOfBlock(std::uint32_t first, std::uint32_t second, int turn,
                                                Shared& shared) {
  first = __reduce_add_sync(kAllLanes, first);
  second = __reduce_add_sync(kAllLanes, second);
  uint2* const of_warps = shared.warp_counts[turn];
  if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = {first, second};
  __syncthreads();
  Counts sum = {0, 0};
#pragma unroll
  for (int warp = 0; warp < kBlockWarps; ++warp) {
    sum.first += of_warps[warp].x;
    sum.second += of_warps[warp].y;
  }
  return sum;
}

// The largest logits of a row's groups. A thread holds those of kSlots slots; where a row has more groups than the block has
// slots, several groups share one.
struct Groups {
  static constexpr int kSlots = 32;
  static constexpr int kAllSlots = kSlots * kThreads;

  std::uint32_t largest[kSlots];  // 0: of a slot without a class
  int count = 0;                  // groups
  int used = 0;                   // slots of a thread that have any

  __device__ __forceinline__ Groups(const std::uint32_t* of_row, int groups)
      : count(groups), used((min(groups, kAllSlots) + kThreads - 1) / kThreads) {
#pragma unroll
    for (int i = 0; i < kSlots; ++i) largest[i] = SlotOf(i) < count ? of_row[SlotOf(i)] : 0;
    for (int more = kAllSlots; more < count; more += kAllSlots) {
#pragma unroll
      for (int i = 0; i < kSlots; ++i) {
        if (more + SlotOf(i) < count) largest[i] = max(largest[i], of_row[more + SlotOf(i)]);
      }
    }
  }
  __device__ __forceinline__ static int SlotOf(int i) { return i * kThreads + static_cast<int>(threadIdx.x); }

  // A bound that the largest logits of `wanted` slots at least are not below, and, unless many are equal, of few more. 0: of fewer slots
  // than wanted. Two bits of it are found at a time.
  __device__ __forceinline__ std::uint32_t Bound(int wanted, Shared& shared) const {
    constexpr int kFewMore = 64;
    std::uint32_t bound = 0;
    for (int bit = 30; bit >= 0; bit -= 2) {
      // Counts of the three bounds that these bits can make, two of them in one number: no block has 2^16 slots.
      std::uint32_t one_and_two = 0;
      std::uint32_t three = 0;
#pragma unroll
      for (int i = 0; i < kSlots; ++i) {
        if (i >= used) break;
        const std::uint32_t more = largest[i] < bound ? 0 : (largest[i] - bound) >> bit;
        one_and_two += (more >= 1 ? 1U : 0U) + (more >= 2 ? 0x10000U : 0U);
        three += more >= 3 ? 1U : 0U;
      }
      const Counts counts = CountsOfBlock(one_and_two, three, bit / 2 % 2, shared);
      const std::uint32_t not_below[3] = {counts.first & 0xFFFFU, counts.first >> 16, counts.second};
      std::uint32_t chosen = 0;
#pragma unroll
      for (int i = 0; i < 3; ++i) {
        if (not_below[i] >= static_cast<std::uint32_t>(wanted)) chosen = i + 1;
      }
      if (chosen == 0) continue;
      bound += chosen << bit;
      if (not_below[chosen - 1] <= static_cast<std::uint32_t>(wanted + kFewMore)) break;
    }
    return bound;
  }
};

// Puts the `wanted` largest classes of a row into shared.chosen, which holds zeros. `largest`: of each of its groups.
template <typename T>
__device__ void Choose(const T* row, int classes, const std::uint32_t* largest, int group_count, int wanted,
                       Shared& shared) {
  const int thread = static_cast<int>(threadIdx.x);
  const Groups groups(largest, group_count);
  if (thread == 0) shared.next = shared.keys = 0;
  const std::uint32_t bound = max(groups.Bound(wanted, shared), 1U);  // 0 is no logit
#pragma unroll
  for (int i = 0; i < Groups::kSlots; ++i) {
    if (groups.largest[i] < bound) continue;
    const int at = atomicAdd(&shared.next, 1);
    if (at < kCompared) shared.places[at] = Groups::SlotOf(i);
  }
  __syncthreads();
  const int slots = shared.next;
  if (slots <= kCompared) {
    const int groups_of_slot = (group_count + Groups::kAllSlots - 1) / Groups::kAllSlots;
    const int looked_at = slots * groups_of_slot * kHeld;
    constexpr int kAtOnce = 4;
    for (int begin = thread; begin < looked_at; begin += kAtOnce * kThreads) {
      int columns_at[kAtOnce];
      float logits[kAtOnce];
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) {
        const int i = begin + n * kThreads;
        const int group = shared.places[i / kHeld % slots] + i / kHeld / slots * Groups::kAllSlots;
        const int column =
            group / kThreads * static_cast<int>(kTopLogitsPart) + group % kThreads + i % kHeld * kThreads;
        columns_at[n] = i < looked_at && column < classes ? column : -1;
        logits[n] = columns_at[n] >= 0 ? static_cast<float>(row[column]) : 0.0F;
      }
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) {
        if (columns_at[n] < 0 || OrderOf(logits[n]) < bound) continue;
        const int at = atomicAdd(&shared.keys, 1);
        if (at < kCompared) shared.compared[at] = KeyOf(logits[n], columns_at[n]);
      }
    }
    __syncthreads();
    const int count = shared.keys;
    if (count <= kCompared) {
      for (int i = thread; i < count; i += kThreads) {
        const Key key = shared.compared[i];
        int place = 0;
#pragma unroll 8
        for (int other = 0; other < count; ++other) place += shared.compared[other] > key ? 1 : 0;
        if (place < wanted) shared.chosen[place] = key;
      }
      __syncthreads();
      return;
    }
  }
  // Very many are equal, or lie in few groups: the largest so far come before as many more as there is room for.
  for (int begin = 0; begin < classes; begin += static_cast<int>(kTopLogitsPart) - kMost) {
    Key keys[kHeld];
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int at = i * kThreads + thread;
      const int column = begin + at - kMost;
      keys[i] = 0;
      if (at < kMost) {
        keys[i] = shared.chosen[at];
      } else if (column < classes) {
        keys[i] = KeyOf(static_cast<float>(row[column]), column);
      }
    }
    __syncthreads();
    Select(keys, wanted, shared);
  }
}

template <typename T>
__device__ __forceinline__ const T* LastRow(const T* logits, int sample, int rows, int columns) {
  return logits + ((sample + std::int64_t{1}) * rows - 1) * columns;
}

// A block looks at one part of one sample's row.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    TopOfPartsKernel(const T* logits, int rows, int columns, int classes, const float* temperatures,
                     std::uint32_t* largest_out, float* numbers_out) {
  __shared__ float floats[kBlockWarps];
  __shared__ double doubles[kBlockWarps];
  LetNextBegin();
  AwaitEarlier();
  const int sample = static_cast<int>(blockIdx.y);
  const T* const row = LastRow(logits, sample, rows, columns);
  const int first = static_cast<int>(blockIdx.x) * static_cast<int>(kTopLogitsPart);
  float values[kHeld];
  float max = MinusInfinity();
  std::uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int column = first + i * kThreads + static_cast<int>(threadIdx.x);
    const bool counts = column < classes;
    values[i] = counts ? static_cast<float>(row[column]) : MinusInfinity();
    if (counts) largest = ::max(largest, OrderOf(values[i]));
    max = fmaxf(max, values[i]);
  }
  const std::int64_t part = sample * static_cast<std::int64_t>(gridDim.x) + blockIdx.x;
  largest_out[part * kThreads + threadIdx.x] = largest;
  max = BlockMax<kThreads>(max, floats);
  const float shift = Finite(max);
  const float temperature = temperatures[sample];
  float sum = 0;
  float tempered = 0;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    sum += expf(values[i] - shift);
    tempered += expf((values[i] - shift) / temperature);
  }
  const double part_sum = BlockSum<kThreads>(static_cast<double>(sum), doubles);
  const double part_tempered = BlockSum<kThreads>(static_cast<double>(tempered), doubles);
  if (threadIdx.x == 0) {
    numbers_out[3 * part] = max;
    numbers_out[3 * part + 1] = static_cast<float>(part_sum);
    numbers_out[3 * part + 2] = static_cast<float>(part_tempered);
  }
}

// Joins the sums of a row's parts to {ln Σ exp z, ln Σ exp (z / temperature)}, which all lanes get. One warp calls it.
__device__ __forceinline__ float2 LogSumsOfRow(const float* numbers, int parts, float temperature) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  float max = MinusInfinity();
  for (int p = lane; p < parts; p += kWarp) max = fmaxf(max, numbers[3 * p]);
  const float shift = Finite(WarpMax(max));
  double sum = 0;
  double tempered = 0;
  for (int p = lane; p < parts; p += kWarp) {
    const double below = static_cast<double>(numbers[3 * p]) - static_cast<double>(shift);
    sum += static_cast<double>(numbers[3 * p + 1]) * exp(below);
    tempered += static_cast<double>(numbers[3 * p + 2]) * exp(below / static_cast<double>(temperature));
  }
  sum = WarpSum(sum);
  tempered = WarpSum(tempered);
  return {static_cast<float>(static_cast<double>(shift) + log(sum)),
          static_cast<float>(static_cast<double>(shift) / static_cast<double>(temperature) + log(tempered))};
}

// A sample has two blocks: one finds the largest logits of its row, the other what the parts' sums come to.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    TopOfRowKernel(const T* logits, int rows, int columns, int classes, int parts, int count,
                   std::int64_t first_class, const std::uint32_t* largest, const float* numbers_in,
                   const float* temperatures, std::int32_t* tokens, float* values, float* log_sums) {
  __shared__ Shared shared;
  const int thread = static_cast<int>(threadIdx.x);
  const int sample = static_cast<int>(blockIdx.x);
  if (thread < kMost) shared.chosen[thread] = 0;
  AwaitEarlier();
  if (blockIdx.y == 1) {
    if (thread >= kWarp) return;
    const float2 sums =
        LogSumsOfRow(numbers_in + static_cast<std::int64_t>(sample) * parts * 3, parts, temperatures[sample]);
    if (thread == 0) reinterpret_cast<float2*>(log_sums)[sample] = sums;
    return;
  }
  Choose(LastRow(logits, sample, rows, columns), classes,
         largest + static_cast<std::int64_t>(sample) * parts * kThreads, parts * kThreads, count, shared);
  if (thread < count) {
    const Key key = shared.chosen[thread];
    const std::int64_t at = static_cast<std::int64_t>(sample) * count + thread;
    tokens[at] = key != 0 ? static_cast<std::int32_t>(first_class + ColumnOf(key)) : -1;
    values[at] = key != 0 ? LogitOf(key) : MinusInfinity();
  }
}

}  // namespace

void LaunchTopLogits(const TopLogits& top, cudaStream_t stream) {
  const TopLogitsCut cut = CutTopLogits(top.samples, top.columns);
  auto* const largest = reinterpret_cast<std::uint32_t*>(top.scratch);
  auto* const numbers = reinterpret_cast<float*>(top.scratch + cut.largest_bytes);
  const auto parts = static_cast<unsigned>(cut.parts);
  const auto samples = static_cast<unsigned>(top.samples);
  const bool early = top.samples <= kMostEarlyRows;
  WithElementType(top.dtype, [&](auto type) {
    using T = decltype(type);
    const auto* const logits = static_cast<const T*>(top.logits);
    Launch(early, TopOfPartsKernel<T>, dim3(parts, samples), kThreads, 0, stream, logits,
           static_cast<int>(top.rows), static_cast<int>(top.columns), static_cast<int>(top.classes),
           top.temperatures, largest, numbers);
    Launch(early, TopOfRowKernel<T>, dim3(samples, 2), kThreads, 0, stream, logits,
           static_cast<int>(top.rows), static_cast<int>(top.columns), static_cast<int>(top.classes),
           static_cast<int>(parts), static_cast<int>(top.count), top.first_class, largest, numbers,
           top.temperatures, top.tokens, top.values, top.log_sums);
  });
}

}  // namespace engine::backend::cuda
