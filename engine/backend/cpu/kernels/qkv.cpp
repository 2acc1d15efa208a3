#include <cstddef>

#include "engine/backend/cpu/kernels/kernels.h"
#include "engine/backend/cpu/kernels/loops.h"
#include "engine/backend/cpu/kernels/rotation.h"

namespace engine::backend::cpu {
namespace {

// Null where nothing is rotated and there are none.
const std::int32_t* PositionsOf(const KernelArgs& args, std::size_t input) {
  return args.inputs.size() > input ? args.inputs[input].as<std::int32_t>() : nullptr;
}

}  // namespace

template <typename T>
void QkvSplit(const KernelArgs& args) {
  const Shape& shape = args.inputs[0].shape;
  const std::int64_t groups = shape[2];
  const std::int64_t queries = shape[3] - 2;
  const std::int64_t head = shape[4];
  const T* packed = args.inputs[0].as<T>();
  const std::int32_t* positions = PositionsOf(args, 1);
  T* q = args.outputs[0].as<T>();
  T* k = args.outputs[1].as<T>();
  T* v = args.outputs[2].as<T>();
  const graph::RotaryTable table = graph::OptionalRotaryTableOf(*args.attributes, head);
  ForEachBlock(args, shape[0] * shape[1], kRotationRows, [&](std::int64_t first, std::int64_t last) {
    Rotation rotation(table, /*inverse=*/false);
    for (std::int64_t token = first; token < last; ++token) {
      if (positions != nullptr) rotation.MoveTo(positions[token]);
      for (std::int64_t group = token * groups; group < (token + 1) * groups; ++group) {
        const T* in = packed + group * (queries + 2) * head;
        for (std::int64_t j = 0; j < queries; ++j) {
          rotation.Apply(in + j * head, q + (group * queries + j) * head, head);
        }
        rotation.Apply(in + queries * head, k + group * head, head);
        std::copy_n(in + (queries + 1) * head, head, v + group * head);
      }
    }
  });
}

template <typename T>
void QkvMerge(const KernelArgs& args) {
  const Shape& shape = args.outputs[0].shape;
  const std::int64_t groups = shape[2];
  const std::int64_t queries = shape[3] - 2;
  const std::int64_t head = shape[4];
  const T* dq = args.inputs[0].as<T>();
  const T* dk = args.inputs[1].as<T>();
  const T* dv = args.inputs[2].as<T>();
  const std::int32_t* positions = PositionsOf(args, 3);
  T* packed = args.outputs[0].as<T>();
  const graph::RotaryTable table = graph::OptionalRotaryTableOf(*args.attributes, head);
  ForEachBlock(args, shape[0] * shape[1], kRotationRows, [&](std::int64_t first, std::int64_t last) {
    Rotation rotation(table, /*inverse=*/true);
    for (std::int64_t token = first; token < last; ++token) {
      if (positions != nullptr) rotation.MoveTo(positions[token]);
      for (std::int64_t group = token * groups; group < (token + 1) * groups; ++group) {
        T* out = packed + group * (queries + 2) * head;
        for (std::int64_t j = 0; j < queries; ++j) {
          rotation.Apply(dq + (group * queries + j) * head, out + j * head, head);
        }
        rotation.Apply(dk + group * head, out + queries * head, head);
        std::copy_n(dv + group * head, head, out + (queries + 1) * head);
      }
    }
  });
}

template void QkvSplit<float>(const KernelArgs&);
template void QkvSplit<double>(const KernelArgs&);
template void QkvMerge<float>(const KernelArgs&);
template void QkvMerge<double>(const KernelArgs&);

}  // namespace engine::backend::cpu
