// What a kernel is given: local tensors with their logical extents, the node's attributes, and where in the
// training it runs. The same for every backend.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "engine/base/dtype.h"
#include "engine/base/extent.h"
#include "engine/base/shape.h"
#include "engine/graph/graph.h"

namespace engine::backend {

struct TensorView {
  void* data = nullptr;  // row-major, 64-byte aligned
  DType dtype = DType::kF32;
  Shape shape;    // local
  Extent extent;  // logical indices behind the local ones, per dim
  Shape logical;  // sizes of the whole logical tensor

  template <typename T>
  T* as() const {
    return static_cast<T*>(data);
  }
};

// Runs body(i) for i in [0, tasks), on however many threads the rank owns. The result may not depend on their
// number: a kernel cuts its work into tasks by shape alone, and every task writes its own output elements.
using ParallelFor = std::function<void(std::int64_t tasks, const std::function<void(std::int64_t)>& body)>;

struct KernelContext {
  const double* control = nullptr;  // the control block (plan/control.h), in the device's memory
  std::uint64_t seed = 0;
  std::uint64_t iteration = 0;
  std::int64_t first_sample = 0;  // index in the global batch of logical element 0 of dim 0
  const ParallelFor* parallel_for = nullptr;
};

struct KernelArgs {
  std::span<const TensorView> inputs;
  std::span<const TensorView> outputs;
  const graph::Attributes* attributes = nullptr;
  std::uint32_t accumulate = 0;  // bit i: add into what output i holds, instead of overwriting it
  // Bytes a kernel may scribble on while it runs: what the profile's scratch rule asked for this instruction.
  std::span<std::byte> scratch;
  const KernelContext* context = nullptr;
};

}  // namespace engine::backend
