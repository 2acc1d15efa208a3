// Tensors that own their bytes, and running one op on them with the CPU kernels.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "engine/backend/kernel.h"
#include "engine/graph/op.h"

namespace engine::ops_test {

class Tensor {
 public:
  Tensor() = default;
  // A whole tensor; every byte is 0xFF, which is NaN in the floating-point types.
  explicit Tensor(const graph::TensorType& type) : Tensor(type, Extent::Whole(type.shape), type.shape) {}
  // A shard of a tensor of shape `logical`.
  Tensor(const graph::TensorType& type, Extent extent, Shape logical);

  double Get(std::int64_t i) const;
  void Set(std::int64_t i, double value);
  std::int64_t elements() const { return type_.shape.elements(); }
  const graph::TensorType& type() const { return type_; }
  backend::TensorView View() const;
  bool SameBytes(const Tensor& other) const { return bytes_ == other.bytes_; }
  // The same values in float64, if these are floats.
  Tensor Widened() const;

 private:
  graph::TensorType type_;
  Extent extent_;
  Shape logical_;
  std::vector<std::byte> bytes_;
};

using Tensors = std::vector<Tensor>;

struct RunOptions {
  std::uint32_t accumulate = 0;
  int threads = 1;
  double loss_scale = 1;  // of the control block
  int in_place_input =
      -1;  // reads this input from the bytes of output 0, which the caller has filled with it
};

// Fixed in all tests: seed, iteration, and a first sample other than 0.
inline constexpr std::uint64_t kSeed = 1234;
inline constexpr std::uint64_t kIteration = 7;
inline constexpr std::int64_t kFirstSample = 3;

// Runs the op into `outputs`, which keep what they hold where the kernel does not write.
void RunInto(std::string_view op, const graph::Attributes& attributes, const Tensors& inputs,
             Tensors* outputs, const RunOptions& options = {});

// Runs the op into fresh outputs of the types that it infers.
Tensors RunOp(const graph::OpDef& op, const graph::Attributes& attributes, const Tensors& inputs,
              const RunOptions& options = {});

std::vector<graph::TensorType> TypesOf(const Tensors& tensors);

}  // namespace engine::ops_test
