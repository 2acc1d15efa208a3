// The FP8 kernels against the ops that they stand for in float64, and against the definition of the formats.
// Every launch is repeated: the same bits.
#include <doctest/doctest.h>

#include <cfloat>
#include <cmath>
#include <set>

#include "engine/backend/cuda/kernels/quantize.h"
#include "engine/backend/cuda/kernels/quantize_grid.h"
#include "engine/backend/cuda/prepare_fp8.h"
#include "engine/base/half.h"
#include "engine/ops/fp8.h"
#include "engine/ops/fused.h"
#include "engine/ops/ops.h"
#include "tests/gpu/cases.h"
#include "tests/gpu/fp8_numbers.h"

namespace engine::gpu_test {
namespace {

using backend::cuda::kFp8AbsMax;
using backend::cuda::kFp8Format;
using backend::cuda::kFp8InverseScale;
using backend::cuda::kFp8Scale;
using graph::Attributes;

constexpr std::int64_t kOne = 1;
const std::vector<DType> kFormats = {DType::kE4M3, DType::kE5M2};

// No power of two, so that every product with it rounds; with values of about 1 the upper end of e4m3.
constexpr float kScale = 150.7F;

Tensor Zeros(const Shape& shape) {
  Tensor tensor({shape, DType::kF64});
  for (std::int64_t i = 0; i < tensor.elements(); ++i) tensor.Set(i, 0);
  return tensor;
}

Tensor State(DType format, float scale, float abs_max = 0) {
  Tensor state = Zeros({8});
  state.Set(kFp8InverseScale, 1.0F / scale);
  state.Set(kFp8Scale, scale);
  state.Set(kFp8AbsMax, abs_max);
  state.Set(kFp8Format, format == DType::kE5M2 ? 1 : 0);
  return state;
}

// Uniform in [−1.5, 1.5), by the harness' generator.
Tensor Uniform(const Shape& shape, DType dtype, size_t stream = 0) {
  ops_test::Case test{nullptr, "", std::vector<ops_test::Input>(stream + 1, ops_test::Input{{1}}), {}};
  test.inputs[stream].shape = shape;
  return Rounded(ops_test::MakeInputs(test, DType::kF64)[stream], dtype);
}

// As Uniform, with numbers that saturate both formats, vanish in them or fall among their subnormals, and
// both zeros.
Tensor Wide(const Shape& shape, DType dtype) {
  Tensor tensor = Uniform(shape, dtype);
  const double extremes[] = {3000.0, -3000.0, 1e-7, -3e-5, 1.0 / 1024, 0.0, -0.0, 2.97};
  for (std::int64_t i = 0; i < tensor.elements(); i += 29) tensor.Set(i, extremes[i / 29 % 8]);
  return Rounded(tensor, dtype);
}

// What the kernel is to quantise: y, which it may have off by `error` before it rounds it to 16 bits.
struct Wanted {
  Tensor y;
  std::vector<double> error;  // by element
  explicit Wanted(Tensor values) : y(std::move(values)), error(static_cast<size_t>(y.elements()), 0.0) {}
};

std::set<std::string>& Tested() {
  static std::set<std::string> names;
  return names;
}

Outcome MustLaunch(Problem problem) {
  Tested().insert(problem.kernel);
  absl::StatusOr<Outcome> outcome = Launch(problem);
  REQUIRE_MESSAGE(outcome.ok(), fmt::format("{}: {}", problem.where, Message(outcome.status())));
  problem.poison = 0x5A;
  const absl::StatusOr<Outcome> again = Launch(problem);
  REQUIRE_MESSAGE(again.ok(), fmt::format("{}, second run: {}", problem.where, Message(again.status())));
  for (size_t o = 0; o < problem.outputs.size(); ++o) {
    CHECK_MESSAGE((again->bytes[o] == outcome->bytes[o]),
                  fmt::format("{}, output {}: other bits in a second run", problem.where, o));
  }
  return *std::move(outcome);
}

double Narrow(double value, DType dtype) {
  const auto single = static_cast<float>(value);
  return dtype == DType::kBF16 ? FloatFromBFloat16(BFloat16FromFloat(single))
                               : FloatFromHalf(HalfFromFloat(single));
}

// The numbers that `code` may be: quantised from y ± error, each rounded to 16 bits, multiplied in fp32. All
// steps are monotone, so the ends bound what lies between; with no error there is one number.
void CheckQuantised(const std::string& where, const Wanted& wanted, DType narrow, DType format, float scale,
                    const std::vector<std::byte>& codes) {
  std::int64_t wrong = 0;
  std::string first;
  const auto quantised = [&](double y) {
    return DoubleFromFp8(Fp8FromFloat(static_cast<float>(Narrow(y, narrow)) * scale, format), format);
  };
  for (std::int64_t i = 0; i < wanted.y.elements(); ++i) {
    const double y = wanted.y.Get(i);
    const double error = wanted.error[static_cast<size_t>(i)];
    const auto code = static_cast<std::uint8_t>(codes[static_cast<size_t>(i)]);
    const double actual = DoubleFromFp8(code, format);
    const double low = quantised(y - error);
    const double high = quantised(y + error);
    const bool right = error == 0
                           ? code == Fp8FromFloat(static_cast<float>(Narrow(y, narrow)) * scale, format)
                           : actual >= low && actual <= high;
    if (right || wrong++ > 0) continue;
    first = fmt::format("element {} is {:.6g} (code {:#x}), expected {:.6g} to {:.6g}", i, actual, code, low,
                        high);
  }
  CHECK_MESSAGE(wrong == 0,
                fmt::format("{}: {} of {} elements, first: {}", where, wrong, wanted.y.elements(), first));
}

void CheckTransposed(const std::string& where, const std::vector<std::byte>& q,
                     const std::vector<std::byte>& qt, std::int64_t rows, std::int64_t columns) {
  std::int64_t wrong = 0;
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < columns; ++c) {
      wrong += q[static_cast<size_t>(r * columns + c)] == qt[static_cast<size_t>(c * rows + r)] ? 0 : 1;
    }
  }
  CHECK_MESSAGE(wrong == 0, fmt::format("{}: {} elements of qt are not q's", where, wrong));
}

