#include "engine/backend/cpu/kernels/activations.h"
#include "engine/backend/cpu/kernels/kernels.h"
#include "engine/backend/cpu/kernels/loops.h"

namespace engine::backend::cpu {

template <typename T>
void Activation(const KernelArgs& args) {
  const T* x = args.inputs[0].as<T>();
  T* y = args.outputs[0].as<T>();
  graph::WithActivation<graph::kActivationKinds>(args.attributes->String("kind"), [&](auto kind) {
    using Form = ActivationForm<kind.value>;
    ForEachBlock(args, args.inputs[0].shape.elements(), kElementBlock,
                 [&](std::int64_t first, std::int64_t last) {
                   for (std::int64_t i = first; i < last; ++i) y[i] = Form::Value(x[i]);
                 });
  });
}

template <typename T>
void ActivationGrad(const KernelArgs& args) {
  const T* x = args.inputs[0].as<T>();
  const T* dy = args.inputs[1].as<T>();
  T* dx = args.outputs[0].as<T>();
  graph::WithActivation<graph::kActivationKinds>(args.attributes->String("kind"), [&](auto kind) {
    using Form = ActivationForm<kind.value>;
    ForEachBlock(args, args.inputs[0].shape.elements(), kElementBlock,
                 [&](std::int64_t first, std::int64_t last) {
                   for (std::int64_t i = first; i < last; ++i) dx[i] = dy[i] * Form::Derivative(x[i]);
                 });
  });
}

template void Activation<float>(const KernelArgs&);
template void Activation<double>(const KernelArgs&);
template void ActivationGrad<float>(const KernelArgs&);
template void ActivationGrad<double>(const KernelArgs&);

}  // namespace engine::backend::cpu
