#include "engine/backend/cpu/kernels/activations.h"
#include "engine/backend/cpu/kernels/kernels.h"
#include "engine/backend/cpu/kernels/loops.h"

namespace engine::backend::cpu {

template <typename T>
void ExpertActivation(const KernelArgs& args) {
  const TensorView& y = args.outputs[0];
  const std::int64_t width = y.shape[1];
  const bool gated = args.attributes->Int("gated") != 0;
  const std::int64_t stride = gated ? 2 * width : width;
  const T* weight = args.inputs[1].as<T>();
  const auto* choice_of = args.inputs[2].as<std::int32_t>();
  const auto run = [&](auto act) {
    using Form = ActivationForm<decltype(act)::value>;
    ForEachBlock(args, y.shape[0], 64, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t row = first; row < last; ++row) {
        T* to = y.as<T>() + row * width;
        if (choice_of[row] < 0) {
          std::fill_n(to, width, T(0));
          continue;
        }
        const T* h = args.inputs[0].as<T>() + row * stride;
        const T p = weight[choice_of[row]];
        for (std::int64_t f = 0; f < width; ++f)
          to[f] = Form::template Value<T>(h[f]) * (gated ? h[width + f] : T(1)) * p;
      }
    });
  };
  graph::WithActivation<graph::kExpertActivations>(args.attributes->String("act"), run);
}

template <typename T>
void ExpertActivationGrad(const KernelArgs& args) {
  const TensorView& dy = args.inputs[3];
  const std::int64_t width = dy.shape[1];
  const bool gated = args.attributes->Int("gated") != 0;
  const std::int64_t stride = gated ? 2 * width : width;
  const T* weight = args.inputs[1].as<T>();
  const auto* choice_of = args.inputs[2].as<std::int32_t>();
  T* d_weight = args.outputs[1].as<T>();
  std::fill_n(d_weight, args.outputs[1].shape.elements(), T(0));
  const auto run = [&](auto act) {
    using Form = ActivationForm<decltype(act)::value>;
    ForEachBlock(args, dy.shape[0], 64, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t row = first; row < last; ++row) {
        T* dh = args.outputs[0].as<T>() + row * stride;
        if (choice_of[row] < 0) {
          std::fill_n(dh, stride, T(0));
          continue;
        }
        const T* h = args.inputs[0].as<T>() + row * stride;
        const T* d = dy.as<T>() + row * width;
        const T p = weight[choice_of[row]];
        const auto up = [&](std::int64_t f) { return gated ? h[width + f] : T(1); };
        d_weight[choice_of[row]] =
            SumOf<T>(width, [&](std::int64_t f) { return d[f] * Form::template Value<T>(h[f]) * up(f); });
        for (std::int64_t f = 0; f < width; ++f) {  // dh may be h
          const T gate = d[f] * p * up(f) * Form::template Derivative<T>(h[f]);
          if (gated) dh[width + f] = d[f] * p * Form::template Value<T>(h[f]);
          dh[f] = gate;
        }
      }
    });
  };
  graph::WithActivation<graph::kExpertActivations>(args.attributes->String("act"), run);
}

template void ExpertActivation<float>(const KernelArgs&);
template void ExpertActivation<double>(const KernelArgs&);
template void ExpertActivationGrad<float>(const KernelArgs&);
template void ExpertActivationGrad<double>(const KernelArgs&);

}  // namespace engine::backend::cpu
