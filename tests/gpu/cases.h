// What the kernels are run on: the cases of the CPU's harness, and larger ones of the shapes of real models.
#pragma once

#include <functional>
#include <initializer_list>
#include <optional>
#include <vector>

#include "tests/gpu/gpu.h"
#include "tests/ops/cases.h"

namespace engine::gpu_test {

inline const std::vector<DType> kFloats = {DType::kF32, DType::kBF16, DType::kF16};
inline const std::vector<DType> kNarrow = {DType::kBF16, DType::kF16};

// Half the distance of neighbouring numbers near 1: the relative error of rounding to the dtype.
constexpr double UnitRoundoff(DType dtype) {
  return dtype == DType::kBF16  ? 0x1p-8
         : dtype == DType::kF16 ? 0x1p-11
         : dtype == DType::kF32 ? 0x1p-24
                                : 0x1p-53;
}

struct GpuCase {
  ops_test::Case base;
  std::function<void(Tensors*)> adjust = nullptr;  // changes the inputs, in f64
  std::vector<DType> dtypes = kFloats;
  // Absolute error of an output beside its own rounding and the fp32 sums: of numbers that are rounded to the
  // dtype on the way, and of approximations. Null: none.
  std::function<double(size_t output, DType dtype, const Tensors& inputs, const Tensors& expected)> extra =
      nullptr;
  // Output 0 holds these indices of dim `slice_dim` of a logical tensor, which has `logical_rows` of them.
  std::optional<Interval> slice = std::nullopt;
  int slice_dim = 0;
  std::int64_t logical_rows = 0;
};
using GpuCases = std::vector<GpuCase>;

// The op on f64 inputs with the CPU kernels. A fused op is its composition; an output that the composition
// reads again is read as the dtype rounds it.
Tensors Reference(const GpuCase& test, const Tensors& inputs, const std::vector<graph::TensorType>& types);

// Activations of experts and their gradients: inputs are rows, but for input 1, the weights of choices.
bool IsExpertActivation(const graph::OpDef& op);

// The input keeps fp32 whatever the dtype of the case: statistics, and what is of routers.
bool IsStatistic(const ops_test::Case& test, size_t input);

// Labels of attention's cases of a part of the heads; the last input is their sinks, or their biases by distance.
inline constexpr const char* kSliceOfHeads = "heads 3 to 5 of 12";
inline constexpr const char* kBiasedSliceOfHeads = "heads 3 to 5 of 12, biases by distance";

inline ops_test::Input Make(const Shape& shape, ops_test::Input::Kind kind, std::int64_t limit = 0) {
  ops_test::Input input;
  input.shape = shape;
  input.kind = kind;
  input.limit = limit;
  return input;
}

// Makes an input of at least three dims a part of a larger tensor: its samples begin at 1, and its sequence is two pieces of a
// longer one, as a rank of context parallelism has it.
std::function<void(Tensors*)> InPieces(size_t input);

// The op by the CPU's kernels, on up to 16 threads.
Tensors RunOnCpu(const graph::OpDef& op, const graph::Attributes& attributes, const Tensors& inputs);

// Absolute error of the gradient of biases by distance by our own kernels, beside the fp32 sums: they sum gradients of scores as
// rounded for the other products, each of which is off by u of itself, and so are Σ_U d_o·o of a rounded o. These are sums
// of many such errors of either sign, as the gradients are sums of many scores' of either sign.
inline double BiasGradExtra(DType dtype, const Tensor& expected) {
  return 6 * UnitRoundoff(dtype) * ops_test::Scale(expected);
}

// Absolute error of an output of attention, or of its gradient, by cuDNN or by our own kernels for Hopper, beside its own
// rounding and the fp32 sums (attention_cases.cpp). `more`: relative error of a probability beside its rounding; `mass`: the
// largest sum of a key's probabilities, negative: not known yet.
double CudnnExtra(const graph::Attributes& attributes, bool backward, bool summed, size_t output, DType dtype,
                  const Tensors& inputs, const Tensors& expected, double more = 0, double mass = -1);

// Appends the harness' own cases of these ops.
void AddCommon(std::initializer_list<const graph::OpDef*> ops, GpuCases* cases);

GpuCases LinearCases();
GpuCases ElementwiseCases();
GpuCases NormCases();
GpuCases TokenCases();
GpuCases AttentionCases();
GpuCases OwnAttentionCases(std::int64_t head);  // of 64, 96 or 128
GpuCases FilledAttentionCases();                // likewise, of heads that are filled up
GpuCases DocumentAttentionCases();
GpuCases OtherOwnAttentionCases();  // of wide heads, and those filled up to 96
GpuCases LatentAttentionCases();
GpuCases CacheCases();
GpuCases LossCases();
GpuCases FusedCases();    // with FewRowsCases
GpuCases FewRowsCases();  // of fused ops
GpuCases ExpertCases();
GpuCases ExpertPassCases();
// The CPU harness' own cases of the ops that none of the lists above has.
GpuCases OtherCases();

}  // namespace engine::gpu_test
