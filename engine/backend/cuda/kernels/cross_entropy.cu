#include <algorithm>

#include "engine/backend/cuda/kernels/cross_entropy.h"
#include "engine/backend/cuda/kernels/logit_map.cuh"
#include "engine/backend/cuda/kernels/optimizer.h"
#include "engine/backend/cuda/kernels/vector.cuh"
#include "engine/plan/control.h"

namespace engine::backend::cuda {
namespace {

constexpr float kLn2 = 0.693147181F;

constexpr int kThreads = 256;      // of the kernels that read their input once
constexpr int kRowThreads = 1024;  // of a row that is read twice
constexpr int kHoldThreads = 768;  // that compute on a row held in shared memory; one more warp moves rows
constexpr int kInFlight = 4;       // packs of 8 logits that a thread loads before it uses the first
constexpr int kLossThreads = 1024;

__device__ __forceinline__ float Infinity() { return __int_as_float(0x7F800000); }

// Σ exp(z) of some logits as 2^max · sum; max is of z · log₂ e.
struct LogSum {
  float max = -Infinity();
  float sum = 0;
};

// LossTerms as the kernels compute with them.
struct Terms {
  float hit = 1;    // that the label's class has of the wanted distribution beside
  float share = 0;  // what each class has
  float z_loss = 0;
};

Terms TermsOf(const LossTerms& terms) {
  if (!terms.any()) return {};
  return {.hit = static_cast<float>(1 - terms.smoothing),
          .share = static_cast<float>(terms.smoothing / static_cast<double>(terms.classes)),
          .z_loss = static_cast<float>(terms.z_loss)};
}

// A form says what a kernel computes beside the plain cross entropy. Each form does what those before it do, so that none pays for
// what its loss does not have.
enum class Form : std::uint8_t { kPlain, kTerms, kMapped };

// The result is that of the first `count` elements of z; those behind them may be −∞.
template <int kWide>
__device__ __forceinline__ float SumFirst(const float (&z)[kWide], int count) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kWide; ++i) sum += i < count ? z[i] : 0.0F;
  return sum;
}

// What 2^x is taken of: never −∞ − −∞.
__device__ __forceinline__ float Shift(float max) { return max == -Infinity() ? 0.0F : max; }

template <int kWide>
__device__ __forceinline__ void AddLogits(const float (&z)[kWide], LogSum& total) {
  float top = z[0];
#pragma unroll
  for (int i = 1; i < kWide; ++i) top = fmaxf(top, z[i]);
  top *= kLog2E;
  if (top > total.max) {  // seldom after the first few: cheaper than to rescale each time
    total.sum *= Exp2(total.max - top);
    total.max = top;
  }
  const float shift = Shift(total.max);
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kWide; ++i) sum += Exp2(fmaf(z[i], kLog2E, -shift));
  total.sum += sum;
}

__device__ __forceinline__ LogSum WarpLogSum(LogSum total) {
  const float max = WarpMax(total.max);
  return {max, WarpSum(total.sum * Exp2(total.max - Shift(max)))};
}

// log₂ Σ exp(z) over the first kCount threads of a block, to each of them. `shared` may be used again after
// another call with another `shared`: there is one barrier in each.
template <int kCount>
__device__ __forceinline__ float GroupLogSum2(LogSum total, float2* shared) {
  static_assert(kCount % kWarp == 0 && kCount <= kWarp * kWarp);
  total = WarpLogSum(total);
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = {total.max, total.sum};
  asm volatile("bar.sync 1, %0;" ::"n"(kCount) : "memory");
  const int lane = threadIdx.x % kWarp;
  total = LogSum();
  if (lane < kCount / kWarp) total = {shared[lane].x, shared[lane].y};
  total = WarpLogSum(total);
  return total.max + log2f(total.sum);
}

// The threads' numbers, added up over each warp, for a thread that reads them behind the barrier of GroupLogSum2.
__device__ __forceinline__ void StoreWarpSum(float value, float* sums) {
  value = WarpSum(value);
  if (threadIdx.x % kWarp == 0) sums[threadIdx.x / kWarp] = value;
}
template <int kCount>
__device__ __forceinline__ float SumWarps(const float* sums) {
  float sum = 0;
  for (int warp = 0; warp < kCount / kWarp; ++warp) sum += sums[warp];
  return sum;
}