// The largest of |y| as rounded to 16 bits; exact where y is. All else of the state stays as it was.
void CheckState(const std::string& where, const Wanted& wanted, DType narrow, const Tensor& before,
                const Tensor& after) {
  double low = before.Get(kFp8AbsMax);
  double high = low;
  for (std::int64_t i = 0; i < wanted.y.elements(); ++i) {
    const double y = std::fabs(wanted.y.Get(i));
    const double error = wanted.error[static_cast<size_t>(i)];
    low = std::max(low, Narrow(std::max(0.0, y - error), narrow));
    high = std::max(high, Narrow(y + error, narrow));
  }
  const double actual = after.Get(kFp8AbsMax);
  CHECK_MESSAGE((actual >= low && actual <= high),
                fmt::format("{}: largest value {:.9g}, expected {:.9g} to {:.9g}", where, actual, low, high));
  for (int i = 0; i < 8; ++i) {
    if (i != kFp8AbsMax) CHECK_MESSAGE(after.Get(i) == before.Get(i), fmt::format("{}: state {}", where, i));
  }
}

struct Quantisation {
  const graph::OpDef* op;
  DType narrow = DType::kBF16;
  DType format = DType::kE4M3;
  std::int64_t rows = 0, columns = 0;  // of q
  Attributes attributes = {};
  float abs_max = 0;  // that the state has seen before
  float scale = kScale;

  std::string where() const {
    return fmt::format("{} {}×{} {} to {}", op->name, rows, columns, Name(narrow), Name(format));
  }
};

// A problem whose last input is the state; the caller adds the outputs.
Problem Make(const Quantisation& of, const Tensors& inputs) {
  Problem problem;
  problem.where = of.where();
  problem.kernel = std::string(of.op->name);
  problem.op = of.op;
  problem.attributes = of.attributes;
  problem.attributes.Set("format", std::int64_t{of.format == DType::kE5M2 ? 1 : 0});
  problem.inputs = inputs;
  problem.input_dtypes.assign(inputs.size(), of.narrow);
  problem.inputs.push_back(State(of.format, of.scale, of.abs_max));
  problem.input_dtypes.push_back(DType::kF32);
  problem.state = static_cast<int>(inputs.size());
  return problem;
}
void AddQuantised(const Quantisation& of, Problem* problem) {
  problem->outputs.push_back(Output::Whole({{1, of.rows, of.columns}, of.format}));
  problem->outputs.push_back(Output::Whole({{of.columns, of.rows}, of.format}));
}

