// The flat kernels of the optimizer against the CPU's in float64. They too give the same bits in a second
// run.
#include <doctest/doctest.h>

#include <cmath>

#include "engine/backend/cuda/prepare.h"
#include "engine/plan/control.h"
#include "tests/gpu/cases.h"

namespace engine::gpu_test {
namespace {

Tensor Values(std::int64_t count, double step, DType dtype) {
  Tensor tensor({{count}, DType::kF64});
  for (std::int64_t i = 0; i < count; ++i) tensor.Set(i, std::sin(1.0 + step * static_cast<double>(i)));
  return Rounded(tensor, dtype);
}

Tensor Control(double step, double factor) {
  Tensor control({{plan::kControlNumbers}, DType::kF64});
  for (std::int64_t i = 0; i < control.elements(); ++i) control.Set(i, 0);
  control.Set(plan::kLearningRate, 1e-2);
  control.Set(plan::kStep, step);
  control.Set(plan::kGradientFactor, factor);
  control.Set(plan::kLossScale, 1);
  return control;
}

Outcome MustLaunch(const Problem& problem) {
  absl::StatusOr<Outcome> outcome = Launch(problem);
  REQUIRE_MESSAGE(outcome.ok(), fmt::format("{}: {}", problem.where, Message(outcome.status())));
  Problem other = problem;
  other.poison = 0x5A;
  const absl::StatusOr<Outcome> again = Launch(other);
  REQUIRE_MESSAGE(again.ok(), fmt::format("{}, second run: {}", problem.where, Message(again.status())));
  for (size_t o = 0; o < problem.outputs.size(); ++o) {
    CHECK_MESSAGE((again->bytes[o] == outcome->bytes[o]),
                  fmt::format("{}, output {}: other bits in a second run", problem.where, o));
  }
  return *std::move(outcome);
}

Output Shared(const Tensor& input, DType dtype, int alias) {
  Output output = Output::Whole({input.type().shape, dtype});
  output.alias = alias;
  return output;
}

const graph::Attributes& AdamWAttributes() {
  static const graph::Attributes attributes = {
      {"beta1", 0.9}, {"beta2", 0.95}, {"epsilon", 1e-3}, {"weight_decay", 0.1}};
  return attributes;
}

}  // namespace

// Three steps. About ten roundings of values of at most 1.5 (weights) a step; the rate times that for the
// update, where for gradients near 0 the quotient of m and v adds rate · ε₃₂ / epsilon.
TEST_CASE("gpu optimizer: adamw") {
  constexpr double kBound = 3 * 10 * 1.5 * 6e-8 + 3 * 1e-2 * 6e-8 / 1e-3;
  for (DType parameter :
       {DType::kF32, DType::kBF16, DType::kF16}) {  // f32: no copy beside the master weights
    for (std::int64_t count : {1, 7, 4096, 40001}) {
      Tensor w = Values(count, 0.1, DType::kF32);
      Tensor m = Values(count, 0.0, DType::kF32);
      for (std::int64_t i = 0; i < count; ++i) m.Set(i, 0);
      Tensor v = m;
      Tensors exact = {w, m, v};
      for (int step = 1; step <= 3; ++step) {
        const Tensor grad = Values(count, 0.3 * step, DType::kF32);
        const Tensor control = Control(step, 0.5);
        Problem problem;
        problem.where =
            fmt::format("adamw, {} elements, step {}, parameter {}", count, step, Name(parameter));
        problem.kernel = "adamw";
        problem.attributes = AdamWAttributes();
        problem.inputs = {w, grad, m, v, control};
        problem.input_dtypes = {DType::kF32, DType::kF32, DType::kF32, DType::kF32, DType::kF64};
        problem.outputs = {Shared(w, DType::kF32, 0), Shared(m, DType::kF32, 2), Shared(v, DType::kF32, 3)};
        if (parameter != DType::kF32) problem.outputs.push_back(Output::Whole({w.type().shape, parameter}));
        const Outcome outcome = MustLaunch(problem);
        ops_test::RunInto("adamw", AdamWAttributes(), {exact[0], grad, exact[1], exact[2], control}, &exact);
        for (size_t o = 0; o < 3; ++o) {
          Compare(fmt::format("{}, output {}", problem.where, o), exact[o], outcome.outputs[o], {0, kBound});
        }
        if (parameter != DType::kF32) {  // the master weights, rounded
          Compare(problem.where + ", the parameter", Rounded(outcome.outputs[0], parameter),
                  outcome.outputs[3], {});
        }
        w = outcome.outputs[0];
        m = outcome.outputs[1];
        v = outcome.outputs[2];
      }
    }
  }
}

TEST_CASE("gpu optimizer: adamw with a gradient factor of 0 changes nothing") {
  const Tensor w = Values(1000, 0.1, DType::kF32);
  Problem problem;
  problem.where = "adamw, skipped";
  problem.kernel = "adamw";
  problem.attributes = AdamWAttributes();
  problem.inputs = {w, Values(1000, 0.3, DType::kF32), w, Rounded(w, DType::kBF16), Control(1, 0.0)};
  problem.input_dtypes = {DType::kF32, DType::kF32, DType::kF32, DType::kF32, DType::kF64};
  problem.outputs = {Shared(w, DType::kF32, 0), Shared(w, DType::kF32, 2), Shared(w, DType::kF32, 3)};
  const Outcome outcome = MustLaunch(problem);
  Compare("adamw, skipped, weights", problem.inputs[0], outcome.outputs[0], {});
  Compare("adamw, skipped, m", problem.inputs[2], outcome.outputs[1], {});
  Compare("adamw, skipped, v", problem.inputs[3], outcome.outputs[2], {});
}

// Sums of squares in f64: n·2⁻⁵³ relative, all terms being positive.
TEST_CASE("gpu optimizer: sum_squares") {
  for (DType dtype : kFloats) {
    for (std::int64_t count : {1, 7, 50021, 1 << 20}) {
      for (bool adds : {false, true}) {
        Problem problem;
        problem.where =
            fmt::format("sum_squares, {} elements, {}{}", count, Name(dtype), adds ? ", adding" : "");
        problem.kernel = "sum_squares";
        problem.inputs = {Values(count, 0.7, dtype)};
        problem.input_dtypes = {dtype};
        problem.outputs = {Output::Whole({{1}, DType::kF64})};
        problem.accumulate = adds ? 1 : 0;
        Tensor expected({{1}, DType::kF64});
        double sum = adds ? Before(0) : 0.0;
        for (std::int64_t i = 0; i < count; ++i) sum += problem.inputs[0].Get(i) * problem.inputs[0].Get(i);
        expected.Set(0, sum);
        Compare(problem.where, expected, MustLaunch(problem).outputs[0],
                {0x1p-53 * static_cast<double>(count + 8), 0});
      }
    }
  }
}

TEST_CASE("gpu optimizer: clip_factor") {
  for (const auto& [squares, clip] : {std::pair{16.0, 1.0}, {0.25, 1.0}, {16.0, 0.0}}) {
    Problem problem;
    problem.where = fmt::format("clip_factor, {} clipped to {}", squares, clip);
    problem.kernel = "clip_factor";
    problem.attributes = {{"clip", clip}};
    Tensor scalars({{2}, DType::kF64});
    scalars.Set(0, 7.0);
    scalars.Set(1, squares);
    const Tensor control = Control(4, 0.5);
    // The control block is input and output; the op names only the output, the harness shares the bytes.
    problem.inputs = {scalars, control};
    problem.input_dtypes = {DType::kF64, DType::kF64};
    problem.outputs = {Shared(control, DType::kF64, 1)};
    // An update adds 1 to the step, so it is not run twice into the same bytes: Launch uploads them anew.
    const Outcome outcome = MustLaunch(problem);
    Tensors expected = {control};
    ops_test::RunInto("clip_factor", problem.attributes, {scalars}, &expected);
    // √ and a division are correctly rounded in f64: a last bit for the sum of norm and 1e-6.
    Compare(problem.where, expected[0], outcome.outputs[0], {0x1p-52, 0});
  }
}

TEST_CASE("gpu optimizer: zero and copy") {
  for (DType dtype : kFloats) {
    for (std::int64_t count : {1, 70001}) {
      Problem problem;
      problem.where = fmt::format("copy, {} elements, {}", count, Name(dtype));
      problem.kernel = "copy";
      problem.inputs = {Values(count, 0.2, dtype)};
      problem.input_dtypes = {dtype};
      problem.outputs = {Output::Whole({{count}, dtype})};
      Compare(problem.where, problem.inputs[0], MustLaunch(problem).outputs[0], {});
      problem.where = fmt::format("zero, {} elements, {}", count, Name(dtype));
      problem.kernel = "zero";
      problem.inputs.clear();
      problem.input_dtypes.clear();
      Tensor expected({{count}, DType::kF64});
      for (std::int64_t i = 0; i < count; ++i) expected.Set(i, 0);
      Compare(problem.where, expected, MustLaunch(problem).outputs[0], {});
    }
  }
}

TEST_CASE("gpu optimizer: every flat kernel is there") {
  for (const char* kernel : {"sum_squares", "clip_factor", "adamw", "zero", "copy"}) {
    CHECK_MESSAGE(backend::cuda::FindKernel(kernel) != nullptr, fmt::format("{} has no kernel", kernel));
  }
}

}  // namespace engine::gpu_test