// Eight consecutive logits as fp32, mapped where the form has it; those from `count` on as −∞.
template <Form kForm, int kWide, typename T>
__device__ __forceinline__ void UnpackLogits(const Pack8<T>& pack, int count, const Mapping& map,
                                             float (&z)[kWide]) {
  Unpack8(pack, z);
  if constexpr (kForm == Form::kMapped) {
#pragma unroll
    for (int i = 0; i < kWide; ++i) z[i] = Mapped<T>(z[i], map);
  }
  if (count >= kWide) return;
#pragma unroll
  for (int i = 0; i < kWide; ++i) z[i] = i < count ? z[i] : -Infinity();
}

template <Form kForm, typename T>
__device__ __forceinline__ float LogitAt(const T* z, int column, const Mapping& map) {
  const float logit = ToFloat(z[column]);
  if constexpr (kForm == Form::kMapped) return Mapped<T>(logit, map);
  return logit;
}

// z becomes weight · (softmax − onehot); label: its index in z, or any other number.
template <int kWide>
__device__ __forceinline__ void ToGradient(float (&z)[kWide], float log_sum2, float weight, int label) {
  const float shift = weight == 0 ? Infinity() : log_sum2;  // 0 even where the sum overflowed
#pragma unroll
  for (int i = 0; i < kWide; ++i) z[i] = weight * Exp2(fmaf(z[i], kLog2E, -shift));
  if (label >= 0 && label < kWide) {
#pragma unroll
    for (int i = 0; i < kWide; ++i) z[i] -= i == label ? weight : 0.0F;
  }
}

// The same with the terms, and of mapped logits the gradient of what they are mapped from; the first `count` of z are
// classes, and the rest becomes 0.
template <Form kForm, int kWide>
__device__ __forceinline__ void ToGradientOfTerms(float (&z)[kWide], float log_sum2, float weight, int label,
                                                  int count, const Terms& terms, const Mapping& map) {
  if (weight == 0) {  // whatever the sum is
#pragma unroll
    for (int i = 0; i < kWide; ++i) z[i] = 0;
    return;
  }
  const float of_softmax = weight * (1 + 2 * terms.z_loss * (log_sum2 * kLn2));
  const float of_class = weight * terms.share;
#pragma unroll
  for (int i = 0; i < kWide; ++i) {
    const float all = of_softmax * Exp2(fmaf(z[i], kLog2E, -log_sum2)) - of_class;
    float gradient = all - (i == label ? weight * terms.hit : 0.0F);
    if constexpr (kForm == Form::kMapped) gradient *= SlopeAt(z[i], map);
    z[i] = i < count ? gradient : 0.0F;
  }
}

// The loss of a token with a label: `z_label` 0 where it is no class, `sum` over all classes.
__device__ __forceinline__ float TokenLoss(float lse, float z_label, float sum, const Terms& terms) {
  return lse - (terms.hit * z_label + terms.share * sum) + terms.z_loss * lse * lse;
}

__device__ __forceinline__ double LabelScale(const double* control) {
  return control != nullptr ? control[plan::kLossScale] * control[plan::kLabelFactor] : 1.0;
}

// The column of a label, −1 if it is none of this rank's classes.
__device__ __forceinline__ int LocalLabel(std::int32_t label, std::int64_t first_class, int classes) {
  const std::int64_t local = label - first_class;
  return label >= 0 && local >= 0 && local < classes ? static_cast<int>(local) : -1;
}

