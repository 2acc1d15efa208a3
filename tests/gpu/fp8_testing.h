// What the tests of the FP8 kernels share: states, operands, and what a quantised tensor must hold by the
// definition of the formats. Every launch is repeated: the same bits.
#pragma once

#include <doctest/doctest.h>

#include <set>

#include "engine/backend/cuda/kernels/quantize.h"
#include "engine/base/half.h"
#include "engine/ops/fp8.h"
#include "tests/gpu/cases.h"
#include "tests/gpu/fp8_numbers.h"

namespace engine::gpu_test {

using backend::cuda::kFp8AbsMax;
using backend::cuda::kFp8Format;
using backend::cuda::kFp8InverseScale;
using backend::cuda::kFp8Scale;
using graph::Attributes;

inline const std::vector<DType> kFormats = {DType::kE4M3, DType::kE5M2};

// No power of two, so that every product with it rounds; with values of about 1 the upper end of e4m3.
inline constexpr float kScale = 150.7F;

inline Tensor Zeros(const Shape& shape) {
  Tensor tensor({shape, DType::kF64});
  for (std::int64_t i = 0; i < tensor.elements(); ++i) tensor.Set(i, 0);
  return tensor;
}

inline Tensor State(DType format, float scale, float abs_max = 0) {
  Tensor state = Zeros({8});
  state.Set(kFp8InverseScale, 1.0F / scale);
  state.Set(kFp8Scale, scale);
  state.Set(kFp8AbsMax, abs_max);
  state.Set(kFp8Format, format == DType::kE5M2 ? 1 : 0);
  return state;
}

// Uniform in [−1.5, 1.5), by the harness' generator.
inline Tensor Uniform(const Shape& shape, DType dtype, size_t stream = 0) {
  ops_test::Case test{nullptr, "", std::vector<ops_test::Input>(stream + 1, ops_test::Input{{1}}), {}};
  test.inputs[stream].shape = shape;
  return Rounded(ops_test::MakeInputs(test, DType::kF64)[stream], dtype);
}

// As Uniform, with numbers that saturate both formats, vanish in them or fall among their subnormals, and
// both zeros.
inline Tensor Wide(const Shape& shape, DType dtype) {
  Tensor tensor = Uniform(shape, dtype);
  const double extremes[] = {3000.0, -3000.0, 1e-7, -3e-5, 1.0 / 1024, 0.0, -0.0, 2.97};
  for (std::int64_t i = 0; i < tensor.elements(); i += 29) tensor.Set(i, extremes[i / 29 % 8]);
  return Rounded(tensor, dtype);
}

// Numbers of the format, stored: uniform ones times a scale, quantised.
inline Tensor Stored(const Shape& shape, DType format, size_t stream, float scale) {
  Tensor tensor = Uniform(shape, DType::kBF16, stream);
  for (std::int64_t i = 0; i < tensor.elements(); ++i) {
    const auto code = Fp8FromFloat(static_cast<float>(tensor.Get(i)) * scale, format);
    tensor.Set(i, DoubleFromFp8(code, format));
  }
  return tensor;
}

// What the kernel is to quantise: y, which it may have off by `error` before it rounds it to 16 bits.
struct Wanted {
  Tensor y;
  std::vector<double> error;  // by element
  explicit Wanted(Tensor values) : y(std::move(values)), error(static_cast<size_t>(y.elements()), 0.0) {}
};

inline std::set<std::string>& Tested() {
  static std::set<std::string> names;
  return names;
}

inline Outcome MustLaunch(Problem problem) {
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

inline double Narrow(double value, DType dtype) {
  const auto single = static_cast<float>(value);
  return dtype == DType::kBF16 ? FloatFromBFloat16(BFloat16FromFloat(single))
                               : FloatFromHalf(HalfFromFloat(single));
}

// The numbers that `code` may be: quantised from y ± error, each rounded to 16 bits, multiplied in fp32. All
// steps are monotone, so the ends bound what lies between; with no error there is one number.
inline void CheckQuantised(const std::string& where, const Wanted& wanted, DType narrow, DType format,
                           float scale, const std::vector<std::byte>& codes) {
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
    // A gain of exactly 0 gives zeros of either sign.
    const bool exact = code == Fp8FromFloat(static_cast<float>(Narrow(y, narrow)) * scale, format) ||
                       (actual == 0 && low == 0 && high == 0);
    const bool right = error == 0 ? exact : actual >= low && actual <= high;
    if (right || wrong++ > 0) continue;
    first = fmt::format("element {} is {:.6g} (code {:#x}), expected {:.6g} to {:.6g}", i, actual, code, low,
                        high);
  }
  CHECK_MESSAGE(wrong == 0,
                fmt::format("{}: {} of {} elements, first: {}", where, wrong, wanted.y.elements(), first));
}

inline void CheckTransposed(const std::string& where, const std::vector<std::byte>& q,
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
inline void CheckState(const std::string& where, const Wanted& wanted, DType narrow, const Tensor& before,
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
inline Problem Make(const Quantisation& of, const Tensors& inputs) {
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
inline void AddQuantised(const Quantisation& of, Problem* problem) {
  problem->outputs.push_back(Output::Whole({{1, of.rows, of.columns}, of.format}));
  problem->outputs.push_back(Output::Whole({{of.columns, of.rows}, of.format}));
}

// Column sums of y: fp32 in any order, n·ε·Σ|y|, and what each term may be off by, beside its rounding to 16
// bits, which the kernel's own terms have had too (2u·|y| where the error crosses a tie).
inline void CheckBias(const std::string& where, const Wanted& wanted, const Quantisation& of, bool adds,
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
inline void CheckOnePass(const Quantisation& of, const Tensors& inputs, const Wanted& wanted,
                         bool with_bias) {
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

}  // namespace engine::gpu_test
