#include <algorithm>

#include "engine/backend/cpu/kernels/kernels.h"
#include "engine/backend/cpu/kernels/loops.h"

namespace engine::backend::cpu {

template <typename T>
void Relu2(const KernelArgs& args) {
  const T* x = args.inputs[0].as<T>();
  T* y = args.outputs[0].as<T>();
  ForEachBlock(args, args.inputs[0].shape.elements(), kElementBlock,
               [&](std::int64_t first, std::int64_t last) {
                 for (std::int64_t i = first; i < last; ++i) {
                   const T positive = std::max(x[i], T(0));
                   y[i] = positive * positive;
                 }
               });
}

template <typename T>
void Relu2Grad(const KernelArgs& args) {
  const T* x = args.inputs[0].as<T>();
  const T* dy = args.inputs[1].as<T>();
  T* dx = args.outputs[0].as<T>();
  ForEachBlock(args, args.inputs[0].shape.elements(), kElementBlock,
               [&](std::int64_t first, std::int64_t last) {
                 for (std::int64_t i = first; i < last; ++i) dx[i] = T(2) * std::max(x[i], T(0)) * dy[i];
               });
}

template void Relu2<float>(const KernelArgs&);
template void Relu2<double>(const KernelArgs&);
template void Relu2Grad<float>(const KernelArgs&);
template void Relu2Grad<double>(const KernelArgs&);

}  // namespace engine::backend::cpu