// ---- logits held in shared memory -------------------------------------------------------------------------
// cp.async.bulk of the PTX ISA, and the barriers that it signals; compute capability 9.0 and later.

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
__device__ __forceinline__ unsigned SharedAddress(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}
__device__ __forceinline__ void InitBarrier(std::uint64_t* barrier, unsigned arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(SharedAddress(barrier)), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void Arrive(std::uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(SharedAddress(barrier)) : "memory");
}
__device__ __forceinline__ void Wait(std::uint64_t* barrier, unsigned parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
      "@!done bra again;\n}" ::"r"(SharedAddress(barrier)),
      "r"(parity)
      : "memory");
}
__device__ __forceinline__ void BulkLoad(void* to, const void* from, unsigned bytes, std::uint64_t* barrier) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(SharedAddress(barrier)), "r"(bytes)
               : "memory");
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          SharedAddress(to)),
      "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(SharedAddress(barrier))
      : "memory");
}
__device__ __forceinline__ void BulkStore(void* to, const void* from, unsigned bytes) {
  asm volatile(
      "cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(__cvta_generic_to_global(to)),
      "r"(SharedAddress(from)), "r"(bytes)
      : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// The thread that moves rows between memory and the two slots.
__device__ void MoveRows(std::byte* slots, std::uint64_t* loaded, std::uint64_t* computed, std::byte* logits,
                         std::int64_t rows, unsigned row_bytes, unsigned slot_bytes) {
  const auto row_at = [&](std::int64_t i) { return blockIdx.x + i * gridDim.x; };
  const auto load = [&](std::int64_t i) {
    BulkLoad(slots + i % 2 * slot_bytes, logits + row_at(i) * row_bytes, row_bytes, loaded + i % 2);
  };
  for (std::int64_t i = 0; i < 2 && row_at(i) < rows; ++i) load(i);
  for (std::int64_t i = 0; row_at(i) < rows; ++i) {
    Wait(computed + i % 2, i / 2 % 2);
    BulkStore(logits + row_at(i) * row_bytes, slots + i % 2 * slot_bytes, row_bytes);
    if (row_at(i + 2) < rows) {
      asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");  // the slot's bytes are on their way
      load(i + 2);
    }
  }
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
#endif

// Each block turns rows blockIdx.x, + gridDim.x, … into gradients: while kHoldThreads threads compute on one
// slot, the bulk copies of the last warp write the other back and fill it with the next row. A thread owns
// the same packs of the row in both passes, so a row takes one barrier.
template <typename T, Form kForm>
__global__ void __launch_bounds__(kHoldThreads + kWarp, 1)
    HeldRowsKernel(T* logits, std::int64_t rows, int packs, int classes,
                   const std::int32_t* __restrict__ labels, double scale, const Terms terms,
                   const Mapping map, const double* __restrict__ control, float* __restrict__ token_loss) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  constexpr bool kTerms = kForm != Form::kPlain;
  extern __shared__ __align__(128) std::byte slots[];
  __shared__ std::uint64_t loaded[2];
  __shared__ std::uint64_t computed[2];
  __shared__ float2 shared[2][kHoldThreads / kWarp];
  __shared__ float sums[2][kHoldThreads / kWarp];  // of the logits, by warp
  const unsigned row_bytes = packs * sizeof(Pack8<T>);
  const unsigned slot_bytes = (row_bytes + 127) / 128 * 128;
  if (threadIdx.x == 0) {
    for (int slot = 0; slot < 2; ++slot) {
      InitBarrier(loaded + slot, 1);
      InitBarrier(computed + slot, kHoldThreads / kWarp);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }
  __syncthreads();
  if (threadIdx.x >= kHoldThreads) {
    if (threadIdx.x == kHoldThreads) {
      MoveRows(slots, loaded, computed, reinterpret_cast<std::byte*>(logits), rows, row_bytes, slot_bytes);
    }
    return;
  }

  const float full_weight = static_cast<float>(scale * LabelScale(control));
  for (std::int64_t i = 0, row = blockIdx.x; row < rows; ++i, row += gridDim.x) {
    const int slot = static_cast<int>(i % 2);
    const std::int32_t label = labels[row];
    T* z = reinterpret_cast<T*>(slots + slot * slot_bytes);
    Wait(loaded + slot, static_cast<unsigned>(i / 2 % 2));
    const int column = LocalLabel(label, 0, classes);
    const float target = threadIdx.x == 0 && column >= 0 ? LogitAt<kForm>(z, column, map) : 0.0F;
    LogSum total;
    float plain = 0;
    const int class_packs = (classes + 7) / 8;
#pragma unroll 2
    for (int pack = threadIdx.x; pack < class_packs; pack += kHoldThreads) {
      float values[8];
      UnpackLogits<kForm>(LoadPack8(z + pack * 8), classes - pack * 8, map, values);
      AddLogits(values, total);
      if constexpr (kTerms) plain += SumFirst(values, classes - pack * 8);
    }
    if constexpr (kTerms) StoreWarpSum(plain, sums[slot]);
    const float log_sum2 = GroupLogSum2<kHoldThreads>(total, shared[slot]);
    if constexpr (kTerms) {
      if (threadIdx.x == 0) {
        const float sum = SumWarps<kHoldThreads>(sums[slot]);
        token_loss[row] = label >= 0 ? TokenLoss(log_sum2 * kLn2, target, sum, terms) : 0.0F;
      }
    } else {
      if (threadIdx.x == 0) token_loss[row] = label >= 0 ? log_sum2 * kLn2 - target : 0.0F;
    }
    const float weight = label >= 0 ? full_weight : 0.0F;
#pragma unroll 2
    for (int pack = threadIdx.x; pack < packs; pack += kHoldThreads) {
      float values[8];
      UnpackLogits<kForm>(LoadPack8(z + pack * 8), classes - pack * 8, map, values);
      if constexpr (kTerms) {
        ToGradientOfTerms<kForm>(values, log_sum2, weight, column - pack * 8, classes - pack * 8, terms, map);
      } else {
        ToGradient(values, log_sum2, weight, column - pack * 8);
      }
      Store8(z + pack * 8, values);
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // the bulk store shall see what was written
    __syncwarp();
    if (threadIdx.x % kWarp == 0) Arrive(computed + slot);
  }
#endif
}

// ---- any row ----------------------------------------------------------------------------------------------

// Calls body(first column, values) for this thread's groups of kWide logits of z[columns]; those from
// `classes` on are −∞. The first `held` packs of 8 are kept in shared memory on the first reading (kKeep) and
// taken from there on the second.
template <typename T, Form kForm, int kWide, bool kKeep, int kCount, typename Body>
__device__ __forceinline__ void ForEachLogits(const T* z, int groups, int classes, const Mapping& map,
                                              Pack8<T>* hold, int held, const Body& body) {
  if constexpr (kWide == 1) {
    for (int i = threadIdx.x; i < groups; i += kCount) {
      float values[1] = {i < classes ? LogitAt<kForm>(z, i, map) : -Infinity()};
      body(i, values);
    }
  } else {
    for (int first = threadIdx.x; first < groups; first += kInFlight * kCount) {
      Pack8<T> packs[kInFlight];
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        const int at = first + i * kCount;
        if (at >= groups) break;
        packs[i] = !kKeep && at < held ? hold[at] : LoadPack8(z + at * 8);
      }
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        const int at = first + i * kCount;
        if (at >= groups) break;
        if (kKeep && at < held) hold[at] = packs[i];
        float values[8];
        UnpackLogits<kForm>(packs[i], classes - at * 8, map, values);
        body(at * 8, values);
      }
    }
  }
}

template <typename T, int kWide>
__device__ __forceinline__ void StoreWide(T* to, const float (&values)[kWide]) {
  if constexpr (kWide == 8) {
    Store8(to, values);
  } else {
    *to = FromFloat<T>(values[0]);
  }
}

// One block a row. What of it does not fit into shared memory is read again, from the L2 cache as a rule.
template <typename T, int kWide, Form kForm>
__global__ void __launch_bounds__(kRowThreads, 1)
    RowKernel(T* logits, int columns, int classes, int held, const std::int32_t* __restrict__ labels,
              double scale, const Terms terms, const Mapping map, const double* __restrict__ control,
              float* __restrict__ token_loss) {
  constexpr bool kTerms = kForm != Form::kPlain;
  extern __shared__ __align__(128) std::byte slots[];
  __shared__ float2 shared[kRowThreads / kWarp];
  __shared__ float sums[kRowThreads / kWarp];  // of the logits, by warp
  auto* hold = reinterpret_cast<Pack8<T>*>(slots);
  const std::int64_t row = blockIdx.x;
  T* z = logits + row * columns;
  const std::int32_t label = labels[row];
  // Read before the barrier, written over after it.
  const int label_column = LocalLabel(label, 0, classes);
  const float target = threadIdx.x == 0 && label_column >= 0 ? LogitAt<kForm>(z, label_column, map) : 0.0F;
  LogSum total;
  float plain = 0;
  ForEachLogits<T, kForm, kWide, true, kRowThreads>(z, columns / kWide, classes, map, hold, held,
                                                    [&](int column, const float(&values)[kWide]) {
                                                      AddLogits(values, total);
                                                      if constexpr (kTerms)
                                                        plain += SumFirst(values, classes - column);
                                                    });
  if constexpr (kTerms) StoreWarpSum(plain, sums);
  const float log_sum2 = GroupLogSum2<kRowThreads>(total, shared);
  if constexpr (kTerms) {
    if (threadIdx.x == 0) {
      const float sum = SumWarps<kRowThreads>(sums);
      token_loss[row] = label >= 0 ? TokenLoss(log_sum2 * kLn2, target, sum, terms) : 0.0F;
    }
  } else {
    if (threadIdx.x == 0) token_loss[row] = label >= 0 ? log_sum2 * kLn2 - target : 0.0F;
  }
  const float weight = label >= 0 ? static_cast<float>(scale * LabelScale(control)) : 0.0F;
  ForEachLogits<T, kForm, kWide, false, kRowThreads>(
      z, columns / kWide, classes, map, hold, held, [&](int column, float(&values)[kWide]) {
        const int label_at = label_column - column;
        if constexpr (kTerms) {
          ToGradientOfTerms<kForm>(values, log_sum2, weight, label_at, classes - column, terms, map);
        } else {
          ToGradient(values, log_sum2, weight, label_at);
        }
        StoreWide(z + column, values);
      });
}

template <typename T, int kWide, Form kForm>
__global__ void __launch_bounds__(kThreads)
    CrossEntropyKernel(const T* __restrict__ logits, int columns, int classes, std::int64_t first_class,
                       const std::int32_t* __restrict__ labels, const Terms terms, float* __restrict__ lse,
                       float* __restrict__ target) {
  constexpr bool kTerms = kForm != Form::kPlain;
  __shared__ float2 shared[kThreads / kWarp];
  __shared__ float sums[kThreads / kWarp];  // of the logits, by warp
  const std::int64_t row = blockIdx.x;
  const T* z = logits + row * columns;
  LogSum total;
  float plain = 0;
  ForEachLogits<T, kForm, kWide, false, kThreads>(z, (classes + kWide - 1) / kWide, classes, Mapping(),
                                                  nullptr, 0, [&](int column, const float(&values)[kWide]) {
                                                    AddLogits(values, total);
                                                    if constexpr (kTerms)
                                                      plain += SumFirst(values, classes - column);
                                                  });
  if constexpr (kTerms) StoreWarpSum(plain, sums);
  const float log_sum2 = GroupLogSum2<kThreads>(total, shared);
  if (threadIdx.x != 0) return;
  const int label = LocalLabel(labels[row], first_class, classes);
  lse[row] = log_sum2 * kLn2;
  const float z_label = label >= 0 ? ToFloat(z[label]) : 0.0F;
  if constexpr (kTerms) {
    const float sum = SumWarps<kThreads>(sums);
    target[row] = labels[row] >= 0 ? terms.hit * z_label + terms.share * sum : 0.0F;
  } else {
    target[row] = z_label;
  }
}

// A block takes kThreads · kInFlight groups of a row. d_logits may be logits.
template <typename T, int kWide, Form kForm>
__global__ void __launch_bounds__(kThreads)
    CrossEntropyGradKernel(const T* logits, int columns, int classes, std::int64_t first_class,
                           const std::int32_t* __restrict__ labels, const Terms terms,
                           const float* __restrict__ lse, const float* __restrict__ weight, T* d_logits) {
  constexpr int kColumns = kThreads * kInFlight * kWide;
  const std::int64_t row = blockIdx.x;
  const int from = static_cast<int>(blockIdx.y) * kColumns;
  const int count = min(kColumns, columns - from);
  const int label = LocalLabel(labels[row], first_class, classes);
  const float log_sum2 = lse[row] * kLog2E;
  const float w = weight[row];
  T* d = d_logits + row * columns + from;
  ForEachLogits<T, kForm, kWide, false, kThreads>(
      logits + row * columns + from, count / kWide, classes - from, Mapping(), nullptr, 0,
      [&](int column, float(&values)[kWide]) {
        const int label_at = label - from - column;
        if constexpr (kForm != Form::kPlain) {
          ToGradientOfTerms<kForm>(values, log_sum2, w, label_at, classes - from - column, terms, Mapping());
        } else {
          ToGradient(values, log_sum2, w, label_at);
        }
        StoreWide(d + column, values);
      });
}

// A block counts the classes of a row that come before its label.
template <typename T, int kWide>
__global__ void __launch_bounds__(kThreads)
    TokenScoreKernel(const T* __restrict__ logits, int columns, int classes, std::int64_t first_class,
                     const std::int32_t* __restrict__ labels, const float* __restrict__ lse,
                     const float* __restrict__ target, float* __restrict__ log_probability,
                     float* __restrict__ rank) {
  __shared__ float counts[kThreads / kWarp];
  const std::int64_t row = blockIdx.x;
  const std::int32_t label = labels[row];
  const float own = target[row];
  // Column of the first class that is not of a lower id.
  const std::int64_t lower = label - first_class;
  float before = 0;
  ForEachLogits<T, Form::kPlain, kWide, false, kThreads>(
      logits + row * columns, (classes + kWide - 1) / kWide, classes, Mapping(), nullptr, 0,
      [&](int column, const float(&values)[kWide]) {
#pragma unroll
        for (int i = 0; i < kWide; ++i) {
          const bool comes_before = values[i] > own || (values[i] == own && column + i < lower);
          before += column + i < classes && comes_before ? 1.0F : 0.0F;
        }
      });
  StoreWarpSum(before, counts);
  __syncthreads();
  if (threadIdx.x != 0) return;
  log_probability[row] = label >= 0 ? own - lse[row] : 0.0F;
  rank[row] = label >= 0 ? SumWarps<kThreads>(counts) : 0.0F;
}

__global__ void __launch_bounds__(kThreads)
    LossWeightKernel(const std::int32_t* __restrict__ labels, std::int64_t count, double scale,
                     const double* __restrict__ control, float* __restrict__ weight) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) weight[i] = labels[i] >= 0 ? static_cast<float>(scale * LabelScale(control)) : 0.0F;
}

