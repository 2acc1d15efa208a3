#include "engine/backend/cpu/kernels/kernels.h"
#include "engine/backend/cpu/kernels/loops.h"

namespace engine::backend::cpu {

template <typename T>
void Swiglu(const KernelArgs& args) {
  const Shape& shape = args.outputs[0].shape;
  const std::int64_t ffn = shape[shape.rank() - 1];
  const T* x = args.inputs[0].as<T>();
  T* y = args.outputs[0].as<T>();
  ForEachBlock(args, shape.elements() / ffn, std::max<std::int64_t>(1, kElementBlock / ffn),
               [&](std::int64_t first, std::int64_t last) {
                 for (std::int64_t row = first; row < last; ++row) {
                   const T* gate = x + row * 2 * ffn;
                   const T* up = gate + ffn;
                   T* out = y + row * ffn;
                   for (std::int64_t i = 0; i < ffn; ++i) out[i] = gate[i] * Sigmoid(gate[i]) * up[i];
                 }
               });
}

template <typename T>
void SwigluGrad(const KernelArgs& args) {
  const Shape& shape = args.inputs[1].shape;
  const std::int64_t ffn = shape[shape.rank() - 1];
  const T* x = args.inputs[0].as<T>();
  const T* dy = args.inputs[1].as<T>();
  T* dx = args.outputs[0].as<T>();
  ForEachBlock(args, shape.elements() / ffn, std::max<std::int64_t>(1, kElementBlock / ffn),
               [&](std::int64_t first, std::int64_t last) {
                 for (std::int64_t row = first; row < last; ++row) {
                   const T* gate = x + row * 2 * ffn;
                   const T* up = gate + ffn;
                   const T* d = dy + row * ffn;
                   T* d_gate = dx + row * 2 * ffn;
                   T* d_up = d_gate + ffn;
                   for (std::int64_t i = 0; i < ffn; ++i) {
                     const T s = Sigmoid(gate[i]);
                     d_gate[i] = d[i] * up[i] * s * (T(1) + gate[i] * (T(1) - s));
                     d_up[i] = d[i] * gate[i] * s;
                   }
                 }
               });
}

template void Swiglu<float>(const KernelArgs&);
template void Swiglu<double>(const KernelArgs&);
template void SwigluGrad<float>(const KernelArgs&);
template void SwigluGrad<double>(const KernelArgs&);

}  // namespace engine::backend::cpu
