#include "engine/backend/cpu/kernels/kernels.h"
#include "engine/backend/cpu/kernels/loops.h"

namespace engine::backend::cpu {

template <typename T>
void Multiply(const KernelArgs& args) {
  const T* a = args.inputs[0].as<T>();
  const T* b = args.inputs[1].as<T>();
  T* y = args.outputs[0].as<T>();
  ForEachBlock(args, args.outputs[0].shape.elements(), kElementBlock,
               [&](std::int64_t first, std::int64_t last) {
                 for (std::int64_t i = first; i < last; ++i) y[i] = a[i] * b[i];
               });
}

template void Multiply<float>(const KernelArgs&);
template void Multiply<double>(const KernelArgs&);

}  // namespace engine::backend::cpu
