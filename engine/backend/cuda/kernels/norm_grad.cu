#include "engine/backend/cuda/kernels/norm_grad.cuh"

#include <type_traits>

namespace engine::backend::cuda {
namespace {

constexpr int kPlainThreads = 256;

template <int kVectors>
using CutOf =
    std::conditional_t<kVectors == 1, NarrowCut, std::conditional_t<kVectors == 2, MiddleCut, WideCut>>;

// Any number of columns: a block to a row at a time, the sums over its rows in its line of scratch. A thread
// keeps to its own columns.
template <typename T>
__global__ void __launch_bounds__(kPlainThreads) PlainNormGradKernel(NormGrad grad) {
  __shared__ float shared[kPlainThreads / kWarp];
  const bool layer = grad.mean != nullptr;
  const bool bias = grad.d_bias != nullptr;
  const std::int64_t columns = grad.columns;
  const int sums = 1 + (layer ? 1 : 0) + (bias ? 1 : 0);
  const auto* gamma = static_cast<const T*>(grad.gamma);
  const auto* beta = static_cast<const T*>(grad.beta);  // only if y is wanted
  float* d_gamma = grad.partial + blockIdx.x * sums * columns;
  float* d_beta = d_gamma + columns;               // only if layer
  float* d_bias = d_gamma + (sums - 1) * columns;  // only if bias
  for (std::int64_t i = threadIdx.x; i < columns; i += kPlainThreads) {
    d_gamma[i] = 0;
    if (layer) d_beta[i] = 0;
    if (bias) d_bias[i] = 0;
  }
  for (std::int64_t row = blockIdx.x; row < grad.rows; row += gridDim.x) {
    const T* dy = static_cast<const T*>(grad.dy) + row * columns;
    const T* x = static_cast<const T*>(grad.x) + row * columns;
    const T* residual = static_cast<const T*>(grad.residual) + row * columns;
    T* dx = static_cast<T*>(grad.dx) + row * columns;
    T* y = static_cast<T*>(grad.y) + row * columns;
    const float mean = layer ? grad.mean[row] : 0.0F;
    const float rstd = grad.rstd[row];
    float plain = 0;
    float with_normed = 0;
    for (std::int64_t i = threadIdx.x; i < columns; i += kPlainThreads) {
      const float d = ToFloat(dy[i]);
      const float normed = Normed<true>(ToFloat(x[i]), mean, rstd);
      const float scaled = d * (ToFloat(gamma[i]) + grad.gain_offset);
      plain += scaled;
      with_normed += scaled * normed;
      d_gamma[i] += d * normed;
      if (layer) d_beta[i] += d;
    }
    const float mean_plain =
        layer ? BlockSum<kPlainThreads>(plain, shared) / static_cast<float>(columns) : 0.0F;
    const float mean_normed = BlockSum<kPlainThreads>(with_normed, shared) / static_cast<float>(columns);
    for (std::int64_t i = threadIdx.x; i < columns; i += kPlainThreads) {
      const float normed = Normed<true>(ToFloat(x[i]), mean, rstd);
      const float scale = ToFloat(gamma[i]) + grad.gain_offset;
      if (grad.y != nullptr) {
        y[i] = FromFloat<T>(layer ? NormOutput<true>(normed, scale, ToFloat(beta[i]))
                                  : NormOutput<false>(normed, scale, 0.0F));
      }
      float value = rstd * (ToFloat(dy[i]) * scale - mean_plain - normed * mean_normed);
      if (grad.residual != nullptr) value += ToFloat(residual[i]);
      dx[i] = FromFloat<T>(value);
      if (bias) d_bias[i] += Rounded<T>(value);
    }
  }
}

// False: the rows do not fit into this device's shared memory.
template <typename T, int kVectors, bool kLayer, bool kResidual, bool kBias, bool kAgain, bool kPart = false>
bool LaunchRows(const NormGrad& grad, const NormGradGrid& grid, cudaStream_t stream) {
  using Cut = CutOf<kVectors>;
  using Rows = NormGradRows<T, Cut, kLayer, kResidual, kBias, kAgain, kPart>;
  constexpr int kThreads = kVectors == 1 ? kNormGradNarrowThreads : kNormGradMaxThreads;
  const std::int64_t bytes = Cut::kStages * Cut::kRows * (kResidual ? 3 : 2) * grad.columns *
                             static_cast<std::int64_t>(sizeof(T));  // the ring
  int device = 0;
  int most = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  if (bytes + static_cast<std::int64_t>(sizeof(typename Rows::Shared)) > most) return false;
  const auto kernel = NormGradKernel<T, Cut, kThreads, kLayer, kResidual, kBias, kAgain, kPart>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  kernel<<<static_cast<unsigned>(grid.blocks), grid.threads, bytes, stream>>>(grad);
  return true;
}

template <typename T, int kVectors, bool kLayer>
bool LaunchRowsOf(const NormGrad& grad, const NormGradGrid& grid, cudaStream_t stream) {
  const bool bias = grad.d_bias != nullptr;
  if (grad.residual == nullptr) {
    return LaunchRows<T, kVectors, kLayer, false, false, false>(grad, grid, stream);
  }
  if constexpr (kVectors == 1) {
    if (grad.part != nullptr) {
      return bias ? LaunchRows<T, 1, kLayer, true, true, false, true>(grad, grid, stream)
                  : LaunchRows<T, 1, kLayer, true, false, false, true>(grad, grid, stream);
    }
  }
  if (grad.y != nullptr) {
    return bias ? LaunchRows<T, kVectors, kLayer, true, true, true>(grad, grid, stream)
                : LaunchRows<T, kVectors, kLayer, true, false, true>(grad, grid, stream);
  }
  return bias ? LaunchRows<T, kVectors, kLayer, true, true, false>(grad, grid, stream)
              : LaunchRows<T, kVectors, kLayer, true, false, false>(grad, grid, stream);
}

template <typename T, int kVectors>
bool LaunchVectors(const NormGrad& grad, const NormGradGrid& grid, cudaStream_t stream) {
  return grad.mean != nullptr ? LaunchRowsOf<T, kVectors, true>(grad, grid, stream)
                              : LaunchRowsOf<T, kVectors, false>(grad, grid, stream);
}

template <typename T>
void LaunchNormGradOf(const NormGrad& grad, const NormGradGrid& grid, cudaStream_t stream) {
  const bool launched = grid.vectors == 1   ? LaunchVectors<T, 1>(grad, grid, stream)
                        : grid.vectors == 2 ? LaunchVectors<T, 2>(grad, grid, stream)
                        : grid.vectors == 4 ? LaunchVectors<T, 4>(grad, grid, stream)
                                            : false;
  if (!launched) {
    PlainNormGradKernel<T><<<static_cast<unsigned>(grid.blocks), kPlainThreads, 0, stream>>>(grad);
  }
}

}  // namespace

void LaunchNormGrad(const NormGrad& grad, cudaStream_t stream) {
  const NormGradGrid grid = MakeNormGradGrid(grad.rows, grad.columns);
  if (grad.rows > 0) {
    WithElementType(grad.dtype,
                    [&](auto element) { LaunchNormGradOf<decltype(element)>(grad, grid, stream); });
  }
  AddNormGradLines(grad, grid.blocks, stream);
}

}  // namespace engine::backend::cuda
