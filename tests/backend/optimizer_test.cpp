// The flat kernels of the optimizer.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "engine/backend/cpu/kernel_table.h"
#include "engine/plan/control.h"

namespace engine::backend::cpu {
namespace {

template <typename T>
TensorView Flat(std::vector<T>* data) {
  const DType dtype = sizeof(T) == 8 ? DType::kF64 : DType::kF32;
  const Shape shape = {static_cast<std::int64_t>(data->size())};
  return {data->data(), dtype, shape, Extent::Whole(shape), shape};
}

void RunFlat(std::string_view op, std::vector<TensorView> inputs, std::vector<TensorView> outputs,
             const graph::Attributes& attributes = {}) {
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
void CheckAdamW(double bound) {
  constexpr size_t kCount = 40001;
  const double rate = 1e-2, beta1 = 0.9, beta2 = 0.95, epsilon = 1e-3, decay = 0.1, factor = 0.5;
  std::vector<T> param = Values<T>(kCount, 0.1), m(kCount), v(kCount);
  std::vector<double> p(param.begin(), param.end()), m2(kCount), v2(kCount);
  for (int step = 1; step <= 3; ++step) {
    std::vector<T> grad = Values<T>(kCount, 0.3 * step);
    std::vector<double> control(plan::kControlNumbers);
    control[plan::kLearningRate] = rate;
    control[plan::kStep] = step;
    control[plan::kGradientFactor] = factor;
    const std::vector<TensorView> in = {Flat(&param), Flat(&grad), Flat(&m), Flat(&v), Flat(&control)};
    RunFlat("adamw", in, {in[0], in[2], in[3]},
            {{"beta1", beta1}, {"beta2", beta2}, {"epsilon", epsilon}, {"weight_decay", decay}});
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
}

TEST_CASE("sum_squares adds to what its output holds") {
  std::vector<float> x = Values<float>(50021, 0.7);
  std::vector<double> sum = {2.5};
  double expected = 2.5;
  for (float value : x) expected += static_cast<double>(value) * static_cast<double>(value);
  RunFlat("sum_squares", {Flat(&x)}, {Flat(&sum)});
  CHECK(sum[0] == doctest::Approx(expected).epsilon(1e-13));
}

TEST_CASE("clip_factor") {
  const auto factor = [](double squares, double clip) {
    std::vector<double> scalars = {7.0, squares};
    std::vector<double> control(plan::kControlNumbers);
    std::iota(control.begin(), control.end(), 1.0);
    const std::vector<double> before = control;
    RunFlat("clip_factor", {Flat(&scalars)}, {Flat(&control)}, {{"clip", clip}});
    CHECK(control[plan::kGradientNorm] == std::sqrt(squares));
    CHECK(control[plan::kStep] == before[plan::kStep] + 1);
    for (size_t i = 0; i < control.size(); ++i) {
      if (i == plan::kStep || i == plan::kGradientNorm || i == plan::kGradientFactor) continue;
      CHECK(control[i] == before[i]);
    }
    return control[plan::kGradientFactor];
  };
  CHECK(factor(16.0, 1.0) == 1.0 / (4.0 + 1e-6));
  CHECK(factor(0.25, 1.0) == 1.0);
  CHECK(factor(16.0, 0.0) == 1.0);
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