__global__ void __launch_bounds__(kLossThreads)
    SumLossesKernel(const float* __restrict__ token_loss, std::int64_t rows, bool accumulate, double* loss) {
  __shared__ double shared[kLossThreads / kWarp];
  double sum = 0;
#pragma unroll 4
  for (std::int64_t i = threadIdx.x; i < rows; i += kLossThreads) sum += token_loss[i];
  sum = BlockSum<kLossThreads>(sum, shared);
  if (threadIdx.x == 0) *loss = accumulate ? *loss + sum : sum;
}

__global__ void __launch_bounds__(kThreads)
    LossSumKernel(const float* __restrict__ lse, const float* __restrict__ target,
                  const std::int32_t* __restrict__ labels, std::int64_t count, double z_loss,
                  double* __restrict__ partial) {
  __shared__ double shared[kThreads / kWarp];
  double sum = 0;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * kThreads;
#pragma unroll 4
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count;
       i += stride) {
    if (labels[i] < 0) continue;
    const auto log_sum = static_cast<double>(lse[i]);
    sum += log_sum - static_cast<double>(target[i]);
    if (z_loss != 0) sum += z_loss * log_sum * log_sum;
  }
  sum = BlockSum<kThreads>(sum, shared);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

int DeviceAttribute(cudaDeviceAttr attribute) {
  int device = 0;
  int value = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&value, attribute, device);
  return value;
}

