#include <cmath>

#include "engine/backend/cpu/kernels/kernels.h"
#include "engine/backend/cpu/kernels/loops.h"

namespace engine::backend::cpu {

// std::tanh: a tanh made of exp loses the relative accuracy of values that are small beside the cap, as most are.
template <typename T>
void Softcap(const KernelArgs& args) {
  const T* x = args.inputs[0].as<T>();
  T* y = args.outputs[0].as<T>();
  const T cap = static_cast<T>(args.attributes->Float("cap"));
  ForEachBlock(args, args.outputs[0].shape.elements(), kElementBlock,
               [&](std::int64_t first, std::int64_t last) {
                 for (std::int64_t i = first; i < last; ++i) y[i] = cap * std::tanh(x[i] / cap);
               });
}

template <typename T>
void SoftcapGrad(const KernelArgs& args) {
  const T* y = args.inputs[0].as<T>();
  const T* dy = args.inputs[1].as<T>();
  T* dx = args.outputs[0].as<T>();
  const T cap = static_cast<T>(args.attributes->Float("cap"));
  ForEachBlock(args, args.outputs[0].shape.elements(), kElementBlock,
               [&](std::int64_t first, std::int64_t last) {
                 for (std::int64_t i = first; i < last; ++i) {
                   const T share = y[i] / cap;
                   dx[i] = dy[i] * (T(1) - share * share);
                 }
               });
}

template void Softcap<float>(const KernelArgs&);
template void Softcap<double>(const KernelArgs&);
template void SoftcapGrad<float>(const KernelArgs&);
template void SoftcapGrad<double>(const KernelArgs&);

}  // namespace engine::backend::cpu
