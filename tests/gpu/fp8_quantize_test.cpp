// Quantising kernels of one pass, and the scales: against the ops that they stand for in float64.
#include <doctest/doctest.h>

#include <cfloat>
#include <cmath>

#include "engine/ops/ops.h"
#include "tests/gpu/fp8_testing.h"

namespace engine::gpu_test {

namespace {

// Tiles of 128 × 128: parts of one, one, several with parts at both ends, and shapes of models.
const std::vector<std::pair<std::int64_t, std::int64_t>> kSizes = {
    {16, 16}, {32, 48}, {144, 272}, {128, 128}, {256, 1280}, {16, 5120}, {1040, 16}};

template <typename Body>
void ForEachKind(Body body) {
  for (DType narrow : kNarrow) {
    for (DType format : kFormats) {
      for (const auto& [rows, columns] : kSizes) body(narrow, format, rows, columns);
    }
  }
}

// The scale that takes the largest of |x| to the largest number of the format.
float CurrentScale(const Tensor& x, DType format) {
  double largest = 0;
  for (std::int64_t i = 0; i < x.elements(); ++i) largest = std::max(largest, std::fabs(x.Get(i)));
  if (!(largest > 0 && std::isfinite(largest))) return 1;
  return std::fmin((format == DType::kE4M3 ? 448.0F : 57344.0F) / static_cast<float>(largest), FLT_MAX);
}

// x → q, qt, state[, d_bias].
Problem MakeCurrent(const Quantisation& of, const Tensor& x, bool with_bias, bool adds) {
  Problem problem = Make(of, {x});
  problem.inputs.pop_back();
  problem.input_dtypes.pop_back();
  problem.state = -1;
  AddQuantised(of, &problem);
  problem.outputs.push_back(Output::Whole({{8}, DType::kF32}));
  if (with_bias) problem.outputs.push_back(Output::Whole({{of.columns}, DType::kF32}));
  problem.accumulate = adds ? 0b1000 : 0;
  return problem;
}

}  // namespace

// Bit for bit.
TEST_CASE("gpu fp8: quantize") {
  ForEachKind([](DType narrow, DType format, std::int64_t rows, std::int64_t columns) {
    const Quantisation of{
        .op = &ops::kQuantize, .narrow = narrow, .format = format, .rows = rows, .columns = columns};
    const Tensor x = Wide({1, rows, columns}, narrow);
    for (bool with_bias : {false, true}) CheckOnePass(of, {x}, Wanted(x), with_bias);
  });
}

TEST_CASE("gpu fp8: a state keeps the largest value that it has seen, and infinity for NaN") {
  Quantisation of{.op = &ops::kQuantize, .rows = 144, .columns = 272};
  const Tensor x = Uniform({1, 144, 272}, of.narrow);
  for (float before : {0.25F, 77.0F}) {
    of.abs_max = before;
    CheckOnePass(of, {x}, Wanted(x), false);
  }
  of.abs_max = 0;
  for (double bad :
       {static_cast<double>(NAN), static_cast<double>(INFINITY), -static_cast<double>(INFINITY)}) {
    for (std::int64_t at : {std::int64_t{0}, std::int64_t{143 * 272 + 271}}) {
      Tensor broken = x;
      broken.Set(at, bad);
      Problem problem = Make(of, {broken});
      AddQuantised(of, &problem);
      const Outcome outcome = MustLaunch(problem);
      CHECK(outcome.state.Get(kFp8AbsMax) == INFINITY);
      const auto code = static_cast<std::uint8_t>(outcome.bytes[0][static_cast<size_t>(at)]);
      CHECK((code & 0x7F) == (std::isnan(bad) ? 0x7F : 0x7E));
    }
  }
}

// Bit for bit: the scale is a correctly rounded division by the largest value, found whatever the kernel's
// state held.
TEST_CASE("gpu fp8: quantize_current") {
  ForEachKind([](DType narrow, DType format, std::int64_t rows, std::int64_t columns) {
    Quantisation of{
        .op = &ops::kQuantizeCurrent, .narrow = narrow, .format = format, .rows = rows, .columns = columns};
    Tensor last_is_largest = Uniform({1, rows, columns}, narrow);
    last_is_largest.Set(rows * columns - 1, -7.25);
    for (const Tensor& x : {Wide({1, rows, columns}, narrow), last_is_largest, Zeros({1, rows, columns})}) {
      of.scale = CurrentScale(x, format);
      const Wanted wanted(x);
      for (int kind = 0; kind < 3; ++kind) {  // plain, with a bias, added to what is there
        const Problem problem = MakeCurrent(of, x, kind > 0, kind == 2);
        const Outcome outcome = MustLaunch(problem);
        CheckQuantised(problem.where, wanted, narrow, format, of.scale, outcome.bytes[0]);
        CheckTransposed(problem.where, outcome.bytes[0], outcome.bytes[1], rows, columns);
        CHECK(outcome.outputs[2].Get(kFp8Scale) == of.scale);
        CHECK(outcome.outputs[2].Get(kFp8InverseScale) == 1.0F / of.scale);
        CHECK(outcome.outputs[2].Get(kFp8Format) == (format == DType::kE5M2 ? 1 : 0));
        if (kind > 0) CheckBias(problem.where, wanted, of, kind == 2, outcome.outputs[3]);
      }
    }
  });
}

TEST_CASE("gpu fp8: quantize_current leaves what is not finite as it is, with scale 1") {
  const Quantisation of{.op = &ops::kQuantizeCurrent, .rows = 144, .columns = 272};
  for (double bad : {static_cast<double>(NAN), static_cast<double>(INFINITY)}) {
    Tensor x = Uniform({1, 144, 272}, of.narrow);
    x.Set(143 * 272 + 271, bad);
    const Outcome outcome = MustLaunch(MakeCurrent(of, x, false, false));
    CHECK(outcome.outputs[2].Get(kFp8Scale) == 1);
    const auto code = static_cast<std::uint8_t>(outcome.bytes[0].back());
    CHECK((code & 0x7F) == (std::isnan(bad) ? 0x7F : 0x7E));
  }
}

// tanh.approx.f32 has a relative error of 2⁻¹¹ (PTX ISA), so s = (1 + tanh)/2 is off by δ = 2⁻¹² and a few
// roundings of fp32. gelu = x·s is off by |x|·δ, gelu' = s + x·s·(1 − s)·g by (1 + |x|·g)·δ, with g =
// 2√(2/π)·(1 + 0.134145·x²).
TEST_CASE("gpu fp8: gelu_quantize and gelu_grad_quantize") {
  constexpr double kDelta = 0x1p-12 + 4 * 0x1p-24;
  ForEachKind([&](DType narrow, DType format, std::int64_t rows, std::int64_t columns) {
    const Attributes tanh = {{"tanh", kOne}};
    const Tensor pre = Uniform({1, rows, columns}, narrow);
    const Tensor dy = Uniform({1, rows, columns}, narrow, 1);
    Wanted value(ops_test::RunOp(ops::kGelu, tanh, {pre})[0]);
    Wanted gradient(ops_test::RunOp(ops::kGeluGrad, tanh, {pre, dy})[0]);
    for (std::int64_t i = 0; i < pre.elements(); ++i) {
      const double x = std::fabs(pre.Get(i));
      const double g = 2 * std::sqrt(2 / M_PI) * (1 + 0.134145 * x * x);
      value.error[static_cast<size_t>(i)] = x * kDelta;
      gradient.error[static_cast<size_t>(i)] = std::fabs(dy.Get(i)) * (1 + x * g) * kDelta;
    }
    Quantisation of{.op = &ops::kGeluQuantize,
                    .narrow = narrow,
                    .format = format,
                    .rows = rows,
                    .columns = columns,
                    .attributes = tanh};
    CheckOnePass(of, {pre}, value, false);
    of.op = &ops::kGeluGradQuantize;
    for (bool with_bias : {false, true}) CheckOnePass(of, {pre, dy}, gradient, with_bias);
  });
}

// σ by __expf (2 ulp and 1.16·|x| of the argument's) and __fdividef (2 ulp), CUDA C++ Programming Guide; with
// |x| ≤ 1.5 and five products behind it within 16·2⁻²³ of the sum of the terms' magnitudes.
TEST_CASE("gpu fp8: swiglu_quantize and swiglu_grad_quantize") {
  constexpr double kRelative = 16 * 0x1p-23;
  ForEachKind([&](DType narrow, DType format, std::int64_t rows, std::int64_t columns) {
    const Tensor x = Uniform({1, rows, 2, columns}, narrow);
    const Tensor dy = Uniform({1, rows, columns}, narrow, 1);
    Wanted value(ops_test::RunOp(ops::kSwiglu, {}, {x})[0]);
    Wanted gradient(ops_test::RunOp(ops::kSwigluGrad, {}, {x, dy})[0]);
    for (std::int64_t i = 0; i < value.y.elements(); ++i)
      value.error[static_cast<size_t>(i)] = kRelative * std::fabs(value.y.Get(i));
    for (std::int64_t i = 0; i < gradient.y.elements(); ++i) {
      const std::int64_t row = i / (2 * columns);
      const std::int64_t column = i % columns;
      const double gate = x.Get(row * 2 * columns + column);
      const double up = x.Get((row * 2 + 1) * columns + column);
      const double factor =
          i % (2 * columns) < columns ? std::fabs(up) * (1 + std::fabs(gate)) : std::fabs(gate);
      gradient.error[static_cast<size_t>(i)] = kRelative * std::fabs(dy.Get(row * columns + column)) * factor;
    }
    Quantisation of{
        .op = &ops::kSwigluQuantize, .narrow = narrow, .format = format, .rows = rows, .columns = columns};
    CheckOnePass(of, {x}, value, false);
    of.op = &ops::kSwigluGradQuantize;
    of.columns = 2 * columns;
    CheckOnePass(of, {x, dy}, gradient, false);
  });
}

// Correctly rounded divisions and a minimum: bit for bit.
TEST_CASE("gpu fp8: fp8_update") {
  const float kMaxima[] = {1.0F, 0.0F, 3.3F, 448.0F, 1e-40F, 1e-36F, INFINITY, 57344.0F, 7e30F};
  for (std::int64_t margin : {0, 1, 3}) {
    for (std::int64_t tensors : {1, 9, 300}) {
      Tensor states = Zeros({8 * tensors});
      Tensor expected = Zeros({8 * tensors});
      for (std::int64_t t = 0; t < tensors; ++t) {
        const DType format = t % 2 == 1 ? DType::kE5M2 : DType::kE4M3;
        const float abs_max = kMaxima[t % 9];
        const float before = 2.5F + static_cast<float>(t);
        const Tensor state = State(format, before, abs_max);
        for (int i = 0; i < 8; ++i) states.Set(8 * t + i, state.Get(i));
        float scale = before;
        float inverse = 1.0F / before;
        if (abs_max > 0 && abs_max <= FLT_MAX) {
          const float largest = format == DType::kE4M3 ? 448.0F : 57344.0F;
          scale = std::fmin(largest / abs_max * std::ldexp(1.0F, -static_cast<int>(margin)), FLT_MAX);
          inverse = 1.0F / scale;
        }
        const Tensor after = State(format, scale, 0);
        for (int i = 0; i < 8; ++i) expected.Set(8 * t + i, i == kFp8InverseScale ? inverse : after.Get(i));
      }
      Problem problem;
      problem.where = fmt::format("fp8_update of {} states, margin {}", tensors, margin);
      problem.kernel = "fp8_update";
      problem.attributes = {{"margin", margin}};
      problem.inputs = {states};
      problem.input_dtypes = {DType::kF32};
      problem.outputs = {Output::Whole({{8 * tensors}, DType::kF32})};
      problem.outputs[0].alias = 0;
      Compare(problem.where, Rounded(expected, DType::kF32), MustLaunch(problem).outputs[0], {});
    }
  }
}

TEST_CASE("gpu fp8: what no kernel does is refused") {
  const auto refusal = [](const Problem& problem) {
    const absl::StatusOr<Outcome> outcome = Launch(problem);
    return outcome.ok() ? std::string("accepted") : Message(outcome.status());
  };
  Quantisation of{.op = &ops::kQuantize, .rows = 24, .columns = 32};
  Problem odd = Make(of, {Uniform({1, 24, 32}, DType::kBF16)});
  AddQuantised(of, &odd);
  CHECK(refusal(odd).find("multiples of 16 rows and columns, not 24 rows of 32") != std::string::npos);
  of.rows = 32;
  Problem wide = Make(of, {Uniform({1, 32, 32}, DType::kF32)});
  wide.input_dtypes[0] = DType::kF32;
  AddQuantised(of, &wide);
  CHECK(refusal(wide).find("quantises bf16 and f16, not f32") != std::string::npos);
  Problem other = Make(of, {Uniform({1, 32, 32}, DType::kBF16)});
  of.format = DType::kE5M2;
  AddQuantised(of, &other);
  CHECK(refusal(other).find("e4m3 by its format, e5m2 by its output") != std::string::npos);
  of.op = &ops::kGeluQuantize;
  of.attributes = {{"tanh", std::int64_t{0}}};
  Problem erf = Make(of, {Uniform({1, 32, 32}, DType::kBF16)});
  AddQuantised(of, &erf);
  CHECK(refusal(erf).find("only the tanh form") != std::string::npos);
  Problem product;
  product.kernel = "linear_fp8";
  product.op = &ops::kLinearFp8;
  product.inputs = {Stored({16, 16}, DType::kE5M2, 0, 1), Stored({16, 16}, DType::kE5M2, 1, 1),
                    State(DType::kE5M2, 1), State(DType::kE5M2, 1)};
  product.input_dtypes = {DType::kE5M2, DType::kE5M2, DType::kF32, DType::kF32};
  product.outputs = {Output::Whole({{16, 16}, DType::kBF16})};
  CHECK(refusal(product).find("e5m2 by e4m3, not by e5m2") != std::string::npos);
}

}  // namespace engine::gpu_test