// Bytes of dynamic shared memory that a block of `kernel` may have.
template <typename Kernel>
std::int64_t DynamicSharedBytes(Kernel* kernel, cudaFuncAttributes* attributes) {
  if (cudaFuncGetAttributes(attributes, kernel) != cudaSuccess) return 0;
  return DeviceAttribute(cudaDevAttrMaxSharedMemoryPerBlockOptin) -
         static_cast<std::int64_t>(attributes->sharedSizeBytes);
}

template <typename Kernel>
void AllowSharedBytes(Kernel* kernel, std::int64_t bytes) {
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
}

// False: the row is too large, or the kernel is not compiled for this device.
template <typename T, Form kForm>
bool LaunchHeldRows(const Logits& logits, const std::int32_t* labels, double scale, const LossTerms& terms,
                    const LogitMap& map, const double* control, float* token_loss, cudaStream_t stream) {
  const auto kernel = HeldRowsKernel<T, kForm>;
  const std::int64_t slot_bytes = (logits.columns * static_cast<std::int64_t>(sizeof(T)) + 127) / 128 * 128;
  cudaFuncAttributes attributes{};
  if (2 * slot_bytes > DynamicSharedBytes(kernel, &attributes) || attributes.ptxVersion < 90) return false;
  AllowSharedBytes(kernel, 2 * slot_bytes);
  const auto blocks = static_cast<unsigned>(
      std::min<std::int64_t>(logits.rows, DeviceAttribute(cudaDevAttrMultiProcessorCount)));
  kernel<<<blocks, kHoldThreads + kWarp, 2 * slot_bytes, stream>>>(
      static_cast<T*>(const_cast<void*>(logits.data)), logits.rows, static_cast<int>(logits.columns / 8),
      static_cast<int>(logits.classes), labels, scale, TermsOf(terms), MappingOf(map), control, token_loss);
  return true;
}

