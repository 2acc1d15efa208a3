#include "engine/backend/cuda/kernels/expert_activation.h"

#include <algorithm>

#include "engine/backend/cuda/kernels/activations.cuh"
#include "engine/backend/cuda/kernels/elementwise.cuh"
#include "engine/backend/cuda/kernels/expert_rows.cuh"

namespace engine::backend::cuda {
namespace {

constexpr int kThreads = kElementwiseThreads;

// A thread has kWidth of a row's F elements, which are a multiple of them.
template <typename T, int kWidth, graph::Activation kAct, bool kGated, bool kTurns>
__global__ void __launch_bounds__(kThreads)
    ExpertActivationKernel(std::int64_t elements, std::int64_t ffn, const T* __restrict__ h,
                           const float* __restrict__ weight, const std::int32_t* __restrict__ choice_of,
                           T* __restrict__ y) {
  const std::int64_t step = std::int64_t{gridDim.x} * kThreads * kWidth;
  for (std::int64_t at = (std::int64_t{blockIdx.x} * kThreads + threadIdx.x) * kWidth; at < elements;
       at += step) {
    std::int64_t column;
    const std::int64_t row = Divide(at, ffn, &column);
    const RowKind kind = KindOfRow(choice_of, row);
    if (kind == RowKind::kBehind) return;
    float out[kWidth] = {};
    if (kind == RowKind::kChosen) {
      const float p = weight[choice_of[row]];
      float up[kWidth];
      if constexpr (kGated) {
        LoadElements(h + row * 2 * ffn + column, out);
        LoadElements(h + (row * 2 + 1) * ffn + column, up);
      } else {
        LoadElements(h + at, out);
      }
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        float value;
        float derivative;
        ActivationOf<kAct, sizeof(T) == 4>(out[i], &value, &derivative);
        out[i] = (kGated ? value * up[i] : value) * p;
      }
    }
    StoreElements(y + at, out);
    if constexpr (!kTurns) return;
  }
}

// A warp a row, whose lanes add up the weight's gradient each over its own elements, and then together. dh may be h; y, what
// the forward kernel gives, is null where nobody wants it.
template <typename T, int kWidth, graph::Activation kAct, bool kGated>
__device__ __forceinline__ void RowGradient(std::int64_t row, RowKind kind, std::int64_t ffn, const T* h,
                                            const float* __restrict__ weight,
                                            const std::int32_t* __restrict__ choice_of,
                                            const T* __restrict__ dy, T* dh, float* __restrict__ d_weight,
                                            T* __restrict__ y) {
  constexpr int kPlanes = kGated ? 2 : 1;
  const int first = static_cast<int>(threadIdx.x % kWarp) * kWidth;
  T* const to = dh + row * kPlanes * ffn;
  if (kind == RowKind::kZero) {
    constexpr float kZeros[kWidth] = {};
    for (std::int64_t f = first; f < kPlanes * ffn; f += kWarp * kWidth) StoreElements(to + f, kZeros);
    if (y == nullptr) return;
    for (std::int64_t f = first; f < ffn; f += kWarp * kWidth) StoreElements(y + row * ffn + f, kZeros);
    return;
  }
  const std::int32_t choice = choice_of[row];
  const float p = weight[choice];
  const T* const from = h + row * kPlanes * ffn;
  float sum = 0;
  for (std::int64_t f = first; f < ffn; f += kWarp * kWidth) {
    float gate[kWidth];
    float up[kWidth];
    float d[kWidth];
    float again[kWidth];
    LoadElements(from + f, gate);
    if constexpr (kGated) LoadElements(from + ffn + f, up);
    LoadElements(dy + row * ffn + f, d);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      float value;
      float derivative;
      ActivationOf<kAct, sizeof(T) == 4>(gate[i], &value, &derivative);
      const float u = kGated ? up[i] : 1.0F;
      sum += d[i] * value * u;
      again[i] = (kGated ? value * u : value) * p;
      gate[i] = d[i] * p * u * derivative;
      up[i] = d[i] * p * value;
    }
    if (y != nullptr) StoreElements(y + row * ffn + f, again);
    StoreElements(to + f, gate);
    if constexpr (kGated) StoreElements(to + ffn + f, up);
  }
  sum = WarpSum(sum);
  if (first == 0) d_weight[choice] = sum;
}

