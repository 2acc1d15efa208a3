#include "engine/backend/cpu/kernels/activations.h"
#include "engine/backend/cpu/kernels/kernels.h"
#include "engine/backend/cpu/kernels/loops.h"

namespace engine::backend::cpu {
namespace {

// of_row(gate, row): row `row` of F elements, whose gate is gate[0…F) and whose up projection lies behind it.
template <typename T, typename OfRow>
void ForEachGate(const KernelArgs& args, const Shape& y, const OfRow& of_row) {
  const std::int64_t ffn = y[y.rank() - 1];
  const T* x = args.inputs[0].as<T>();
  ForEachBlock(args, y.elements() / ffn, std::max<std::int64_t>(1, kElementBlock / ffn),
               [&](std::int64_t first, std::int64_t last) {
                 for (std::int64_t row = first; row < last; ++row) of_row(x + row * 2 * ffn, row);
               });
}

}  // namespace

template <typename T>
void Glu(const KernelArgs& args) {
  const Shape& shape = args.outputs[0].shape;
  const std::int64_t ffn = shape[shape.rank() - 1];
  T* y = args.outputs[0].as<T>();
  graph::WithActivation<graph::kGateKinds>(args.attributes->String("kind"), [&](auto kind) {
    using Form = ActivationForm<kind.value>;
    ForEachGate<T>(args, shape, [&](const T* gate, std::int64_t row) {
      const T* up = gate + ffn;
      T* out = y + row * ffn;
      for (std::int64_t i = 0; i < ffn; ++i) out[i] = Form::Value(gate[i]) * up[i];
    });
  });
}

template <typename T>
void GluGrad(const KernelArgs& args) {
  const Shape& shape = args.inputs[1].shape;
  const std::int64_t ffn = shape[shape.rank() - 1];
  const T* dy = args.inputs[1].as<T>();
  T* dx = args.outputs[0].as<T>();
  graph::WithActivation<graph::kGateKinds>(args.attributes->String("kind"), [&](auto kind) {
    using Form = ActivationForm<kind.value>;
    ForEachGate<T>(args, shape, [&](const T* gate, std::int64_t row) {
      const T* up = gate + ffn;
      const T* d = dy + row * ffn;
      T* d_gate = dx + row * 2 * ffn;
      T* d_up = d_gate + ffn;
      for (std::int64_t i = 0; i < ffn; ++i) {
        d_gate[i] = d[i] * up[i] * Form::Derivative(gate[i]);
        d_up[i] = d[i] * Form::Value(gate[i]);
      }
    });
  });
}

template void Glu<float>(const KernelArgs&);
template void Glu<double>(const KernelArgs&);
template void GluGrad<float>(const KernelArgs&);
template void GluGrad<double>(const KernelArgs&);

}  // namespace engine::backend::cpu
