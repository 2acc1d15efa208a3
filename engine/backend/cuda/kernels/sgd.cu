#include "engine/backend/cuda/kernels/optimizer.h"
#include "engine/backend/cuda/kernels/update.cuh"
#include "engine/backend/cuda/kernels/vector.cuh"
#include "engine/plan/control.h"

namespace engine::backend::cuda {
namespace {

struct SgdStep {
  float momentum, rate, factor, decay;
};

__device__ SgdStep MakeStep(const SgdOptions& options, const double* control) {
  return {.momentum = static_cast<float>(options.momentum),
          .rate = static_cast<float>(control[plan::kLearningRate] * options.learning_rate_scale),
          .factor = static_cast<float>(control[plan::kGradientFactor]),
          .decay = static_cast<float>(options.weight_decay)};
}

__device__ __forceinline__ void Update(const SgdStep& step, float grad, float& weight, float& momentum) {
  momentum = step.momentum * momentum + (grad * step.factor + step.decay * weight);
  weight -= step.rate * momentum;
}

__device__ __forceinline__ void Update(const SgdStep& step, float4 grad, float4& weight, float4& momentum) {
  Update(step, grad.x, weight.x, momentum.x);
  Update(step, grad.y, weight.y, momentum.y);
  Update(step, grad.z, weight.z, momentum.z);
  Update(step, grad.w, weight.w, momentum.w);
}

// Writes the state s[4·at] to s[4·at + 3]; then a single one.
__device__ __forceinline__ void StoreState(float* s, std::int64_t at, const float4& new_s,
                                           const UpdateRounding&, std::uint64_t) {
  __stcg(reinterpret_cast<float4*>(s) + at, new_s);
}
__device__ __forceinline__ void StoreState(__nv_bfloat16* s, std::int64_t at, const float4& new_s,
                                           const UpdateRounding& rounding, std::uint64_t epoch) {
  const auto block = static_cast<std::uint64_t>(rounding.offset / 4 + at);
  __stcs(reinterpret_cast<uint2*>(s) + at, RoundedFour(new_s, Philox4x32(rounding.states, block, epoch), 0));
}
__device__ __forceinline__ void StoreOneState(float* s, std::int64_t i, float new_s, const UpdateRounding&,
                                              std::uint64_t) {
  s[i] = new_s;
}
__device__ __forceinline__ void StoreOneState(__nv_bfloat16* s, std::int64_t i, float new_s,
                                              const UpdateRounding& rounding, std::uint64_t epoch) {
  s[i] = Rounded(new_s, Word(rounding.states, rounding.offset + i, epoch) & 0xFFFFU);
}

// Blocks of SgdKernel that a multiprocessor has room for: draws for weights and momentum take more registers.
template <typename W, typename M>
constexpr int kSgdBlocks = sizeof(W) == 2 && sizeof(M) == 2 ? 3 : 4;

// As AdamWKernel (optimizer.cu), with one state.
template <typename W, typename G, typename M, typename P>
__global__ void __launch_bounds__(kThreads, (kSgdBlocks<W, M>))
    SgdKernel(W* __restrict__ weights, const G* __restrict__ grad, M* __restrict__ momentum,
              P* __restrict__ parameter, std::int64_t count, bool fast, SgdOptions options,
              UpdateRounding rounding, const double* __restrict__ control) {
  constexpr int kFours = 2;  // groups of 4 elements that a thread has in flight: 6 loads
  constexpr bool kDraws = sizeof(W) == 2 || sizeof(M) == 2;
  const SgdStep step = MakeStep(options, control);
  if (step.factor == 0) return;
  const auto epoch = kDraws ? static_cast<std::uint64_t>(control[plan::kStep]) : 0;
  const std::int64_t fours = fast ? count / 4 : 0;
  for (std::int64_t first = ThreadIndex(); first < fours; first += kFours * ThreadCount()) {
    Four<G> g4[kFours];
    Four<W> w4[kFours];
    Four<M> m4[kFours];
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
      const std::int64_t at = first + i * ThreadCount();
      if (at >= fours) break;
      g4[i] = __ldcg(reinterpret_cast<const Four<G>*>(grad) + at);
      w4[i] = __ldcg(reinterpret_cast<const Four<W>*>(weights) + at);
      m4[i] = __ldcg(reinterpret_cast<const Four<M>*>(momentum) + at);
    }
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
      const std::int64_t at = first + i * ThreadCount();
      if (at >= fours) break;
      auto&& new_w = ToFloats(w4[i]);
      auto&& new_m = ToFloats(m4[i]);
      Update(step, ToFloats(g4[i]), new_w, new_m);
      StoreWeights(weights, at, new_w, rounding, epoch);
      StoreState(momentum, at, new_m, rounding, epoch);
      if constexpr (sizeof(P) == 2) {
        reinterpret_cast<uint2*>(parameter)[at] = {PairFromFloat(P(), new_w.x, new_w.y),
                                                   PairFromFloat(P(), new_w.z, new_w.w)};
      }
    }
  }
  for (std::int64_t i = fours * 4 + ThreadIndex(); i < count; i += ThreadCount()) {
    float new_w = ToFloat(weights[i]);
    float new_m = ToFloat(momentum[i]);
    Update(step, ToFloat(grad[i]), new_w, new_m);
    StoreWeight(weights, i, new_w, rounding, epoch);
    StoreOneState(momentum, i, new_m, rounding, epoch);
    if constexpr (sizeof(P) == 2) parameter[i] = FromFloat<P>(new_w);
  }
}

}  // namespace

void Sgd(const UpdateBuffers& buffers, std::int64_t count, const SgdOptions& options,
         const UpdateRounding& rounding, const double* control, int multiprocessors, cudaStream_t stream) {
  const bool fast = IsFast(buffers, rounding);
  WithUpdateTypes(buffers, [&](auto weight, auto grad, auto state, auto parameter) {
    using W = decltype(weight);
    using G = decltype(grad);
    using M = decltype(state);
    using P = decltype(parameter);
    const int blocks = Blocks(count, 8, std::int64_t{multiprocessors} * 2 * kSgdBlocks<W, M>);
    SgdKernel<W, G, M, P><<<blocks, kThreads, 0, stream>>>(
        static_cast<W*>(buffers.weights), static_cast<const G*>(buffers.grad),
        static_cast<M*>(buffers.states[0]), static_cast<P*>(buffers.parameter), count, fast, options,
        rounding, control);
  });
}

}  // namespace engine::backend::cuda