template <typename T, int kWidth, graph::Activation kAct, bool kGated, bool kTurns>
__global__ void __launch_bounds__(kThreads)
    ExpertActivationGradKernel(std::int64_t rows, std::int64_t ffn, const T* h,
                               const float* __restrict__ weight, const std::int32_t* __restrict__ choice_of,
                               const T* __restrict__ dy, T* dh, float* __restrict__ d_weight,
                               T* __restrict__ y) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * (kThreads / kWarp);
  for (std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * (kThreads / kWarp) + threadIdx.x / kWarp;
       row < rows; row += step) {
    const RowKind kind = KindOfRow(choice_of, row);
    if (kind == RowKind::kBehind) return;
    RowGradient<T, kWidth, kAct, kGated>(row, kind, ffn, h, weight, choice_of, dy, dh, d_weight, y);
    if constexpr (!kTurns) return;
  }
}

unsigned AtMost(const ExpertActivationRows& rows, std::int64_t blocks) {
  return static_cast<unsigned>(rows.most_blocks > 0 ? std::min(blocks, rows.most_blocks) : blocks);
}

// Calls launch(element type, width, activation, whether it is gated), each as a constant.
template <typename Launch>
void WithForm(const ExpertActivationRows& rows, const Launch& launch) {
  graph::WithActivation<graph::kExpertActivations>(rows.act, [&](auto act) {
    WithElementType(rows.dtype, [&](auto element) {
      const auto with_width = [&](auto width) {
        rows.gated ? launch(element, width, act, std::true_type())
                   : launch(element, width, act, std::false_type());
      };
      rows.ffn % 8 == 0 ? with_width(std::integral_constant<int, 8>())
                        : with_width(std::integral_constant<int, 1>());
    });
  });
}

}  // namespace

void LaunchExpertActivation(const ExpertActivationRows& rows, void* y, cudaStream_t stream) {
  const std::int64_t elements = rows.rows * rows.ffn;
  if (elements == 0) return;
  WithForm(rows, [&](auto element, auto width, auto act, auto gated) {
    using T = decltype(element);
    constexpr int kWidth = decltype(width)::value;
    constexpr auto kAct = decltype(act)::value;
    constexpr bool kGated = decltype(gated)::value;
    const auto kernel = rows.most_blocks > 0 ? ExpertActivationKernel<T, kWidth, kAct, kGated, true>
                                             : ExpertActivationKernel<T, kWidth, kAct, kGated, false>;
    kernel<<<AtMost(rows, ElementwiseBlocks(elements, kWidth)), kThreads, 0, stream>>>(
        elements, rows.ffn, static_cast<const T*>(rows.h), rows.weight, rows.choice_of, static_cast<T*>(y));
  });
}

void LaunchExpertActivationGrad(const ExpertActivationRows& rows, const void* dy, void* dh, float* d_weight,
                                std::int64_t choices, void* y, cudaStream_t stream) {
  if (choices > 0) cudaMemsetAsync(d_weight, 0, static_cast<std::size_t>(choices) * sizeof(float), stream);
  if (rows.rows * rows.ffn == 0) return;
  WithForm(rows, [&](auto element, auto width, auto act, auto gated) {
    using T = decltype(element);
    constexpr int kWidth = decltype(width)::value;
    constexpr auto kAct = decltype(act)::value;
    constexpr bool kGated = decltype(gated)::value;
    const auto kernel = rows.most_blocks > 0 ? ExpertActivationGradKernel<T, kWidth, kAct, kGated, true>
                                             : ExpertActivationGradKernel<T, kWidth, kAct, kGated, false>;
    kernel<<<AtMost(rows, CeilDivide(rows.rows, kThreads / kWarp)), kThreads, 0, stream>>>(
        rows.rows, rows.ffn, static_cast<const T*>(rows.h), rows.weight, rows.choice_of,
        static_cast<const T*>(dy), static_cast<T*>(dh), d_weight, static_cast<T*>(y));
  });
}

}  // namespace engine::backend::cuda
