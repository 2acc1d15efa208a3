#include "engine/backend/cpu/kernels/kernels.h"
#include "engine/backend/cpu/kernels/loops.h"
#include "engine/backend/cpu/kernels/rotation.h"

namespace engine::backend::cpu {
namespace {

template <typename T>
void TurnHeads(const KernelArgs& args, bool inverse) {
  const Shape& shape = args.inputs[0].shape;
  const std::int64_t heads = shape[2];
  const std::int64_t head = shape[3];
  const T* x = args.inputs[0].as<T>();
  const std::int32_t* positions = args.inputs[1].as<std::int32_t>();
  T* y = args.outputs[0].as<T>();
  const graph::RotaryTable table = graph::RotaryTableOf(*args.attributes, head);
  ForEachBlock(args, shape[0] * shape[1], kRotationRows, [&](std::int64_t first, std::int64_t last) {
    Rotation rotation(table, inverse);
    for (std::int64_t token = first; token < last; ++token) {
      rotation.MoveTo(positions[token]);
      for (std::int64_t h = token * heads; h < (token + 1) * heads; ++h)
        rotation.Apply(x + h * head, y + h * head, head);
    }
  });
}

}  // namespace

template <typename T>
void Rotate(const KernelArgs& args) {
  TurnHeads<T>(args, /*inverse=*/false);
}

template <typename T>
void RotateGrad(const KernelArgs& args) {
  TurnHeads<T>(args, /*inverse=*/true);
}

template void Rotate<float>(const KernelArgs&);
template void Rotate<double>(const KernelArgs&);
template void RotateGrad<float>(const KernelArgs&);
template void RotateGrad<double>(const KernelArgs&);

}  // namespace engine::backend::cpu
