#include "engine/backend/cpu/kernels/activations.h"
#include "engine/backend/cpu/kernels/kernels.h"
#include "engine/backend/cpu/kernels/loops.h"

namespace engine::backend::cpu {
namespace {

template <template <typename> typename Form, typename T>
void Forward(const KernelArgs& args) {
  const T* x = args.inputs[0].as<T>();
  T* y = args.outputs[0].as<T>();
  ForEachBlock(args, args.inputs[0].shape.elements(), kElementBlock,
               [&](std::int64_t first, std::int64_t last) {
                 for (std::int64_t i = first; i < last; ++i) y[i] = Form<T>::Value(x[i]);
               });
}

template <template <typename> typename Form, typename T>
void Backward(const KernelArgs& args) {
  const T* x = args.inputs[0].as<T>();
  const T* dy = args.inputs[1].as<T>();
  T* dx = args.outputs[0].as<T>();
  ForEachBlock(args, args.inputs[0].shape.elements(), kElementBlock,
               [&](std::int64_t first, std::int64_t last) {
                 for (std::int64_t i = first; i < last; ++i) dx[i] = dy[i] * Form<T>::Derivative(x[i]);
               });
}

}  // namespace

template <typename T>
void Gelu(const KernelArgs& args) {
  args.attributes->Int("tanh") != 0 ? Forward<TanhForm, T>(args) : Forward<ErfForm, T>(args);
}

template <typename T>
void GeluGrad(const KernelArgs& args) {
  args.attributes->Int("tanh") != 0 ? Backward<TanhForm, T>(args) : Backward<ErfForm, T>(args);
}

template void Gelu<float>(const KernelArgs&);
template void Gelu<double>(const KernelArgs&);
template void GeluGrad<float>(const KernelArgs&);
template void GeluGrad<double>(const KernelArgs&);

}  // namespace engine::backend::cpu
