#include <algorithm>
#include <type_traits>

#include "engine/backend/cuda/kernels/optimizer.h"
#include "engine/backend/cuda/kernels/update.cuh"
#include "engine/backend/cuda/kernels/vector.cuh"
#include "engine/plan/control.h"

namespace engine::backend::cuda {
namespace {

constexpr int kSumThreads = 1024;
constexpr int kInFlight = 4;  // packs of 8 elements that a thread loads before it uses the first

// Two chains, so that one addition need not wait for the last.
template <typename T>
__device__ __forceinline__ void AddSquares(const Pack8<T>& pack, double (&sums)[2]) {
  float values[8];
  Unpack8(pack, values);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const double value = values[i];
    sums[i % 2] = fma(value, value, sums[i % 2]);
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads, 4) SumSquaresKernel(const T* __restrict__ x, std::int64_t count,
                                                                bool aligned, double* __restrict__ partial) {
  __shared__ double shared[kThreads / kWarp];
  const std::int64_t packs = aligned ? count / 8 : 0;
  const std::int64_t stride = ThreadCount();
  double sums[2] = {0, 0};
  std::int64_t at = ThreadIndex();
  for (; at + (kInFlight - 1) * stride < packs; at += kInFlight * stride) {
    Pack8<T> pack[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) pack[i] = LoadPack8Streaming(x + (at + i * stride) * 8);
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) AddSquares(pack[i], sums);
  }
  for (; at < packs; at += stride) AddSquares(LoadPack8Streaming(x + at * 8), sums);
  for (std::int64_t i = packs * 8 + ThreadIndex(); i < count; i += ThreadCount()) {
    const double value = ToFloat(x[i]);
    sums[0] = fma(value, value, sums[0]);
  }
  const double sum = BlockSum<kThreads>(sums[0] + sums[1], shared);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kSumThreads)
    SumPartialsKernel(const double* __restrict__ partial, std::int64_t count, bool accumulate, double* out) {
  __shared__ double shared[kSumThreads / kWarp];
  double sum = 0;
  for (std::int64_t i = threadIdx.x; i < count; i += kSumThreads) sum += partial[i];
  sum = BlockSum<kSumThreads>(sum, shared);
  if (threadIdx.x == 0) *out = accumulate ? *out + sum : sum;
}

// The coefficient is that of Megatron-LM's clip_grad: clip / (norm + 1e-6), where it is below 1.
__global__ void ClipFactorKernel(const double* __restrict__ scalars, ClipOptions options, double* control) {
  plan::PickLearningRate(control);
  const double scale = control[plan::kLossScale];
  const double factor = control[plan::kGradientFactor];  // of the program
  const double norm = sqrt(scalars[1]) * factor / scale;
  control[plan::kGradientNorm] = norm;
  if (options.skips && !isfinite(norm)) {
    control[plan::kGradientFactor] = 0;
    control[plan::kSkipped] += 1;
    if (!options.dynamic) return;
    control[plan::kCleanIterations] = 0;
    control[plan::kHysteresis] -= 1;
    if (control[plan::kHysteresis] <= 0) control[plan::kLossScale] = fmax(scale * 0.5, options.min_scale);
    return;
  }
  control[plan::kStep] += 1;
  const double clipped = options.clip > 0 ? fmin(1.0, options.clip / (norm + 1e-6)) : 1.0;
  control[plan::kGradientFactor] = clipped * factor / scale;
  if (!options.dynamic) return;
  control[plan::kCleanIterations] += 1;
  if (control[plan::kCleanIterations] >= options.window) {
    control[plan::kCleanIterations] = 0;
    control[plan::kHysteresis] = options.hysteresis;
    control[plan::kLossScale] = scale * 2;
  }
}

struct AdamWStep {
  float beta1, beta2, rest1, rest2, correct1, correct2, rate, factor, epsilon, decay;
};

__device__ AdamWStep MakeStep(const AdamWOptions& options, const double* control) {
  const double step = control[plan::kStep];
  return {.beta1 = static_cast<float>(options.beta1),
          .beta2 = static_cast<float>(options.beta2),
          .rest1 = static_cast<float>(1 - options.beta1),
          .rest2 = static_cast<float>(1 - options.beta2),
          .correct1 = static_cast<float>(1 / (1 - pow(options.beta1, step))),
          .correct2 = static_cast<float>(1 / (1 - pow(options.beta2, step))),
          .rate = static_cast<float>(control[plan::kLearningRate] * options.learning_rate_scale),
          .factor = static_cast<float>(control[plan::kGradientFactor]),
          .epsilon = static_cast<float>(options.epsilon),
          .decay = static_cast<float>(options.weight_decay)};
}

__device__ __forceinline__ void Update(const AdamWStep& step, float grad, float& weight, float& m, float& v) {
  const float g = grad * step.factor;
  m = step.beta1 * m + step.rest1 * g;
  v = step.beta2 * v + step.rest2 * g * g;
  const float direction = m * step.correct1 / (sqrtf(v * step.correct2) + step.epsilon);
  weight -= step.rate * (direction + step.decay * weight);
}

__device__ __forceinline__ void Update(const AdamWStep& step, float4 grad, float4& weight, float4& m,
                                       float4& v) {
  Update(step, grad.x, weight.x, m.x, v.x);
  Update(step, grad.y, weight.y, m.y, v.y);
  Update(step, grad.z, weight.z, m.z, v.z);
  Update(step, grad.w, weight.w, m.w, v.w);
}

// Writes the moments m[4·at] to m[4·at + 3], and those of v; then single ones.
__device__ __forceinline__ void StoreMoments(float* m, float* v, std::int64_t at, const float4& new_m,
                                             const float4& new_v, const UpdateRounding&, std::uint64_t) {
  __stcg(reinterpret_cast<float4*>(m) + at, new_m);
  __stcg(reinterpret_cast<float4*>(v) + at, new_v);
}
__device__ __forceinline__ void StoreMoments(__nv_bfloat16* m, __nv_bfloat16* v, std::int64_t at,
                                             const float4& new_m, const float4& new_v,
                                             const UpdateRounding& rounding, std::uint64_t epoch) {
  const auto block = static_cast<std::uint64_t>(rounding.offset / 4 + at);
  const auto words = Philox4x32(rounding.states, block, epoch);
  __stcs(reinterpret_cast<uint2*>(m) + at, RoundedFour(new_m, words, 0));
  __stcs(reinterpret_cast<uint2*>(v) + at, RoundedFour(new_v, words, 16));
}
__device__ __forceinline__ void StoreMoment(float* m, float* v, std::int64_t i, float new_m, float new_v,
                                            const UpdateRounding&, std::uint64_t) {
  m[i] = new_m;
  v[i] = new_v;
}
__device__ __forceinline__ void StoreMoment(__nv_bfloat16* m, __nv_bfloat16* v, std::int64_t i, float new_m,
                                            float new_v, const UpdateRounding& rounding,
                                            std::uint64_t epoch) {
  const std::uint32_t word = Word(rounding.states, rounding.offset + i, epoch);
  m[i] = Rounded(new_m, word & 0xFFFFU);
  v[i] = Rounded(new_v, word >> 16);
}
// Blocks of AdamWKernel that a multiprocessor has room for.
template <typename W, typename M>
constexpr int kAdamWBlocks = sizeof(W) == 2   ? 2
                             : sizeof(M) == 2 ? 3
                                              : 4;

// W, G and M are the types of weights, gradients and moments, P that of the parameter, float if there is none
// beside the weights. `fast`: all pointers lie on 16 bytes, and the four elements of a Philox block lie
// together.
template <typename W, typename G, typename M, typename P>
__global__ void __launch_bounds__(kThreads, (kAdamWBlocks<W, M>))
    AdamWKernel(W* __restrict__ weights, const G* __restrict__ grad, M* __restrict__ m, M* __restrict__ v,
                P* __restrict__ parameter, std::int64_t count, bool fast, AdamWOptions options,
                UpdateRounding rounding, const double* __restrict__ control) {
  constexpr int kFours = 2;  // groups of 4 elements that a thread has in flight: 8 loads
  constexpr bool kDraws = sizeof(W) == 2 || sizeof(M) == 2;
  __shared__ AdamWStep shared;
  if (threadIdx.x == 0) shared = MakeStep(options, control);
  __syncthreads();
  const AdamWStep step = shared;
  if (step.factor == 0) return;
  const auto epoch = kDraws ? static_cast<std::uint64_t>(control[plan::kStep]) : 0;
  const std::int64_t fours = fast ? count / 4 : 0;
  for (std::int64_t first = ThreadIndex(); first < fours; first += kFours * ThreadCount()) {
    Four<G> g4[kFours];
    Four<W> w4[kFours];
    Four<M> m4[kFours];
    Four<M> v4[kFours];
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
      const std::int64_t at = first + i * ThreadCount();
      if (at >= fours) break;
      g4[i] = __ldcg(reinterpret_cast<const Four<G>*>(grad) + at);
      w4[i] = __ldcg(reinterpret_cast<const Four<W>*>(weights) + at);
      m4[i] = __ldcg(reinterpret_cast<const Four<M>*>(m) + at);
      v4[i] = __ldcg(reinterpret_cast<const Four<M>*>(v) + at);
    }
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
      const std::int64_t at = first + i * ThreadCount();
      if (at >= fours) break;
      auto&& new_w = ToFloats(w4[i]);
      auto&& new_m = ToFloats(m4[i]);
      auto&& new_v = ToFloats(v4[i]);
      Update(step, ToFloats(g4[i]), new_w, new_m, new_v);
      StoreWeights(weights, at, new_w, rounding, epoch);
      StoreMoments(m, v, at, new_m, new_v, rounding, epoch);
      if constexpr (sizeof(P) == 2) {
        reinterpret_cast<uint2*>(parameter)[at] = {PairFromFloat(P(), new_w.x, new_w.y),
                                                   PairFromFloat(P(), new_w.z, new_w.w)};
      }
    }
  }
  for (std::int64_t i = fours * 4 + ThreadIndex(); i < count; i += ThreadCount()) {
    float new_w = ToFloat(weights[i]);
    float new_m = ToFloat(m[i]);
    float new_v = ToFloat(v[i]);
    Update(step, ToFloat(grad[i]), new_w, new_m, new_v);
    StoreWeight(weights, i, new_w, rounding, epoch);
    StoreMoment(m, v, i, new_m, new_v, rounding, epoch);
    if constexpr (sizeof(P) == 2) parameter[i] = FromFloat<P>(new_w);
  }
}