// Column sums of y: fp32 in any order, n·ε·Σ|y|, and what each term may be off by, beside its rounding to 16
// bits, which the kernel's own terms have had too (2u·|y| where the error crosses a tie).
void CheckBias(const std::string& where, const Wanted& wanted, const Quantisation& of, bool adds,
               const Tensor& actual) {
  Tensor expected = Zeros({of.columns});
  double bound = 0;
  for (std::int64_t c = 0; c < of.columns; ++c) {
    double sum = adds ? Before(c) : 0.0;
    double magnitude = std::fabs(sum);
    double error = 0;
    for (std::int64_t r = 0; r < of.rows; ++r) {
      const auto i = r * of.columns + c;
      const double y = Narrow(wanted.y.Get(i), of.narrow);
      sum += y;
      magnitude += std::fabs(y);
      const double off = wanted.error[static_cast<size_t>(i)];
      if (off > 0) error += off + 2 * UnitRoundoff(of.narrow) * std::fabs(y);
    }
    expected.Set(c, sum);
    bound = std::max(bound, error + static_cast<double>(of.rows + 1) * 0x1p-24 * magnitude);
  }
  Compare(where + ", d_bias", expected, actual, {0, bound});
}

// Ops of one pass: inputs → q, qt[, d_bias].
void CheckOnePass(const Quantisation& of, const Tensors& inputs, const Wanted& wanted, bool with_bias) {
  for (bool adds : {false, true}) {
    if (adds && !with_bias) continue;
    Problem problem = Make(of, inputs);
    AddQuantised(of, &problem);
    if (with_bias) problem.outputs.push_back(Output::Whole({{of.columns}, DType::kF32}));
    problem.accumulate = adds ? 0b100 : 0;
    problem.where += with_bias ? adds ? ", bias added" : ", bias" : "";
    const Outcome outcome = MustLaunch(problem);
    CheckQuantised(problem.where, wanted, of.narrow, of.format, of.scale, outcome.bytes[0]);
    CheckTransposed(problem.where, outcome.bytes[0], outcome.bytes[1], of.rows, of.columns);
    CheckState(problem.where, wanted, of.narrow, problem.inputs.back(), outcome.state);
    if (with_bias) CheckBias(problem.where, wanted, of, adds, outcome.outputs[2]);
  }
}

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

namespace {

// Rows of norms: shorter and longer than a strip, the sizes of models, and one that does not fit a strip.
const std::vector<std::pair<std::int64_t, std::int64_t>> kNormSizes = {
    {16, 16}, {48, 768}, {272, 1280}, {144, 2048}, {80, 4096}, {1040, 128}, {32, 8192}, {16, 16384}};

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

void CheckAddNorm(bool layer, DType narrow, DType format, std::int64_t rows, std::int64_t columns) {
  const Shape shape = {1, rows, columns};
  Tensors inputs = {Uniform(shape, narrow), Uniform(shape, narrow, 1), Uniform({columns}, narrow, 2)};
  if (layer) inputs.push_back(Uniform({columns}, narrow, 3));
  const Quantisation of{.op = layer ? &ops::kAddLayerNormQuantize : &ops::kAddRmsNormQuantize,
                        .narrow = narrow,
                        .format = format,
                        .rows = rows,
                        .columns = columns,
                        .attributes = {{"epsilon", 1e-5}}};
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
                   std::int64_t columns) {
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
                        .attributes = {{"epsilon", 1e-5}}};
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

}  // namespace

TEST_CASE("gpu fp8: add_layer_norm_quantize and add_rms_norm_quantize") {
  CHECK_FALSE(backend::cuda::NormFitsStrip(16384));
  for (const auto& [rows, columns] : kNormSizes) {
    for (bool layer : {true, false}) {
      for (DType narrow : kNarrow) CheckAddNorm(layer, narrow, DType::kE4M3, rows, columns);
      CheckAddNorm(layer, DType::kBF16, DType::kE5M2, rows, columns);
    }
  }
}

