// The flat kernels of the optimizer against the CPU's in float64. They too give the same bits in a second
// run.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <string>

#include "engine/backend/cuda/launch/prepare.h"
#include "engine/base/half.h"
#include "engine/base/philox.h"
#include "engine/plan/control.h"
#include "engine/plan/optimizer.h"
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
  control.Set(plan::kLabelFactor, 1);
  return control;
}

Outcome LaunchOf(const Problem& problem) {
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
  // parameter f32: no copy beside the master weights
  for (const auto& [parameter, gradient] : {std::pair{DType::kF32, DType::kF32},
                                            {DType::kBF16, DType::kF32},
                                            {DType::kF16, DType::kF32},
                                            {DType::kF32, DType::kBF16},
                                            {DType::kBF16, DType::kBF16}}) {
    for (std::int64_t count : {1, 7, 4096, 40001}) {
      graph::Attributes attributes = AdamWAttributes();
      if (count == 4096) attributes.Set(plan::kLearningRateScale, 0.3);  // a learning rate of their own
      Tensor w = Values(count, 0.1, DType::kF32);
      Tensor m = Values(count, 0.0, DType::kF32);
      for (std::int64_t i = 0; i < count; ++i) m.Set(i, 0);
      Tensor v = m;
      Tensors exact = {w, m, v};
      for (int step = 1; step <= 3; ++step) {
        const Tensor grad = Values(count, 0.3 * step, gradient);
        const Tensor control = Control(step, 0.5);
        Problem problem;
        problem.where = fmt::format("adamw, {} elements, step {}, parameter {}, gradient {}", count, step,
                                    Name(parameter), Name(gradient));
        problem.kernel = "adamw";
        problem.attributes = attributes;
        problem.inputs = {w, grad, m, v, control};
        problem.input_dtypes = {DType::kF32, gradient, DType::kF32, DType::kF32, DType::kF64};
        problem.outputs = {Shared(w, DType::kF32, 0), Shared(m, DType::kF32, 2), Shared(v, DType::kF32, 3)};
        if (parameter != DType::kF32) problem.outputs.push_back(Output::Whole({w.type().shape, parameter}));
        const Outcome outcome = LaunchOf(problem);
        ops_test::RunInto("adamw", attributes, {exact[0], grad, exact[1], exact[2], control}, &exact);
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

namespace {

// What x becomes in bf16, `noise` being the 16 random bits that are added below the last bit kept.
double Drawn(double x, std::uint32_t noise) {
  const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(x)) + noise;
  return FloatFromBFloat16(static_cast<std::uint16_t>(bits >> 16));
}

// Draws of the kernel's contract, kernels/optimizer.h: what an element must become. The kernel's fp32 number
// is off by some 5 of the last bits of the terms (10 roundings), so that with a probability of 5 / 2¹⁶ it
// falls on the other side of its draw; twice that where the terms cancel to half, which half of those do, and
// so on for 16 octaves. A number that did is still a neighbour.
void CheckDrawn(const std::string& where, const Tensor& exact, const Tensor& actual, const std::string& draws,
                std::uint64_t step, int shift, double absolute) {
  const PhiloxKey key = MakePhiloxKey(ops_test::kSeed, draws);
  std::int64_t others = 0;
  for (std::int64_t i = 0; i < exact.elements(); ++i) {
    const std::uint32_t word = PhiloxWord(key, static_cast<std::uint64_t>(i), step);
    if (actual.Get(i) != Drawn(exact.Get(i), word >> shift & 0xFFFFU)) ++others;
  }
  const double expected = static_cast<double>(exact.elements()) * 16 * 5 / 65536;
  CHECK_MESSAGE(
      static_cast<double>(others) <= expected + 5 * std::sqrt(expected) + 1,
      fmt::format("{}: {} of {} elements are not rounded by their draws", where, others, exact.elements()));
  Compare(where, exact, actual, {0x1p-7 * 1.01, absolute});  // one ulp
}

}  // namespace

// Each step from what the last one left. Second moments of at least 0.2 keep the updates below 0.1.
TEST_CASE("gpu optimizer: adamw rounds weights and moments in bf16 by their draws") {
  for (DType moments : {DType::kF32, DType::kBF16}) {
    for (DType weights : {DType::kF32, DType::kBF16}) {
      if (moments == DType::kF32 && weights == DType::kF32) continue;
      for (std::int64_t count : {1, 7, 4096, 400001}) {
        Tensor w = Values(count, 0.1, weights);
        Tensor m = Values(count, 0.05, moments);
        Tensor v = Values(count, 0.02, moments);
        for (std::int64_t i = 0; i < count; ++i) v.Set(i, 0.25 + std::fabs(v.Get(i)));
        v = Rounded(v, moments);
        for (int step = 1; step <= 2; ++step) {
          const Tensor grad = Values(count, 0.3 * step, DType::kBF16);
          const Tensor control = Control(step, 0.5);
          Problem problem;
          problem.where = fmt::format("adamw, {} elements, step {}, weights {}, moments {}", count, step,
                                      Name(weights), Name(moments));
          problem.kernel = "adamw";
          problem.attributes = AdamWAttributes();
          if (moments == DType::kBF16) problem.attributes.Set("stream", std::string("the moments"));
          if (weights == DType::kBF16) problem.attributes.Set("weight_stream", std::string("the weights"));
          problem.inputs = {w, grad, m, v, control};
          problem.input_dtypes = {weights, DType::kBF16, moments, moments, DType::kF64};
          problem.outputs = {Shared(w, weights, 0), Shared(m, moments, 2), Shared(v, moments, 3)};
          const Outcome outcome = LaunchOf(problem);
          Tensors exact = {w, m, v};
          ops_test::RunInto("adamw", AdamWAttributes(), {w, grad, m, v, control}, &exact);
          // Absolute: what one step of the test in fp32 allows.
          constexpr double kBound = 10 * 1.5 * 6e-8 + 1e-2 * 6e-8 / 1e-3;
          const auto check = [&](size_t o, DType dtype, const char* what, const char* draws, int shift) {
            const std::string where = fmt::format("{}, {}", problem.where, what);
            if (dtype == DType::kF32) return Compare(where, exact[o], outcome.outputs[o], {0, kBound});
            CheckDrawn(where, exact[o], outcome.outputs[o], draws, static_cast<std::uint64_t>(step), shift,
                       kBound);
          };
          check(0, weights, "weights", "the weights", 0);
          check(1, moments, "m", "the moments", 0);
          check(2, moments, "v", "the moments", 16);
          w = outcome.outputs[0];
          m = outcome.outputs[1];
          v = outcome.outputs[2];
        }
      }
    }
  }
}

namespace {

const graph::Attributes& SgdAttributes() {
  static const graph::Attributes attributes = {{"momentum", 0.9}, {"weight_decay", 0.1}};
  return attributes;
}

}  // namespace

// Three steps. About five roundings a step of values of at most 2 (momentum); those of earlier steps' momentum add
// up to less than three times as many.
TEST_CASE("gpu optimizer: sgd") {
  constexpr double kBound = 3 * 3 * 5 * 2 * 6e-8;
  // parameter f32: no copy beside the master weights
  for (const auto& [parameter, gradient] : {std::pair{DType::kF32, DType::kF32},
                                            {DType::kBF16, DType::kF32},
                                            {DType::kF16, DType::kF32},
                                            {DType::kF32, DType::kBF16},
                                            {DType::kBF16, DType::kBF16}}) {
    for (std::int64_t count : {1, 7, 4096, 40001}) {
      graph::Attributes attributes = SgdAttributes();
      if (count == 4096) attributes.Set(plan::kLearningRateScale, 0.3);  // a learning rate of their own
      Tensor w = Values(count, 0.1, DType::kF32);
      Tensor m = Values(count, 0.0, DType::kF32);
      for (std::int64_t i = 0; i < count; ++i) m.Set(i, 0);
      Tensors exact = {w, m};
      for (int step = 1; step <= 3; ++step) {
        const Tensor grad = Values(count, 0.3 * step, gradient);
        const Tensor control = Control(step, 0.5);
        Problem problem;
        problem.where = fmt::format("sgd, {} elements, step {}, parameter {}, gradient {}", count, step,
                                    Name(parameter), Name(gradient));
        problem.kernel = "sgd";
        problem.attributes = attributes;
        problem.inputs = {w, grad, m, control};
        problem.input_dtypes = {DType::kF32, gradient, DType::kF32, DType::kF64};
        problem.outputs = {Shared(w, DType::kF32, 0), Shared(m, DType::kF32, 2)};
        if (parameter != DType::kF32) problem.outputs.push_back(Output::Whole({w.type().shape, parameter}));
        const Outcome outcome = LaunchOf(problem);
        ops_test::RunInto("sgd", attributes, {exact[0], grad, exact[1], control}, &exact);
        for (size_t o = 0; o < 2; ++o) {
          Compare(fmt::format("{}, output {}", problem.where, o), exact[o], outcome.outputs[o], {0, kBound});
        }
        if (parameter != DType::kF32) {  // the master weights, rounded
          Compare(problem.where + ", the parameter", Rounded(outcome.outputs[0], parameter),
                  outcome.outputs[2], {});
        }
        w = outcome.outputs[0];
        m = outcome.outputs[1];
      }
    }
  }
}

// Each step from what the last one left.
TEST_CASE("gpu optimizer: sgd rounds weights and momentum in bf16 by their draws") {
  for (DType moments : {DType::kF32, DType::kBF16}) {
    for (DType weights : {DType::kF32, DType::kBF16}) {
      if (moments == DType::kF32 && weights == DType::kF32) continue;
      for (std::int64_t count : {1, 7, 4096, 400001}) {
        Tensor w = Values(count, 0.1, weights);
        Tensor m = Values(count, 0.05, moments);
        for (int step = 1; step <= 2; ++step) {
          const Tensor grad = Values(count, 0.3 * step, DType::kBF16);
          const Tensor control = Control(step, 0.5);
          Problem problem;
          problem.where = fmt::format("sgd, {} elements, step {}, weights {}, momentum {}", count, step,
                                      Name(weights), Name(moments));
          problem.kernel = "sgd";
          problem.attributes = SgdAttributes();
          if (moments == DType::kBF16) problem.attributes.Set("stream", std::string("the momentum"));
          if (weights == DType::kBF16) problem.attributes.Set("weight_stream", std::string("the weights"));
          problem.inputs = {w, grad, m, control};
          problem.input_dtypes = {weights, DType::kBF16, moments, DType::kF64};
          problem.outputs = {Shared(w, weights, 0), Shared(m, moments, 2)};
          const Outcome outcome = LaunchOf(problem);
          Tensors exact = {w, m};
          ops_test::RunInto("sgd", SgdAttributes(), {w, grad, m, control}, &exact);
          // Absolute: what one step of the test in fp32 allows.
          constexpr double kBound = 5 * 2 * 6e-8;
          const auto check = [&](size_t o, DType dtype, const char* what, const char* draws) {
            const std::string where = fmt::format("{}, {}", problem.where, what);
            if (dtype == DType::kF32) return Compare(where, exact[o], outcome.outputs[o], {0, kBound});
            CheckDrawn(where, exact[o], outcome.outputs[o], draws, static_cast<std::uint64_t>(step), 0,
                       kBound);
          };
          check(0, weights, "weights", "the weights");
          check(1, moments, "momentum", "the momentum");
          w = outcome.outputs[0];
          m = outcome.outputs[1];
        }
      }
    }
  }
}

// An update of 2.8 % of the distance to the next bf16 number: rounding to nearest would never move a weight.
// Rounded by draws, each moves by the whole distance with that probability p, so the mean of n moves by p of
// it, with a standard deviation of √(p·(1 − p)/n); 5 of them. Draws of two steps are independent: weights
// that move in both are p² of all.
TEST_CASE("gpu optimizer: adamw without master weights moves them by the right mean") {
  constexpr std::int64_t kCount = 1 << 20;
  constexpr double kUlp = 0x1p-8;  // below 1
  Tensor w({{kCount}, DType::kF64});
  Tensor grad = w;
  Tensor zeros = w;
  for (std::int64_t i = 0; i < kCount; ++i) {
    w.Set(i, 1);
    grad.Set(i, 0.5);
    zeros.Set(i, 0);
  }
  std::vector<std::vector<bool>> moved;
  for (int step : {1, 2}) {
    Tensor control = Control(step, 1);
    control.Set(plan::kLearningRate, 1e-4);
    Problem problem;
    problem.where = fmt::format("adamw, the mean of bf16 weights, step {}", step);
    problem.kernel = "adamw";
    problem.attributes = AdamWAttributes();
    problem.attributes.Set("weight_stream", std::string("the weights"));
    problem.inputs = {w, grad, zeros, zeros, control};
    problem.input_dtypes = {DType::kBF16, DType::kBF16, DType::kF32, DType::kF32, DType::kF64};
    problem.outputs = {Shared(w, DType::kBF16, 0), Shared(w, DType::kF32, 2), Shared(w, DType::kF32, 3)};
    const Outcome outcome = LaunchOf(problem);
    Tensors exact = {w, zeros, zeros};
    ops_test::RunInto("adamw", AdamWAttributes(), {w, grad, zeros, zeros, control}, &exact);
    const double p = (1 - exact[0].Get(0)) / kUlp;
    REQUIRE(p > 0.01);
    REQUIRE(p < 0.1);
    std::int64_t count = 0;
    std::vector<bool>& now = moved.emplace_back();
    for (std::int64_t i = 0; i < kCount; ++i) {
      const double value = outcome.outputs[0].Get(i);
      now.push_back(value == 1 - kUlp);
      count += now.back() ? 1 : 0;
      if (!now.back() && value != 1) FAIL(fmt::format("{}: a weight of {}", problem.where, value));
    }
    const double deviation = std::sqrt(p * (1 - p) / kCount);
    const double mean = static_cast<double>(count) / kCount;
    CHECK_MESSAGE(
        std::fabs(mean - p) <= 5 * deviation,
        fmt::format("{}: a share of {:.6f} moved, not {:.6f} ± {:.6f}", problem.where, mean, p, deviation));
  }
  std::int64_t both = 0;
  std::int64_t first = 0;
  std::int64_t second = 0;
  for (size_t i = 0; i < moved[0].size(); ++i) {
    first += moved[0][i] ? 1 : 0;
    second += moved[1][i] ? 1 : 0;
    both += moved[0][i] && moved[1][i] ? 1 : 0;
  }
  const double expected = static_cast<double>(first) * static_cast<double>(second) / kCount;
  CHECK_MESSAGE(std::fabs(static_cast<double>(both) - expected) <= 5 * std::sqrt(expected),
                fmt::format("{} weights moved in both steps, not {:.0f}", both, expected));
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
  const Outcome outcome = LaunchOf(problem);
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
        Compare(problem.where, expected, LaunchOf(problem).outputs[0],
                {0x1p-53 * static_cast<double>(count + 8), 0});
      }
    }
  }
}