__global__ void SetFlagKernel(int* flag) { *flag = 1; }

__device__ __forceinline__ bool Finite(double x) { return isfinite(x); }
template <typename T>
__device__ __forceinline__ bool Finite(T x) {
  return isfinite(ToFloat(x));
}

// Every block that finds something writes the same number.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    AllFiniteKernel(const T* __restrict__ x, std::int64_t count, int* finite) {
  bool clean = true;
#pragma unroll 8
  for (std::int64_t i = ThreadIndex(); i < count; i += ThreadCount()) clean &= Finite(x[i]);
  if (__syncthreads_or(clean ? 0 : 1) != 0 && threadIdx.x == 0) *finite = 0;
}

template <typename From, typename To>
__global__ void __launch_bounds__(kThreads)
    ConvertKernel(const From* __restrict__ from, To* __restrict__ to, std::int64_t count) {
  for (std::int64_t first = ThreadIndex(); first < count / 8; first += kInFlight * ThreadCount()) {
    Pack8<From> pack[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const std::int64_t at = first + i * ThreadCount();
      if (at < count / 8) pack[i] = LoadPack8Streaming(from + at * 8);
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const std::int64_t at = first + i * ThreadCount();
      if (at >= count / 8) break;
      float values[8];
      Unpack8(pack[i], values);
      Store8(to + at * 8, values);
    }
  }
  for (std::int64_t i = count / 8 * 8 + ThreadIndex(); i < count; i += ThreadCount()) {
    to[i] = FromFloat<To>(ToFloat(from[i]));
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    AddShardKernel(const T* __restrict__ x, std::int64_t count, bool accumulate, float* __restrict__ sum) {
  for (std::int64_t at = ThreadIndex(); at < count / 8; at += ThreadCount()) {
    float values[8];
    Unpack8(LoadPack8Streaming(x + at * 8), values);
    if (accumulate) {
      float before[8];
      Load8(sum + at * 8, before);
#pragma unroll
      for (int i = 0; i < 8; ++i) values[i] += before[i];
    }
    Store8(sum + at * 8, values);
  }
  for (std::int64_t i = count / 8 * 8 + ThreadIndex(); i < count; i += ThreadCount()) {
    sum[i] = ToFloat(x[i]) + (accumulate ? sum[i] : 0.0F);
  }
}

constexpr std::int64_t kManyBlocks = 2048;  // of the kernels whose grid changes no result

}  // namespace

void SumSquares(const void* x, DType dtype, std::int64_t count, bool accumulate, double* partial, int blocks,
                double* sum, cudaStream_t stream) {
  WithElementType(dtype, [&](auto type) {
    using T = decltype(type);
    SumSquaresKernel<T>
        <<<blocks, kThreads, 0, stream>>>(static_cast<const T*>(x), count, Aligned(x), partial);
  });
  SumPartials(partial, blocks, accumulate, sum, stream);
}

void SumPartials(const double* partial, std::int64_t count, bool accumulate, double* sum,
                 cudaStream_t stream) {
  SumPartialsKernel<<<1, kSumThreads, 0, stream>>>(partial, count, accumulate, sum);
}

void ClipFactor(const double* scalars, const ClipOptions& options, double* control, cudaStream_t stream) {
  ClipFactorKernel<<<1, 1, 0, stream>>>(scalars, options, control);
}

void AdamW(const UpdateBuffers& buffers, std::int64_t count, const AdamWOptions& options,
           const UpdateRounding& rounding, const double* control, int multiprocessors, cudaStream_t stream) {
  const bool fast = IsFast(buffers, rounding);
  WithUpdateTypes(buffers, [&](auto weight, auto grad, auto moment, auto parameter) {
    using W = decltype(weight);
    using G = decltype(grad);
    using M = decltype(moment);
    using P = decltype(parameter);
    const int blocks = Blocks(count, 8, std::int64_t{multiprocessors} * 2 * kAdamWBlocks<W, M>);
    AdamWKernel<W, G, M, P><<<blocks, kThreads, 0, stream>>>(
        static_cast<W*>(buffers.weights), static_cast<const G*>(buffers.grad),
        static_cast<M*>(buffers.states[0]), static_cast<M*>(buffers.states[1]),
        static_cast<P*>(buffers.parameter), count, fast, options, rounding, control);
  });
}

void AddShard(const void* x, DType dtype, std::int64_t count, bool accumulate, float* sum,
              cudaStream_t stream) {
  const int blocks = Blocks(count, 8, kManyBlocks);
  WithElementType(dtype, [&](auto type) {
    using T = decltype(type);
    AddShardKernel<<<blocks, kThreads, 0, stream>>>(static_cast<const T*>(x), count, accumulate, sum);
  });
}

void AllFinite(const void* x, DType dtype, std::int64_t count, int* finite, cudaStream_t stream) {
  SetFlagKernel<<<1, 1, 0, stream>>>(finite);
  const int blocks = Blocks(count, 8, kManyBlocks);
  if (dtype == DType::kF64) {
    AllFiniteKernel<<<blocks, kThreads, 0, stream>>>(static_cast<const double*>(x), count, finite);
    return;
  }
  WithElementType(dtype, [&](auto type) {
    using T = decltype(type);
    AllFiniteKernel<<<blocks, kThreads, 0, stream>>>(static_cast<const T*>(x), count, finite);
  });
}

void Convert(const void* from, DType from_dtype, void* to, DType to_dtype, std::int64_t count,
             cudaStream_t stream) {
  const int blocks = Blocks(count, 8 * kInFlight, kManyBlocks);
  WithElementType(from_dtype, [&](auto from_type) {
    WithElementType(to_dtype, [&](auto to_type) {
      using From = decltype(from_type);
      using To = decltype(to_type);
      ConvertKernel<<<blocks, kThreads, 0, stream>>>(static_cast<const From*>(from), static_cast<To*>(to),
                                                     count);
    });
  });
}

}  // namespace engine::backend::cuda