TEST_CASE("gpu fp8: layer_norm_grad_add_quantize and rms_norm_grad_add_quantize") {
  for (const auto& [rows, columns] : kNormSizes) {
    for (bool layer : {true, false}) {
      for (bool with_bias : {false, true}) {
        for (DType narrow : kNarrow)
          CheckNormGrad(layer, with_bias, false, narrow, DType::kE5M2, rows, columns);
        CheckNormGrad(layer, with_bias, true, DType::kBF16, DType::kE4M3, rows, columns);
      }
    }
  }
}

// ------------------------------------------------------------------------------------------------- products

namespace {

// Numbers of the format, stored: uniform ones times a scale, quantised.
Tensor Stored(const Shape& shape, DType format, size_t stream, float scale) {
  Tensor tensor = Uniform(shape, DType::kBF16, stream);
  for (std::int64_t i = 0; i < tensor.elements(); ++i) {
    const auto code = Fp8FromFloat(static_cast<float>(tensor.Get(i)) * scale, format);
    tensor.Set(i, DoubleFromFp8(code, format));
  }
  return tensor;
}

struct Product {
  const graph::OpDef* op;
  std::int64_t m = 0, n = 0, k = 0;
  DType a = DType::kE4M3, b = DType::kE4M3, d = DType::kBF16;
  bool bias = false, adds = false;
};

// d[m, n] = a[m, k]·b[n, k]ᵀ / (scale_a·scale_b). Fast accumulation keeps 14 bits of the running sum
// (DeepSeek-V3 Technical Report, arXiv:2412.19437, §3.5.2): each of the k/32 steps of the instruction cuts
// off up to 2⁻¹³ of a sum that is at most Σ|terms|, with random signs √(k/32) of them; 4 for the worst of
// many.
void CheckProduct(const Product& of) {
  constexpr float kScaleA = 100.0F;
  constexpr float kScaleB = 230.0F;
  Problem problem;
  problem.where = fmt::format("{} m{} n{} k{} {}·{} to {}{}{}", of.op->name, of.m, of.n, of.k, Name(of.a),
                              Name(of.b), Name(of.d), of.bias ? ", bias" : "", of.adds ? ", added" : "");
  problem.kernel = std::string(of.op->name);
  problem.op = of.op;
  const Tensor a = Stored({of.m, of.k}, of.a, 0, kScaleA);
  const Tensor b = Stored({of.n, of.k}, of.b, 1, kScaleB);
  problem.inputs = {a, b, State(of.a, kScaleA), State(of.b, kScaleB)};
  problem.input_dtypes = {of.a, of.b, DType::kF32, DType::kF32};
  if (of.bias) {
    problem.inputs.push_back(Uniform({of.n}, of.d, 2));
    problem.input_dtypes.push_back(of.d);
  }
  problem.outputs = {Output::Whole({{of.m, of.n}, of.d})};
  problem.accumulate = of.adds ? 1 : 0;
  const double unscale = static_cast<double>(1.0F / kScaleA) * static_cast<double>(1.0F / kScaleB);
  Tensor expected = Zeros({of.m, of.n});
  double magnitude = 0;
  for (std::int64_t i = 0; i < of.m; ++i) {
    for (std::int64_t j = 0; j < of.n; ++j) {
      double sum = 0;
      double terms = 0;
      for (std::int64_t c = 0; c < of.k; ++c) {
        const double term = a.Get(i * of.k + c) * b.Get(j * of.k + c);
        sum += term;
        terms += std::fabs(term);
      }
      magnitude = std::max(magnitude, terms * unscale);
      expected.Set(i * of.n + j, sum * unscale + (of.bias ? problem.inputs[4].Get(j) : 0.0) +
                                     (of.adds ? Before(i * of.n + j) : 0.0));
    }
  }
  const double steps = std::sqrt(static_cast<double>(of.k) / 32 + 1);
  Compare(problem.where, expected, MustLaunch(problem).outputs[0],
          {1.01 * UnitRoundoff(of.d), 4 * 0x1p-13 * steps * magnitude});
}

// m, n, k: multiples of 16, of 64 and beyond.
struct Size {
  std::int64_t m, n, k;
};
const std::vector<Size> kProducts = {
    {16, 16, 16}, {32, 48, 80}, {128, 256, 64}, {144, 16, 1280}, {64, 160, 512}};

}  // namespace