template <typename T, int kWide, Form kForm>
void LaunchRows(const Logits& logits, const std::int32_t* labels, double scale, const LossTerms& terms,
                const LogitMap& map, const double* control, float* token_loss, cudaStream_t stream) {
  const auto kernel = RowKernel<T, kWide, kForm>;
  cudaFuncAttributes attributes{};
  const std::int64_t pack_bytes = sizeof(Pack8<T>);
  const std::int64_t held =
      kWide == 1 ? 0 : std::min(logits.columns / 8, DynamicSharedBytes(kernel, &attributes) / pack_bytes);
  AllowSharedBytes(kernel, held * pack_bytes);
  kernel<<<static_cast<unsigned>(logits.rows), kRowThreads, held * pack_bytes, stream>>>(
      static_cast<T*>(const_cast<void*>(logits.data)), static_cast<int>(logits.columns),
      static_cast<int>(logits.classes), static_cast<int>(held), labels, scale, TermsOf(terms), MappingOf(map),
      control, token_loss);
}

// Calls body(T(), std::integral_constant<int, kWide>) for the logits' type and the width of their accesses.
template <typename Body>
void WithWidth(const Logits& logits, const Body& body) {
  WithElementType(logits.dtype, [&](auto type) {
    if (logits.columns % 8 == 0) {
      body(type, std::integral_constant<int, 8>());
    } else {
      body(type, std::integral_constant<int, 1>());
    }
  });
}

