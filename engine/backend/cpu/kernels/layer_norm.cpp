#include "engine/backend/cpu/kernels/kernels.h"
#include "engine/backend/cpu/kernels/norm_grad.h"
#include "engine/graph/gain.h"

namespace engine::backend::cpu {

std::int64_t NormGradScratch(Types, Types outputs, const graph::Attributes&) {
  const std::int64_t columns = outputs[1].shape.elements();
  const std::int64_t blocks = (outputs[0].shape.elements() / columns + kNormRows - 1) / kNormRows;
  return blocks * static_cast<std::int64_t>(outputs.size() - 1) * columns * SizeOf(outputs[1].dtype);
}

// The variance is summed over (x − μ)² in a second pass over the row, which is in cache.
template <typename T>
void LayerNorm(const KernelArgs& args) {
  const std::int64_t columns = args.inputs[1].shape.elements();
  const T* x = args.inputs[0].as<T>();
  const T* gamma = args.inputs[1].as<T>();
  const T* beta = args.inputs[2].as<T>();
  T* y = args.outputs[0].as<T>();
  T* mean = args.outputs[1].as<T>();
  T* rstd = args.outputs[2].as<T>();
  const T epsilon = static_cast<T>(args.attributes->Float("epsilon"));
  const T offset = static_cast<T>(graph::GainOffset(*args.attributes));
  ForEachBlock(args, args.outputs[1].shape.elements(), kNormRows, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t r = first; r < last; ++r) {
      const T* in = x + r * columns;
      T* out = y + r * columns;
      const T mu = SumOf<T>(columns, [&](std::int64_t i) { return in[i]; }) / static_cast<T>(columns);
      const T variance = SumOf<T>(columns, [&](std::int64_t i) { return (in[i] - mu) * (in[i] - mu); }) /
                         static_cast<T>(columns);
      const T scale = T(1) / std::sqrt(variance + epsilon);
      for (std::int64_t i = 0; i < columns; ++i) {
        out[i] = (in[i] - mu) * scale * (gamma[i] + offset) + beta[i];
      }
      mean[r] = mu;
      rstd[r] = scale;
    }
  });
}

template <typename T>
void LayerNormGrad(const KernelArgs& args) {
  const std::int64_t columns = args.inputs[2].shape.elements();
  const T* dy = args.inputs[0].as<T>();
  const T* x = args.inputs[1].as<T>();
  const T* gamma = args.inputs[2].as<T>();
  const T* mean = args.inputs[3].as<T>();
  const T* rstd = args.inputs[4].as<T>();
  T* dx = args.outputs[0].as<T>();
  const T offset = static_cast<T>(graph::GainOffset(*args.attributes));
  SumOverRows<2, T>(args, args.inputs[3].shape.elements(), columns, [&](std::int64_t r, T* sums) {
    const T* d = dy + r * columns;
    const T* in = x + r * columns;
    T* out = dx + r * columns;
    const T mu = mean[r];
    const T scale = rstd[r];
    const T n = static_cast<T>(columns);
    const T mean_d = SumOf<T>(columns, [&](std::int64_t i) { return d[i] * (gamma[i] + offset); }) / n;
    const T mean_dx =
        SumOf<T>(columns,
                 [&](std::int64_t i) { return d[i] * (gamma[i] + offset) * ((in[i] - mu) * scale); }) /
        n;
    T* d_gamma = sums;
    T* d_beta = sums + columns;
    for (std::int64_t i = 0; i < columns; ++i) {
      const T normed = (in[i] - mu) * scale;
      d_gamma[i] += d[i] * normed;
      d_beta[i] += d[i];
    }
    for (std::int64_t i = 0; i < columns; ++i) {
      out[i] = scale * (d[i] * (gamma[i] + offset) - mean_d - (in[i] - mu) * scale * mean_dx);
    }
  });
}

template void LayerNorm<float>(const KernelArgs&);
template void LayerNorm<double>(const KernelArgs&);
template void LayerNormGrad<float>(const KernelArgs&);
template void LayerNormGrad<double>(const KernelArgs&);

}  // namespace engine::backend::cpu
