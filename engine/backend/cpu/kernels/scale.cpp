#include "engine/backend/cpu/kernels/kernels.h"
#include "engine/backend/cpu/kernels/loops.h"

namespace engine::backend::cpu {

template <typename T>
void Scale(const KernelArgs& args) {
  const T* x = args.inputs[0].as<T>();
  T* y = args.outputs[0].as<T>();
  const T by = static_cast<T>(args.attributes->Float("by"));
  ForEachBlock(args, args.outputs[0].shape.elements(), kElementBlock,
               [&](std::int64_t first, std::int64_t last) {
                 for (std::int64_t i = first; i < last; ++i) y[i] = by * x[i];
               });
}

template void Scale<float>(const KernelArgs&);
template void Scale<double>(const KernelArgs&);

}  // namespace engine::backend::cpu