template <Form kForm>
using FormConstant = std::integral_constant<Form, kForm>;

// The same with a third argument, FormConstant of the plain form or of that with terms.
template <typename Body>
void WithTerms(const Logits& logits, const LossTerms& terms, const Body& body) {
  WithWidth(logits, [&](auto type, auto wide) {
    if (terms.any()) {
      body(type, wide, FormConstant<Form::kTerms>());
    } else {
      body(type, wide, FormConstant<Form::kPlain>());
    }
  });
}

// The same with any form.
template <typename Body>
void WithForm(const Logits& logits, const LossTerms& terms, const LogitMap& map, const Body& body) {
  if (!map.any()) return WithTerms(logits, terms, body);
  WithWidth(logits, [&](auto type, auto wide) { body(type, wide, FormConstant<Form::kMapped>()); });
}

}  // namespace

void CrossEntropyInPlace(const Logits& logits, const std::int32_t* labels, double scale,
                         const LossTerms& terms, const LogitMap& map, const double* control,
                         float* token_loss, cudaStream_t stream) {
  WithForm(logits, terms, map, [&](auto type, auto wide, auto form) {
    using T = decltype(type);
    constexpr int kWide = decltype(wide)::value;
    constexpr Form kForm = decltype(form)::value;
    if (kWide == 8 &&
        LaunchHeldRows<T, kForm>(logits, labels, scale, terms, map, control, token_loss, stream)) {
      return;
    }
    LaunchRows<T, kWide, kForm>(logits, labels, scale, terms, map, control, token_loss, stream);
  });
}

