#include "engine/backend/cpu/kernels/kernels.h"

namespace engine::backend::cpu {

template <typename T>
void RunningLoad(const KernelArgs& args) {
  const TensorView& count = args.inputs[0];
  const std::int64_t experts = count.shape[1];
  const T* before = args.inputs[1].as<T>();
  T* load = args.outputs[0].as<T>();
  const T iteration = static_cast<T>(args.context->iteration + 1);
  const bool goes_on = before[0] == iteration;
  load[1] = (goes_on ? before[1] : T(0)) + T(1);
  for (std::int64_t e = 0; e < experts; ++e) {
    T sum = goes_on ? before[2 + e] : T(0);
    for (std::int64_t g = 0; g < count.shape[0]; ++g) sum += count.as<T>()[g * experts + e];
    load[2 + e] = sum;
    args.outputs[1].as<T>()[e] = sum / load[1];
  }
  load[0] = iteration;
}

template void RunningLoad<float>(const KernelArgs&);
template void RunningLoad<double>(const KernelArgs&);

}  // namespace engine::backend::cpu
