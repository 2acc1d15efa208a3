// Cases of products of few rows with what stands beside them, in one kernel (kernels/few_rows.h): numbers of rows that fill one or
// two tiles or end within one, terms that end within a step of 32, columns that end within a block's.
#include <fmt/format.h>

#include <array>
#include <cmath>
#include <string>

#include "engine/graph/activation.h"
#include "engine/ops/fused.h"
#include "tests/gpu/cases.h"

namespace engine::gpu_test {
namespace {

using graph::Attributes;
using graph::OpDef;
using ops_test::Input;

struct FewRowsSizes {
  std::int64_t rows, in, out;
};
constexpr std::array kFewRowsSizes = {FewRowsSizes{1, 4096, 40}, FewRowsSizes{1, 64, 8},
                                      FewRowsSizes{3, 768, 24},  FewRowsSizes{8, 40, 13},
                                      FewRowsSizes{9, 136, 36},  FewRowsSizes{16, 320, 17}};

// Weights are scaled so that products have a variance near 0.75².
GpuCase* AddFewRowsCase(const OpDef& op, const std::string& label, const FewRowsSizes& sizes,
                        const std::vector<Input>& inputs, const Attributes& attributes, GpuCases* cases) {
  cases->push_back({.base = {&op, fmt::format("{}{} rows, {} to {}", label, sizes.rows, sizes.in, sizes.out),
                             inputs, attributes, sizes.in + 1, true}});
  cases->back().dtypes = kNarrow;
  cases->back().adjust = [in = sizes.in](Tensors* made) {
    Tensor& w = (*made)[1];
    for (std::int64_t i = 0; i < w.elements(); ++i) w.Set(i, w.Get(i) / std::sqrt(static_cast<double>(in)));
  };
  return &cases->back();
}

// Sums of the gate and of the up projection are off as the harness says, by e; y by e times |up| and the slope of the activation,
// 1.13 at most, and by e times |activation(gate)|: both below 6.
void AddGatedRows(const FewRowsSizes& sizes, GpuCases* cases) {
  const Shape x = {sizes.rows, 1, sizes.in};
  const Shape w = {2, sizes.out, sizes.in};
  const auto add = [&](const std::string& label, const std::vector<Input>& inputs,
                       const Attributes& attributes) {
    GpuCase* const test = AddFewRowsCase(ops::kLinearGated, label, sizes, inputs, attributes, cases);
    test->extra = [terms = static_cast<double>(sizes.in)](size_t, DType, const Tensors&, const Tensors&) {
      return 0x1p-24 * (terms + 16) * 13;
    };
  };
  const Attributes plain = {{"in_dims", kOne}};
  add("silu, ", {{x}, {w}}, plain);
  add("silu, biased, ", {{x}, {w}, {{2, sizes.out}}}, plain);
  for (const graph::ActivationKind& kind : graph::kGateKinds) {
    Attributes attributes = plain;
    attributes.Set("kind", std::string(kind.name));
    add(std::string(kind.name) + ", ", {{x}, {w}, {{2, sizes.out}}}, attributes);
  }
}

void AddResidualRows(const FewRowsSizes& sizes, GpuCases* cases) {
  const Shape x = {sizes.rows, 1, sizes.in};
  const Shape y = {sizes.rows, 1, sizes.out};
  const Shape w = {sizes.out, sizes.in};
  const Attributes attributes = {{"in_dims", kOne}};
  AddFewRowsCase(ops::kLinearResidual, "", sizes, {{x}, {w}, {y}}, attributes, cases);
  AddFewRowsCase(ops::kLinearResidual, "biased, ", sizes, {{x}, {w}, {y}, {{sizes.out}}}, attributes, cases);
}

// The norm is rounded before it is multiplied: each of its numbers, which are near 1, is off by u of itself at most and by 0.4·u as
// a standard deviation; the weights' is 0.87/√in, so that a sum is off by 0.4·0.87·u times the gain's root mean square, 0.9, or
// 1.3 with an offset of 1. Ten of these deviations bound it. What is behind the sum multiplies that by at most 1.13, a gate by
// 6: |up| and |activation(gate)| are below 5, but not both where both sums are off the most.
void AddNormedRows(const FewRowsSizes& sizes, GpuCases* cases) {
  const Shape x = {sizes.rows, 1, sizes.in};
  const Shape features = {sizes.in};
  for (const bool layer : {false, true}) {
    for (const std::string behind : {"nothing", "gelu", "gate"}) {
      const bool gated = behind == "gate";
      const Shape w = gated ? Shape{2, sizes.out, sizes.in} : Shape{sizes.out, sizes.in};
      const Shape bias = gated ? Shape{2, sizes.out} : Shape{sizes.out};
      for (const bool biased : {false, true}) {
        Attributes attributes = {{"in_dims", kOne}, {"epsilon", 1e-5}};
        if (layer) attributes.Set("layer", kOne);
        if (behind != "nothing") attributes.Set(behind, kOne);
        if (behind == "gelu") attributes.Set("tanh", std::int64_t{biased});
        if (gated && biased) attributes.Set("kind", std::string("gelu_erf"));
        if (sizes.rows == 3) attributes.Set("gain_offset", 1.0);
        std::vector<Input> inputs = {{x}, {w}, {features}};
        if (layer) inputs.push_back({features});
        if (biased) inputs.push_back({bias});
        GpuCase* const test = AddFewRowsCase(
            ops::kNormLinear,
            fmt::format("{}, {}{}, ", layer ? "layer" : "rms", behind, biased ? ", biased" : ""), sizes,
            inputs, attributes, cases);
        const double gain = sizes.rows == 3 ? 1.5 : 1.0;
        test->extra = [gated, gain, terms = static_cast<double>(sizes.in)](size_t, DType dtype,
                                                                           const Tensors&, const Tensors&) {
          const double of_product = 3.2 * gain * UnitRoundoff(dtype) + 0x1p-24 * (terms + 16) * 2 * gain;
          return of_product * (gated ? 6 : 1.13);
        };
      }
    }
  }
}

}  // namespace

GpuCases FewRowsCases() {
  GpuCases cases;
  for (const FewRowsSizes& sizes : kFewRowsSizes) {
    AddGatedRows(sizes, &cases);
    AddResidualRows(sizes, &cases);
    AddNormedRows(sizes, &cases);
  }
  // Each number of warps that share a row, and the longest rows that are normalised: more shared memory than is there unasked.
  for (const FewRowsSizes& sizes :
       {FewRowsSizes{2, 1024, 24}, FewRowsSizes{5, 264, 16}, FewRowsSizes{1, 16384, 24}}) {
    AddNormedRows(sizes, &cases);
  }
  return cases;
}

}  // namespace engine::gpu_test