void SumLosses(const float* token_loss, std::int64_t rows, bool accumulate, double* loss,
               cudaStream_t stream) {
  SumLossesKernel<<<1, kLossThreads, 0, stream>>>(token_loss, rows, accumulate, loss);
}

void CrossEntropy(const Logits& logits, const std::int32_t* labels, const LossTerms& terms, float* lse,
                  float* target, cudaStream_t stream) {
  WithTerms(logits, terms, [&](auto type, auto wide, auto form) {
    using T = decltype(type);
    const auto kernel = CrossEntropyKernel<T, decltype(wide)::value, decltype(form)::value>;
    kernel<<<static_cast<unsigned>(logits.rows), kThreads, 0, stream>>>(
        static_cast<const T*>(logits.data), static_cast<int>(logits.columns),
        static_cast<int>(logits.classes), logits.first_class, labels, TermsOf(terms), lse, target);
  });
}

void CrossEntropyGrad(const Logits& logits, const std::int32_t* labels, const LossTerms& terms,
                      const float* lse, const float* weight, void* d_logits, cudaStream_t stream) {
  WithTerms(logits, terms, [&](auto type, auto wide, auto form) {
    using T = decltype(type);
    constexpr int kWide = decltype(wide)::value;
    constexpr std::int64_t kColumns = kThreads * kInFlight * kWide;
    const dim3 grid(static_cast<unsigned>(logits.rows),
                    static_cast<unsigned>((logits.columns + kColumns - 1) / kColumns));
    CrossEntropyGradKernel<T, kWide, decltype(form)::value>
        <<<grid, kThreads, 0, stream>>>(static_cast<const T*>(logits.data), static_cast<int>(logits.columns),
                                        static_cast<int>(logits.classes), logits.first_class, labels,
                                        TermsOf(terms), lse, weight, static_cast<T*>(d_logits));
  });
}

void TokenScore(const Logits& logits, const std::int32_t* labels, const float* lse, const float* target,
                float* log_probability, float* rank, cudaStream_t stream) {
  WithWidth(logits, [&](auto type, auto wide) {
    using T = decltype(type);
    TokenScoreKernel<T, decltype(wide)::value><<<static_cast<unsigned>(logits.rows), kThreads, 0, stream>>>(
        static_cast<const T*>(logits.data), static_cast<int>(logits.columns),
        static_cast<int>(logits.classes), logits.first_class, labels, lse, target, log_probability, rank);
  });
}

void LossWeight(const std::int32_t* labels, std::int64_t count, double scale, const double* control,
                float* weight, cudaStream_t stream) {
  LossWeightKernel<<<static_cast<unsigned>((count + kThreads - 1) / kThreads), kThreads, 0, stream>>>(
      labels, count, scale, control, weight);
}

void LossSum(const float* lse, const float* target, const std::int32_t* labels, std::int64_t count,
             double z_loss, bool accumulate, double* partial, int blocks, double* loss, cudaStream_t stream) {
  LossSumKernel<<<blocks, kThreads, 0, stream>>>(lse, target, labels, count, z_loss, partial);
  SumPartials(partial, blocks, accumulate, loss, stream);
}

}  // namespace engine::backend::cuda