TEST_CASE("gpu fp8: linear_fp8") {
  for (const Size& size : kProducts) {
    for (DType d : kNarrow) {
      for (bool bias : {false, true})
        CheckProduct({.op = &ops::kLinearFp8, .m = size.m, .n = size.n, .k = size.k, .d = d, .bias = bias});
    }
  }
}

TEST_CASE("gpu fp8: linear_dgrad_fp8") {
  for (const Size& size : kProducts) {
    for (DType d : kNarrow) {
      for (DType gradients : kFormats)
        CheckProduct(
            {.op = &ops::kLinearDgradFp8, .m = size.m, .n = size.n, .k = size.k, .a = gradients, .d = d});
    }
  }
}

TEST_CASE("gpu fp8: linear_wgrad_fp8") {
  for (const Size& size : kProducts) {
    for (DType gradients : kFormats) {
      for (bool adds : {false, true}) {
        CheckProduct({.op = &ops::kLinearWgradFp8,
                      .m = size.m,
                      .n = size.n,
                      .k = size.k,
                      .a = gradients,
                      .d = DType::kF32,
                      .adds = adds});
      }
    }
  }
}

// Operands as the plan has them: more dims than two.
TEST_CASE("gpu fp8: products take the sizes of their operands from the numbers of elements") {
  Problem problem;
  problem.where = "linear_fp8 of x[2, 16, 4, 8] and w[3, 16, 4, 8]";
  problem.kernel = "linear_fp8";
  problem.op = &ops::kLinearFp8;
  problem.attributes = {{"in_dims", std::int64_t{2}}};
  const Tensor x = Stored({2, 16, 4, 8}, DType::kE4M3, 0, 100);
  const Tensor w = Stored({3, 16, 4, 8}, DType::kE4M3, 1, 100);
  problem.inputs = {x, w, State(DType::kE4M3, 1), State(DType::kE4M3, 1)};
  problem.input_dtypes = {DType::kE4M3, DType::kE4M3, DType::kF32, DType::kF32};
  problem.outputs = {Output::Whole({{2, 16, 3, 16}, DType::kBF16})};
  Tensor expected = Zeros({2, 16, 3, 16});
  double scale = 0;
  for (std::int64_t i = 0; i < 32; ++i) {
    for (std::int64_t j = 0; j < 48; ++j) {
      double sum = 0;
      double terms = 0;
      for (std::int64_t c = 0; c < 32; ++c) {
        sum += x.Get(i * 32 + c) * w.Get(j * 32 + c);
        terms += std::fabs(x.Get(i * 32 + c) * w.Get(j * 32 + c));
      }
      expected.Set(i * 48 + j, sum);
      scale = std::max(scale, terms);
    }
  }
  Compare(problem.where, expected, MustLaunch(problem).outputs[0], {0x1.02p-8, 4 * 0x1p-13 * 2 * scale});
}

// --------------------------------------------------------------------------------------------------- update

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

// --------------------------------------------------------------------------------------------------- limits

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

// Runs last: test cases run in the order of the file.
TEST_CASE("gpu fp8: every kernel has a test") {
  if (Tested().empty()) return;  // this test case was run alone
  for (const auto& entry : backend::cuda::kFp8Kernels) {
    CHECK_MESSAGE(Tested().count(std::string(entry.op)) == 1, fmt::format("{} has no test", entry.op));
    CHECK_MESSAGE(backend::cuda::FindKernel(entry.op) != nullptr,
                  fmt::format("{} is not in the table", entry.op));
  }
  for (const graph::OpDef* op : ops::AllFp8Ops())
    CHECK_MESSAGE(backend::cuda::FindKernel(op->name) != nullptr, fmt::format("{} has no kernel", op->name));
}

}  // namespace engine::gpu_test