// One sum in fp32 of numbers of at most 2.2.
TEST_CASE("gpu optimizer: add_shard") {
  for (DType dtype : kFloats) {
    for (std::int64_t count : {1, 7, 4096, 50021}) {
      for (bool adds : {false, true}) {
        Problem problem;
        problem.where =
            fmt::format("add_shard, {} elements, {}{}", count, Name(dtype), adds ? ", adding" : "");
        problem.kernel = "add_shard";
        problem.inputs = {Values(count, 0.7, dtype)};
        problem.input_dtypes = {dtype};
        problem.outputs = {Output::Whole({{count}, DType::kF32})};
        problem.accumulate = adds ? 1 : 0;
        Tensor expected = problem.inputs[0];
        for (std::int64_t i = 0; adds && i < count; ++i) expected.Set(i, expected.Get(i) + Before(i));
        Compare(problem.where, expected, LaunchOf(problem).outputs[0], {0, adds ? 2.2 * 0x1p-24 : 0});
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
    const Outcome outcome = LaunchOf(problem);
    Tensors expected = {control};
    ops_test::RunInto("clip_factor", problem.attributes, {scalars}, &expected);
    // √ and a division are correctly rounded in f64: a last bit for the sum of norm and 1e-6.
    Compare(problem.where, expected[0], outcome.outputs[0], {0x1p-52, 0});
  }
}

namespace {

// Overflows and steps, the state of one update being the next one's; the rate is picked exactly.
void CheckScaler(const graph::Attributes& attributes) {
  Tensor control = Control(0, 0);
  control.Set(plan::kLossScale, 8);
  control.Set(plan::kHysteresis, 2);
  int steps = 0;
  for (const char what : std::string("osooossssooos")) {
    for (const int known : {steps, steps - 1}) {  // the host knows of the last step, or not yet
      Problem problem;
      problem.where =
          fmt::format("clip_factor, '{}' after {} steps of which {} are known", what, steps, known);
      problem.kernel = "clip_factor";
      problem.attributes = attributes;
      Tensor scalars({{2}, DType::kF64});
      scalars.Set(0, 7.0);
      scalars.Set(1, what == 'o' ? INFINITY : 9.0);
      Tensor offered = control;
      offered.Set(plan::kGradientFactor, known == steps ? 1 : 2);  // of the program
      offered.Set(plan::kKnownSteps, known);
      offered.Set(plan::kRateIfKnown, 0.1 + known);
      offered.Set(plan::kRateIfMore, 0.1 + (known + 1));
      problem.inputs = {scalars, offered};
      problem.input_dtypes = {DType::kF64, DType::kF64};
      problem.outputs = {Shared(offered, DType::kF64, 1)};
      const Outcome outcome = LaunchOf(problem);
      Tensors expected = {offered};
      ops_test::RunInto("clip_factor", problem.attributes, {scalars}, &expected);
      Compare(problem.where, expected[0], outcome.outputs[0], {0x1p-52, 0});  // as above
      CHECK(outcome.outputs[0].Get(plan::kLearningRate) == 0.1 + steps);
      if (known != steps) control = expected[0];
    }
    steps += what == 'o' ? 0 : 1;
    CHECK(control.Get(plan::kStep) == steps);
  }
}

}  // namespace

TEST_CASE("gpu optimizer: clip_factor moves the loss scale, or does not, and picks the learning rate") {
  CheckScaler({{"clip", 1.0},
               {"dynamic", std::int64_t{1}},
               {"window", std::int64_t{3}},
               {"hysteresis", std::int64_t{2}},
               {"min_scale", 2.0}});
  CheckScaler({{"clip", 1.0}, {"constant", std::int64_t{1}}});
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
      Compare(problem.where, problem.inputs[0], LaunchOf(problem).outputs[0], {});
      problem.where = fmt::format("zero, {} elements, {}", count, Name(dtype));
      problem.kernel = "zero";
      problem.inputs.clear();
      problem.input_dtypes.clear();
      Tensor expected({{count}, DType::kF64});
      for (std::int64_t i = 0; i < count; ++i) expected.Set(i, 0);
      Compare(problem.where, expected, LaunchOf(problem).outputs[0], {});
    }
  }
}

TEST_CASE("gpu optimizer: every flat kernel is there") {
  for (const char* kernel : {"sum_squares", "add_shard", "clip_factor", "adamw", "sgd", "zero", "copy"}) {
    CHECK_MESSAGE(backend::cuda::FindKernel(kernel) != nullptr, fmt::format("{} has no kernel", kernel));
  }
}

}  // namespace engine::gpu_test
