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

}  // namespace

GpuCases FewRowsCases() {
  GpuCases cases;
  for (const FewRowsSizes& sizes : kFewRowsSizes) AddGatedRows(sizes, &cases);
  return cases;
}

}  // namespace engine::gpu_test
