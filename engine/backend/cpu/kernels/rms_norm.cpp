#include "engine/backend/cpu/kernels/kernels.h"
#include "engine/backend/cpu/kernels/norm_grad.h"
#include "engine/graph/gain.h"

namespace engine::backend::cpu {

template <typename T>
void RmsNorm(const KernelArgs& args) {
  const std::int64_t columns = args.inputs[1].shape.elements();
  const T* x = args.inputs[0].as<T>();
  const T* gamma = args.inputs[1].as<T>();
  T* y = args.outputs[0].as<T>();
  T* rstd = args.outputs[1].as<T>();
  const T epsilon = static_cast<T>(args.attributes->Float("epsilon"));
  const T offset = static_cast<T>(graph::GainOffset(*args.attributes));
  ForEachBlock(args, args.outputs[1].shape.elements(), kNormRows, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t r = first; r < last; ++r) {
      const T* in = x + r * columns;
      T* out = y + r * columns;
      const T square =
          SumOf<T>(columns, [&](std::int64_t i) { return in[i] * in[i]; }) / static_cast<T>(columns);
      const T scale = T(1) / std::sqrt(square + epsilon);
      for (std::int64_t i = 0; i < columns; ++i) out[i] = in[i] * scale * (gamma[i] + offset);
      rstd[r] = scale;
    }
  });
}

template <typename T>
void RmsNormGrad(const KernelArgs& args) {
  const std::int64_t columns = args.inputs[2].shape.elements();
  const T* dy = args.inputs[0].as<T>();
  const T* x = args.inputs[1].as<T>();
  const T* gamma = args.inputs[2].as<T>();
  const T* rstd = args.inputs[3].as<T>();
  T* dx = args.outputs[0].as<T>();
  const T offset = static_cast<T>(graph::GainOffset(*args.attributes));
  SumOverRows<1, T>(args, args.inputs[3].shape.elements(), columns, [&](std::int64_t r, T* d_gamma) {
    const T* d = dy + r * columns;
    const T* in = x + r * columns;
    T* out = dx + r * columns;
    const T scale = rstd[r];
    const T mean = SumOf<T>(columns, [&](std::int64_t i) { return d[i] * (gamma[i] + offset) * in[i]; }) /
                   static_cast<T>(columns);
    for (std::int64_t i = 0; i < columns; ++i) d_gamma[i] += d[i] * in[i] * scale;
    for (std::int64_t i = 0; i < columns; ++i) {
      out[i] = scale * (d[i] * (gamma[i] + offset) - in[i] * scale * scale * mean);
    }
  });
}

template void RmsNorm<float>(const KernelArgs&);
template void RmsNorm<double>(const KernelArgs&);
template void RmsNormGrad<float>(const KernelArgs&);
template void RmsNormGrad<double>(const KernelArgs&);

}  // namespace engine::backend::cpu
