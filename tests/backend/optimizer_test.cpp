// The flat kernels of the optimizer.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "engine/backend/cpu/kernel_table.h"
#include "engine/plan/control.h"
#include "engine/plan/optimizer.h"

namespace engine::backend::cpu {
namespace {

template <typename T>
TensorView Flat(std::vector<T>* data) {
  const DType dtype = sizeof(T) == 8 ? DType::kF64 : DType::kF32;
  const Shape shape = {static_cast<std::int64_t>(data->size())};
  return {data->data(), dtype, shape, Extent::Whole(shape), shape};
}

void RunFlat(std::string_view op, std::vector<TensorView> inputs, std::vector<TensorView> outputs,
             const graph::Attributes& attributes = {}, std::uint32_t accumulate = 0) {
  const KernelEntry* entry = FindKernel(op);
  REQUIRE(entry != nullptr);
  std::vector<graph::TensorType> types;
  for (const TensorView& input : inputs) types.push_back({input.shape, input.dtype});
  std::vector<std::byte> scratch;
  if (entry->scratch_bytes != nullptr) {
    scratch.resize(static_cast<size_t>(entry->scratch_bytes(types, {}, attributes)));
  }
  const KernelContext context;
  KernelFor(*entry, inputs, outputs)({.inputs = inputs,
                                      .outputs = outputs,
                                      .attributes = &attributes,
                                      .accumulate = accumulate,
                                      .scratch = scratch,
                                      .context = &context});
}

template <typename T>
std::vector<T> Values(size_t count, double step) {
  std::vector<T> values;
  for (size_t i = 0; i < count; ++i)
    values.push_back(static_cast<T>(std::sin(1.0 + step * static_cast<double>(i))));
  return values;
}

// Several steps, against the formula in double.
template <typename T>
void CheckAdamW(double bound, double scale = 1) {
  constexpr size_t kCount = 40001;
  const double rate = 1e-2 * scale, beta1 = 0.9, beta2 = 0.95, epsilon = 1e-3, decay = 0.1, factor = 0.5;
  std::vector<T> param = Values<T>(kCount, 0.1), m(kCount), v(kCount);
  std::vector<double> p(param.begin(), param.end()), m2(kCount), v2(kCount);
  for (int step = 1; step <= 3; ++step) {
    std::vector<T> grad = Values<T>(kCount, 0.3 * step);
    std::vector<double> control(plan::kControlNumbers);
    control[plan::kLearningRate] = 1e-2;
    control[plan::kStep] = step;
    control[plan::kGradientFactor] = factor;
    const std::vector<TensorView> in = {Flat(&param), Flat(&grad), Flat(&m), Flat(&v), Flat(&control)};
    graph::Attributes attributes = {
        {"beta1", beta1}, {"beta2", beta2}, {"epsilon", epsilon}, {"weight_decay", decay}};
    if (scale != 1) attributes.Set(plan::kLearningRateScale, scale);
    RunFlat("adamw", in, {in[0], in[2], in[3]}, attributes);
    for (size_t i = 0; i < kCount; ++i) {
      const double g = factor * static_cast<double>(grad[i]);
      m2[i] = beta1 * m2[i] + (1 - beta1) * g;
      v2[i] = beta2 * v2[i] + (1 - beta2) * g * g;
      const double m_hat = m2[i] / (1 - std::pow(beta1, step));
      const double v_hat = v2[i] / (1 - std::pow(beta2, step));
      p[i] -= rate * (m_hat / (std::sqrt(v_hat) + epsilon) + decay * p[i]);
    }
  }
  double worst = 0;
  for (size_t i = 0; i < kCount; ++i) {
    worst = std::max({worst, std::fabs(p[i] - param[i]), std::fabs(m2[i] - m[i]), std::fabs(v2[i] - v[i])});
  }
  CHECK(worst <= bound);
}

TEST_CASE("adamw") {
  CheckAdamW<double>(1e-14);
  // Three steps of about ten roundings of values of at most 1; an update's error counts a hundredth (the
  // rate), but for gradients near 0 the quotient of m and v adds rate · ε₃₂ / epsilon.
  CheckAdamW<float>(3 * 10 * 6e-8 + 3 * 1e-2 * 6e-8 / 1e-3);
  CheckAdamW<double>(1e-14, 0.3);  // a learning rate of their own
}

// Several steps, against PyTorch's formula (torch.optim.SGD, dampening 0) in double, its first step apart.
template <typename T>
void CheckSgd(double momentum, double bound, double scale = 1) {
  constexpr size_t kCount = 40001;
  const double rate = 1e-2 * scale, decay = 0.1, factor = 0.5;
  std::vector<T> param = Values<T>(kCount, 0.1), buffer(kCount);
  std::vector<double> p(param.begin(), param.end()), b(kCount);
  for (int step = 1; step <= 3; ++step) {
    std::vector<T> grad = Values<T>(kCount, 0.3 * step);
    std::vector<double> control(plan::kControlNumbers);
    control[plan::kLearningRate] = 1e-2;
    control[plan::kStep] = step;
    control[plan::kGradientFactor] = factor;
    const std::vector<TensorView> in = {Flat(&param), Flat(&grad), Flat(&buffer), Flat(&control)};
    graph::Attributes attributes = {{"momentum", momentum}, {"weight_decay", decay}};
    if (scale != 1) attributes.Set(plan::kLearningRateScale, scale);
    RunFlat("sgd", in, {in[0], in[2]}, attributes);
    for (size_t i = 0; i < kCount; ++i) {
      const double g = factor * static_cast<double>(grad[i]) + decay * p[i];
      b[i] = step == 1 ? g : momentum * b[i] + g;
      p[i] -= rate * b[i];
    }
  }
  double worst = 0;
  for (size_t i = 0; i < kCount; ++i)
    worst = std::max({worst, std::fabs(p[i] - param[i]), std::fabs(b[i] - buffer[i])});
  CHECK(worst <= bound);
}

TEST_CASE("sgd") {
  for (double momentum : {0.0, 0.9}) {
    CAPTURE(momentum);
    CheckSgd<double>(momentum, 1e-14);
    // Three steps of about five roundings of values of at most 2.
    CheckSgd<float>(momentum, 3 * 5 * 2 * 6e-8);
    CheckSgd<double>(momentum, 1e-14, 0.3);  // a learning rate of their own
  }
}

TEST_CASE("every optimizer has its kernel") {
  for (const plan::OptimizerDef& optimizer : plan::AllOptimizers()) {
    CAPTURE(optimizer.kind);
    CHECK(FindKernel(optimizer.kernel) != nullptr);
  }
}

TEST_CASE("sum_squares adds to what its output holds") {
  std::vector<float> x = Values<float>(50021, 0.7);
  std::vector<double> sum = {2.5};
  double expected = 2.5;
  for (float value : x) expected += static_cast<double>(value) * static_cast<double>(value);
  RunFlat("sum_squares", {Flat(&x)}, {Flat(&sum)});
  CHECK(sum[0] == doctest::Approx(expected).epsilon(1e-13));
}

TEST_CASE("adamw with a gradient factor of 0 changes nothing") {
  std::vector<float> param = Values<float>(1000, 0.1), grad = Values<float>(1000, 0.3), m = param, v = param;
  grad[7] = std::numeric_limits<float>::infinity();
  const std::vector<float> before = param;
  std::vector<double> control(plan::kControlNumbers);
  control[plan::kLearningRate] = 1e-2;
  control[plan::kStep] = 1;
  const std::vector<TensorView> in = {Flat(&param), Flat(&grad), Flat(&m), Flat(&v), Flat(&control)};
  RunFlat("adamw", in, {in[0], in[2], in[3]},
          {{"beta1", 0.9}, {"beta2", 0.95}, {"epsilon", 1e-3}, {"weight_decay", 0.1}});
  CHECK(param == before);
  CHECK(m == before);
  CHECK(v == before);
}

TEST_CASE("sgd with a gradient factor of 0 changes nothing") {
  std::vector<float> param = Values<float>(1000, 0.1), grad = Values<float>(1000, 0.3), momentum = param;
  grad[7] = std::numeric_limits<float>::infinity();
  const std::vector<float> before = param;
  std::vector<double> control(plan::kControlNumbers);
  control[plan::kLearningRate] = 1e-2;
  control[plan::kStep] = 1;
  const std::vector<TensorView> in = {Flat(&param), Flat(&grad), Flat(&momentum), Flat(&control)};
  RunFlat("sgd", in, {in[0], in[2]}, {{"momentum", 0.9}, {"weight_decay", 0.1}});
  CHECK(param == before);
  CHECK(momentum == before);
}

TEST_CASE("clip_factor") {
  const auto factor = [](double squares, double clip, double of_program = 1) {
    std::vector<double> scalars = {7.0, squares};
    std::vector<double> control(plan::kControlNumbers);
    std::iota(control.begin(), control.end(), 1.0);
    control[plan::kLossScale] = 1;
    control[plan::kGradientFactor] = of_program;
    control[plan::kKnownSteps] = control[plan::kStep];
    const std::vector<double> before = control;
    RunFlat("clip_factor", {Flat(&scalars)}, {Flat(&control)}, {{"clip", clip}});
    CHECK(control[plan::kGradientNorm] == of_program * std::sqrt(squares));
    CHECK(control[plan::kStep] == before[plan::kStep] + 1);
    CHECK(control[plan::kLearningRate] == before[plan::kRateIfKnown]);
    for (size_t i = 0; i < plan::kKnownSteps; ++i) {
      if (i == plan::kStep || i == plan::kGradientNorm || i == plan::kGradientFactor) continue;
      if (i == plan::kLearningRate) continue;
      CHECK(control[i] == before[i]);
    }
    return control[plan::kGradientFactor];
  };
  CHECK(factor(16.0, 1.0) == 1.0 / (4.0 + 1e-6));
  CHECK(factor(0.25, 1.0) == 1.0);
  CHECK(factor(16.0, 0.0) == 1.0);
  // Of a program of half of the samples: the norm is that of its own mean, and is clipped.
  CHECK(factor(16.0, 1.0, 2.0) == 2.0 / (8.0 + 1e-6));
  CHECK(factor(0.0625, 1.0, 2.0) == 2.0);
}

// By the rule of Megatron-LM's DynamicGradScaler, worked out by hand. o: an overflow; s: a step.
TEST_CASE("clip_factor moves the loss scale and picks the learning rate by the steps done") {
  std::vector<double> control(plan::kControlNumbers);
  control[plan::kLossScale] = 8;
  control[plan::kHysteresis] = 2;
  std::string scales;
  double steps = 0;
  double skipped = 0;
  for (char what : std::string("osooossssooos")) {
    CAPTURE(what);
    const double scale = control[plan::kLossScale];
    const auto after = [&](double known) {
      std::vector<double> block = control;
      block[plan::kGradientFactor] = 1;
      block[plan::kKnownSteps] = known;
      block[plan::kRateIfKnown] = 100 + known;
      block[plan::kRateIfMore] = 101 + known;
      std::vector<double> scalars = {7.0, what == 'o' ? std::numeric_limits<double>::infinity() : 9.0};
      RunFlat("clip_factor", {Flat(&scalars)}, {Flat(&block)},
              {{"clip", 1.0},
               {"dynamic", std::int64_t{1}},
               {"window", std::int64_t{3}},
               {"hysteresis", std::int64_t{2}},
               {"min_scale", 2.0}});
      return block;
    };
    const std::vector<double> behind = after(steps - 1);  // the host does not know yet of the last step
    control = after(steps);
    CHECK(control == behind);
    CHECK(control[plan::kLearningRate] == 100 + steps);
    (what == 'o' ? skipped : steps) += 1;
    CHECK(control[plan::kStep] == steps);
    CHECK(control[plan::kSkipped] == skipped);
    if (what == 'o') {
      CHECK(control[plan::kGradientFactor] == 0);
    } else {
      CHECK(control[plan::kGradientNorm] == 3 / scale);
      CHECK(control[plan::kGradientFactor] == std::min(1.0, 1 / (3 / scale + 1e-6)) / scale);
    }
    scales += fmt::format(" {}", control[plan::kLossScale]);
  }
  CHECK(scales == " 8 8 4 2 2 2 2 4 4 4 2 2 2");
}

TEST_CASE("clip_factor of a constant loss scale skips what overflows and never moves") {
  std::vector<double> control(plan::kControlNumbers);
  control[plan::kLossScale] = 8;
  control[plan::kHysteresis] = std::numeric_limits<double>::infinity();
  for (const double squares : {9.0, std::numeric_limits<double>::infinity(), std::nan(""), 9.0}) {
    control[plan::kGradientFactor] = 1;
    std::vector<double> before = control;
    std::vector<double> scalars = {7.0, squares};
    RunFlat("clip_factor", {Flat(&scalars)}, {Flat(&control)},
            {{"clip", 1.0}, {"constant", std::int64_t{1}}});
    const bool skipped = !std::isfinite(squares);
    CHECK(control[plan::kGradientFactor] == (skipped ? 0 : 1.0 / 8));  // the norm, 3 / 8, is not clipped
    before[skipped ? plan::kSkipped : plan::kStep] += 1;
    for (const plan::Control number :
         {plan::kStep, plan::kSkipped, plan::kLossScale, plan::kCleanIterations, plan::kHysteresis}) {
      CHECK(control[number] == before[number]);
    }
  }
}

TEST_CASE("add_shard overwrites, or adds to what its output holds") {
  std::vector<float> x = Values<float>(50021, 0.7);
  std::vector<float> sum(x.size(), std::numeric_limits<float>::quiet_NaN());
  RunFlat("add_shard", {Flat(&x)}, {Flat(&sum)});
  CHECK(sum == x);
  std::vector<float> y = Values<float>(50021, 0.3);
  RunFlat("add_shard", {Flat(&y)}, {Flat(&sum)}, {}, 1);
  for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
  CHECK(sum == x);
}

TEST_CASE("zero and copy") {
  std::vector<float> x = Values<float>(70001, 0.2);
  std::vector<float> y(x.size(), 3.0F);
  RunFlat("copy", {Flat(&x)}, {Flat(&y)});
  CHECK(std::memcmp(x.data(), y.data(), x.size() * sizeof(float)) == 0);
  RunFlat("zero", {}, {Flat(&y)});
  CHECK(y == std::vector<float>(x.size()));
}

}  // namespace
}  // namespace engine::backend::cpu
