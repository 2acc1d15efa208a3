// One kernel on the GPU, through the backend: inputs packed into its dtypes, everything else poisoned, every
// byte that it should not write checked.
#pragma once

#include <string>
#include <vector>

#include "engine/backend/cuda/launch/cuda_backend.h"
#include "tests/ops/tensor.h"

namespace engine::gpu_test {

using ops_test::Tensor;
using ops_test::Tensors;

inline constexpr std::int64_t kOne = 1;  // of attributes, which are no int

// Opened once, with one arena for all tests.
backend::cuda::CudaBackend& Gpu();

struct Output {
  graph::TensorType type;
  Extent extent;
  Shape logical;
  int alias = -1;  // the input whose bytes it shares

  static Output Whole(const graph::TensorType& type) {
    return {.type = type, .extent = Extent::Whole(type.shape), .logical = type.shape};
  }
};

struct Problem {
  std::string where;  // for messages
  std::string kernel;
  const graph::OpDef* op = nullptr;  // null: a flat kernel
  graph::Attributes attributes;
  Tensors inputs;                   // f64 or i32; the values must be numbers of the dtypes below
  std::vector<DType> input_dtypes;  // on the GPU
  std::vector<Output> outputs;
  std::uint32_t accumulate = 0;  // these outputs hold Before(i) when the kernel starts
  double loss_scale = 1;
  double label_factor = 1;
  int state = -1;    // an input that the kernel may write to
  int part_of = -1;  // the input that lacks `part`, another rank's, of its shape and dtype
  Tensor part = {};
  int poison = 0xFF;  // what scratch is filled with; outputs hold 0xFF, NaN
};

struct Outcome {
  Tensors outputs;                            // f64 or i32
  Tensor state;                               // Problem::state after the kernel, in f64
  std::vector<std::vector<std::byte>> bytes;  // as they lie on the GPU
};

// Element i of an output that accumulates, before the kernel adds to it.
inline double Before(std::int64_t i) { return 0.125 * static_cast<double>(1 + i % 9); }

// Errors: what the backend says; a byte written outside of the outputs, with the tensor that it belongs to.
absl::StatusOr<Outcome> Launch(const Problem& problem);

// The nearest numbers of the dtype, in float64.
Tensor Rounded(const Tensor& tensor, DType dtype);

// As the GPU has them.
std::vector<std::byte> PackedBytes(const Tensor& tensor, DType dtype);

// |actual − expected| ≤ relative · |expected| + absolute
struct Tolerance {
  double relative = 0;
  double absolute = 0;
};
// One failed check with the worst element, where any is beyond the tolerance or NaN.
void Compare(const std::string& where, const Tensor& expected, const Tensor& actual, Tolerance tolerance);

}  // namespace engine::gpu_test
