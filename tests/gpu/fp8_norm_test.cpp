// Norms and their gradients that quantise what they make, against the plain ones in float64.
#include <doctest/doctest.h>

#include <cmath>

#include "engine/backend/cuda/profile/quantize_grid.h"
#include "engine/ops/fused.h"
#include "engine/ops/ops.h"
#include "tests/gpu/fp8_testing.h"

namespace engine::gpu_test {

namespace {

// Rows of norms: shorter and longer than a strip, the sizes of models, and one that does not fit a strip.
const std::vector<std::pair<std::int64_t, std::int64_t>> kNormSizes = {{16, 16},    {48, 768},  {272, 1280},
                                                                       {144, 2048}, {80, 4096}, {1040, 128},
                                                                       {96, 5120},  {32, 8192}, {16, 16384}};

// fp32 sums along a row: a lane adds D/32 numbers, then five steps over the warp and its neighbours: (D/32 +
// 32) roundings of 2⁻²⁴ of values of at most `scale`, a factor 4 for the products around them.
double NormError(std::int64_t columns, double scale) {
  return 4 * 0x1p-24 * (static_cast<double>(columns) / 32 + 32) * scale;
}

std::vector<graph::TensorType> TypesIn(const Tensors& tensors, const std::vector<DType>& dtypes) {
  std::vector<graph::TensorType> types;
  for (size_t i = 0; i < tensors.size(); ++i) types.push_back({tensors[i].type().shape, dtypes[i]});
  return types;
}

Attributes WithGainOffset(double offset) {
  Attributes attributes = {{"epsilon", 1e-5}};
  if (offset != 0) attributes.Set("gain_offset", offset);
  return attributes;
}

void CheckAddNorm(bool layer, DType narrow, DType format, std::int64_t rows, std::int64_t columns,
                  double gain_offset = 0) {
  const Shape shape = {1, rows, columns};
  Tensors inputs = {Uniform(shape, narrow), Uniform(shape, narrow, 1), Uniform({columns}, narrow, 2)};
  if (layer) inputs.push_back(Uniform({columns}, narrow, 3));
  const Quantisation of{.op = layer ? &ops::kAddLayerNormQuantize : &ops::kAddRmsNormQuantize,
                        .narrow = narrow,
                        .format = format,
                        .rows = rows,
                        .columns = columns,
                        .attributes = WithGainOffset(gain_offset)};
  GpuCase plain;
  plain.base.op = layer ? &ops::kAddLayerNorm : &ops::kAddRmsNorm;
  plain.base.attributes = of.attributes;
  const auto types =
      plain.base.op->infer(TypesIn(inputs, std::vector<DType>(inputs.size(), narrow)), of.attributes);
  REQUIRE_MESSAGE(types.ok(), Message(types.status()));
  const Tensors expected = Reference(plain, inputs, *types);  // sum, y[, mean], rstd

  Problem problem = Make(of, inputs);
  problem.outputs.push_back(Output::Whole((*types)[0]));
  AddQuantised(of, &problem);
  for (size_t o = 2; o < types->size(); ++o) problem.outputs.push_back(Output::Whole((*types)[o]));
  const Outcome outcome = MustLaunch(problem);
  Compare(problem.where + ", sum", Rounded(expected[0], narrow), outcome.outputs[0], {});
  // y is normalised, of σ near 1: by the central limit below 6, times gamma, plus beta.
  Wanted wanted(expected[1]);
  std::fill(wanted.error.begin(), wanted.error.end(), NormError(columns, ops_test::Scale(expected[1])));
  CheckQuantised(problem.where, wanted, narrow, format, of.scale, outcome.bytes[1]);
  CheckTransposed(problem.where, outcome.bytes[1], outcome.bytes[2], rows, columns);
  CheckState(problem.where, wanted, narrow, problem.inputs.back(), outcome.state);
  for (size_t o = 2; o < types->size(); ++o) {
    Compare(fmt::format("{}, statistic {}", problem.where, o - 2), expected[o], outcome.outputs[o + 1],
            {NormError(columns, 1), NormError(columns, 1)});
  }
}

// dx is an output in 16 bits as well, so what is quantised is known to the bit.
void CheckNormGrad(bool layer, bool with_bias, bool adds, DType narrow, DType format, std::int64_t rows,
                   std::int64_t columns, double gain_offset = 0) {
  const Shape shape = {1, rows, columns};
  Tensors inputs = {Uniform(shape, narrow), Uniform(shape, narrow, 1), Uniform({columns}, narrow, 2)};
  std::vector<DType> dtypes(3, narrow);
  if (layer) {
    inputs.push_back(Uniform({1, rows}, DType::kF32, 3));
    dtypes.push_back(DType::kF32);
  }
  Tensor rstd = Uniform({1, rows}, DType::kF32, 4);
  for (std::int64_t r = 0; r < rows; ++r) rstd.Set(r, 1 + rstd.Get(r) / 4);
  inputs.push_back(Rounded(rstd, DType::kF32));
  inputs.push_back(Uniform(shape, narrow, 5));
  dtypes.insert(dtypes.end(), {DType::kF32, narrow});
  const Quantisation of{.op = layer ? &ops::kLayerNormGradAddQuantize : &ops::kRmsNormGradAddQuantize,
                        .narrow = narrow,
                        .format = format,
                        .rows = rows,
                        .columns = columns,
                        .attributes = WithGainOffset(gain_offset)};
  GpuCase plain;
  plain.base.op = layer ? &ops::kLayerNormGradAdd : &ops::kRmsNormGradAdd;
  plain.base.attributes = of.attributes;
  const auto types = plain.base.op->infer(TypesIn(inputs, dtypes), of.attributes);
  REQUIRE_MESSAGE(types.ok(), Message(types.status()));
  const Tensors expected = Reference(plain, inputs, *types);  // dx, d_gamma[, d_beta]

  Problem problem = Make(of, inputs);
  std::copy(dtypes.begin(), dtypes.end(), problem.input_dtypes.begin());
  problem.outputs.push_back(Output::Whole((*types)[0]));
  AddQuantised(of, &problem);
  const size_t sums = types->size() - 1;
  for (size_t o = 0; o < sums + (with_bias ? 1U : 0U); ++o)
    problem.outputs.push_back(Output::Whole({{columns}, DType::kF32}));
  if (with_bias) problem.attributes.Set("bias", kOne);
  problem.accumulate = adds ? ((1U << problem.outputs.size()) - 1U) & ~0b111U : 0U;
  problem.where += with_bias ? ", bias" : "";
  problem.where += adds ? ", added" : "";
  const Outcome outcome = MustLaunch(problem);

  const double scale = ops_test::Scale(expected[0]);
  Compare(problem.where + ", dx", expected[0], outcome.outputs[0],
          {1.01 * UnitRoundoff(narrow), NormError(columns, scale)});
  const Wanted wanted(outcome.outputs[0]);
  CheckQuantised(problem.where, wanted, narrow, format, of.scale, outcome.bytes[1]);
  CheckTransposed(problem.where, outcome.bytes[1], outcome.bytes[2], rows, columns);
  CheckState(problem.where, wanted, narrow, problem.inputs.back(), outcome.state);
  for (size_t o = 0; o < sums; ++o) {
    Tensor sum = expected[o + 1];
    for (std::int64_t i = 0; adds && i < columns; ++i) sum.Set(i, sum.Get(i) + Before(i));
    // Sums over rows of at most Σ|dy·(x − mean)·rstd| ≤ R·1.5·3·1.4.
    Compare(fmt::format("{}, sum {}", problem.where, o), sum, outcome.outputs[o + 3],
            {0, 0x1p-24 * static_cast<double>(rows + 8) * static_cast<double>(rows) * 6.3});
  }
  if (with_bias) CheckBias(problem.where, wanted, of, adds, outcome.outputs.back());
}

// Of statistics that are given: x̂ and y are a subtraction, the sum of the gain and two products off.
void CheckNormAgain(bool layer, DType narrow, DType format, std::int64_t rows, std::int64_t columns,
                    double gain_offset = 0) {
  Tensors inputs = {Uniform({1, rows, columns}, narrow), Uniform({columns}, narrow, 2)};
  std::vector<DType> dtypes(2, narrow);
  if (layer) {
    inputs.push_back(Uniform({columns}, narrow, 3));
    inputs.push_back(Uniform({1, rows}, DType::kF32, 4));
    dtypes.insert(dtypes.end(), {narrow, DType::kF32});
  }
  inputs.push_back(Uniform({1, rows}, DType::kF32, 5));
  dtypes.push_back(DType::kF32);
  const Quantisation of{.op = layer ? &ops::kLayerNormQuantizeAgain : &ops::kRmsNormQuantizeAgain,
                        .narrow = narrow,
                        .format = format,
                        .rows = rows,
                        .columns = columns,
                        .attributes = WithGainOffset(gain_offset)};
  Wanted wanted(Zeros({1, rows, columns}));
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < columns; ++c) {
      const std::int64_t i = r * columns + c;
      const double centred = inputs[0].Get(i) - (layer ? inputs[3].Get(r) : 0.0);
      const double product = centred * inputs.back().Get(r) * (inputs[1].Get(c) + gain_offset);
      const double y = product + (layer ? inputs[2].Get(c) : 0.0);
      wanted.y.Set(i, y);
      wanted.error[static_cast<size_t>(i)] = 0x1p-24 * (4 * std::fabs(product) + std::fabs(y));
    }
  }
  Problem problem = Make(of, inputs);
  std::copy(dtypes.begin(), dtypes.end(), problem.input_dtypes.begin());
  problem.outputs.push_back(Output::Whole({{columns, rows}, format}));
  const Outcome outcome = MustLaunch(problem);
  std::vector<std::byte> q(outcome.bytes[0].size());
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < columns; ++c)
      q[static_cast<size_t>(r * columns + c)] = outcome.bytes[0][static_cast<size_t>(c * rows + r)];
  }
  CheckQuantised(problem.where, wanted, narrow, format, of.scale, q);
  CheckState(problem.where, wanted, narrow, problem.inputs.back(), outcome.state);
}

}  // namespace

TEST_CASE("gpu fp8: add_layer_norm_quantize and add_rms_norm_quantize") {
  CHECK_FALSE(backend::cuda::NormFitsStrip(16384));
  for (const auto& [rows, columns] : kNormSizes) {
    for (bool layer : {true, false}) {
      for (DType narrow : kNarrow) CheckAddNorm(layer, narrow, DType::kE4M3, rows, columns);
      CheckAddNorm(layer, DType::kBF16, DType::kE5M2, rows, columns, /*gain_offset=*/1);
    }
  }
}

TEST_CASE("gpu fp8: layer_norm_grad_add_quantize and rms_norm_grad_add_quantize") {
  for (const auto& [rows, columns] : kNormSizes) {
    for (bool layer : {true, false}) {
      for (bool with_bias : {false, true}) {
        for (DType narrow : kNarrow)
          CheckNormGrad(layer, with_bias, false, narrow, DType::kE5M2, rows, columns);
        CheckNormGrad(layer, with_bias, true, DType::kBF16, DType::kE4M3, rows, columns, /*gain_offset=*/1);
      }
    }
  }
}

// Both kernels, where a block has a strip after another.
TEST_CASE("gpu fp8: gradients of norms of more rows than the grid has strips") {
  for (const auto& [rows, columns] : {std::pair<std::int64_t, std::int64_t>{170000, 16}, {6400, 2064}}) {
    const backend::cuda::NormGradQuantizeGrid grid = backend::cuda::MakeNormGradQuantizeGrid(rows, columns);
    CHECK(grid.vectors == (columns == 16 ? 1 : 2));
    CHECK(grid.blocks * grid.strip_rows < rows);
    CheckNormGrad(true, true, true, DType::kBF16, DType::kE5M2, rows, columns);
  }
}

TEST_CASE("gpu fp8: layer_norm_quantize_again and rms_norm_quantize_again") {
  for (const auto& [rows, columns] : kNormSizes) {
    for (bool layer : {true, false}) {
      for (DType narrow : kNarrow) CheckNormAgain(layer, narrow, DType::kE4M3, rows, columns);
      CheckNormAgain(layer, DType::kBF16, DType::kE5M2, rows, columns, /*gain_offset=*/1);
    }
  }
}

}  // namespace engine::gpu_test
