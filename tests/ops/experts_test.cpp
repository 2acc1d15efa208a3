// The ops of experts together, against formulas without rows; the routers' published test vectors are those of the variants
// of Megatron-LM, DeepSeek-V3 and Hugging Face.
#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <random>
#include <vector>

#include "engine/graph/rows.h"
#include "engine/ops/ops.h"
#include "tests/ops/case_inputs.h"
#include "tests/ops/interpreter.h"

namespace engine::ops_test {
namespace {

using graph::Attributes;
using graph::TensorType;

Tensor Filled(const Shape& shape, DType dtype, const std::function<double(std::int64_t)>& value) {
  Tensor tensor(TensorType{shape, dtype});
  for (std::int64_t i = 0; i < tensor.elements(); ++i) tensor.Set(i, value(i));
  return tensor;
}

// logit[t][e] = round(2 sin(1.3 t + 0.7 e² + 0.2 t e) + 0.9·[e = 1], 6), T = 6, E = 4.
Tensor VectorLogits(const Shape& shape) {
  return Filled(shape, DType::kF64, [](std::int64_t i) {
    const auto t = static_cast<double>(i / 4);
    const auto e = static_cast<double>(i % 4);
    const double value = 2 * std::sin(1.3 * t + 0.7 * e * e + 0.2 * t * e) + (i % 4 == 1 ? 0.9 : 0.0);
    return std::round(value * 1e6) / 1e6;
  });
}

void CheckValues(const Tensor& tensor, const std::vector<double>& expected) {
  REQUIRE(tensor.elements() == static_cast<std::int64_t>(expected.size()));
  for (size_t i = 0; i < expected.size(); ++i) {
    CAPTURE(i);
    CHECK(std::fabs(tensor.Get(static_cast<std::int64_t>(i)) - expected[i]) <= 1e-6);
  }
}

const std::vector<double> kTopTwo = {1, 2, 1, 0, 0, 1, 2, 1, 3, 1, 1, 0};

TEST_CASE("routes have the choices and weights of the published variants") {
  const Tensor logits = VectorLogits({1, 6, 4});
  const Attributes over_chosen = {
      {"k", std::int64_t{2}}, {"score", std::string("softmax")}, {"normalize", kOne}};
  Tensors routes = RunOp(ops::kRoute, over_chosen, {logits});
  CheckValues(routes[0], kTopTwo);
  CheckValues(routes[1], {0.820311, 0.179689, 0.643337, 0.356663, 0.766862, 0.233138, 0.946078, 0.053922,
                          0.558312, 0.441688, 0.913031, 0.086969});
  Attributes over_all = over_chosen;
  over_all.Set("normalize", std::int64_t{0});
  routes = RunOp(ops::kRoute, over_all, {logits});
  CheckValues(routes[0], kTopTwo);
  CheckValues(routes[1], {0.691053, 0.151375, 0.477219, 0.264568, 0.585402, 0.177972, 0.879012, 0.050099,
                          0.521767, 0.412776, 0.865059, 0.082399});
  const Attributes sigmoid = {
      {"k", std::int64_t{2}}, {"score", std::string("sigmoid")}, {"normalize", kOne}, {"scale", 2.5}};
  const std::vector<double> numbers = {0, 0.3, -0.2, 0.1};
  const Tensor bias =
      Filled({4}, DType::kF64, [&](std::int64_t i) { return numbers[static_cast<size_t>(i)]; });
  routes = RunOp(ops::kRoute, sigmoid, {logits, bias});
  CheckValues(routes[0], {1, 3, 1, 3, 1, 0, 2, 1, 1, 3, 1, 0});
  CheckValues(routes[1], {1.597042, 0.902958, 1.290116, 1.209884, 0.960861, 1.539139, 1.871218, 0.628782,
                          1.229673, 1.270327, 1.521174, 0.978826});
  // Of 12 choices the experts have 2, 6, 1 and 3: the first is to be chosen more, the second less.
  CheckValues(RunOp(ops::kRouteLoad, {{"experts", std::int64_t{4}}}, {routes[0]})[0], {-4, 12, -8, 0});
  Attributes grouped = sigmoid;
  grouped.Set("scale", 1.0);
  grouped.Set("groups", std::int64_t{2});
  grouped.Set("kept", kOne);
  grouped.Set("best", std::int64_t{2});
  CheckValues(RunOp(ops::kRoute, grouped, {logits})[0], {1, 0, 1, 0, 0, 1, 2, 3, 3, 2, 1, 0});
}

TEST_CASE("sinkhorn has the published ranks, and route chooses by them") {
  const Tensor logits = VectorLogits({1, 6, 4});
  const Tensor ranks = RunOp(ops::kSinkhorn, {{"rounds", std::int64_t{13}}}, {logits})[0];
  const double first[] = {0.025766, 0.066034, 0.048656, 0.026212};
  for (std::int64_t e = 0; e < 4; ++e) CHECK(std::fabs(ranks.Get(e) - first[e]) <= 1e-6);
  const Attributes by_rank = {{"k", std::int64_t{2}},
                              {"score", std::string("softmax")},
                              {"normalize", std::int64_t{0}},
                              {"select", std::string("sinkhorn")}};
  const Tensors routes = RunOp(ops::kRoute, by_rank, {logits, ranks});
  CheckValues(routes[0], {1, 2, 0, 3, 0, 2, 2, 3, 3, 1, 1, 0});
  CHECK(std::fabs(routes[1].Get(2) - 0.264568) <= 1e-6);  // the softmax of expert 0 of token 1
  CHECK(std::fabs(routes[1].Get(3) - 0.252761) <= 1e-6);
  // Each sample by itself: twice the same one has twice the same ranks.
  const Tensor twice = Filled({2, 6, 4}, DType::kF64, [&](std::int64_t i) { return logits.Get(i % 24); });
  const Tensor both = RunOp(ops::kSinkhorn, {{"rounds", std::int64_t{13}}}, {twice})[0];
  for (std::int64_t i = 0; i < 48; ++i) CHECK(both.Get(i) == ranks.Get(i % 24));
}

// s = √log(1 + e^x), as DeepSeek-V4 and Megatron-LM have it.
TEST_CASE("weights of sqrtsoftplus, and of scores that are all 0") {
  const Attributes softplus = {
      {"k", std::int64_t{2}}, {"score", std::string("sqrtsoftplus")}, {"normalize", kOne}, {"scale", 1.5}};
  const Tensor logits = VectorLogits({1, 6, 4});
  const Tensors routes = RunOp(ops::kRoute, softplus, {logits});
  CheckValues(routes[0], kTopTwo);  // the score rises with the logit
  for (std::int64_t t = 0; t < 6; ++t) {
    double s[2];
    for (std::int64_t j = 0; j < 2; ++j)
      s[j] = std::sqrt(
          std::log(1 + std::exp(logits.Get(t * 4 + static_cast<std::int64_t>(routes[0].Get(t * 2 + j))))));
    for (std::int64_t j = 0; j < 2; ++j)
      CHECK(std::fabs(routes[1].Get(t * 2 + j) - 1.5 * s[j] / (s[0] + s[1])) <= 1e-12);
  }
  const Tensor low = Filled({1, 1, 4}, DType::kF64, [](std::int64_t) { return -3000.0; });
  for (const char* score : {"sigmoid", "sqrtsoftplus"}) {
    Attributes attributes = softplus;
    attributes.Set("score", std::string(score));
    const Tensor weight = RunOp(ops::kRoute, attributes, {low})[1];
    const Tensor choice =
        Filled({1, 1, 2}, DType::kI32, [](std::int64_t j) { return static_cast<double>(j); });
    const Tensor d = RunOp(ops::kRouteGrad, attributes, {low, choice, weight})[0];
    for (std::int64_t j = 0; j < 2; ++j) CHECK(weight.Get(j) == 0);
    for (std::int64_t e = 0; e < 4; ++e) CHECK(d.Get(e) == 0);
  }
}

TEST_CASE("the losses of a router have their published values and gradients") {
  const auto balance = [](const Tensor& logits, const std::vector<double>& choices, std::int64_t samples,
                          const char* score, Tensor* count) {
    const Tensor choice = Filled({samples, 6 / samples, 2}, DType::kI32,
                                 [&](std::int64_t i) { return choices[static_cast<size_t>(i)]; });
    *count = RunOp(ops::kTally, {{"experts", std::int64_t{4}}, {"f64", kOne}}, {choice})[0];
    const Attributes attributes = {
        {"k", std::int64_t{2}}, {"tokens", 6 / samples}, {"score", std::string(score)}, {"scale", 1.0 / 6}};
    return std::pair(RunOp(ops::kBalanceLoss, attributes, {logits, *count})[0].Get(0) / 6,
                     RunOp(ops::kBalanceLossGrad, attributes, {logits, *count})[0]);
  };
  Tensor count;
  const auto [loss, gradient] = balance(VectorLogits({1, 6, 4}), kTopTwo, 1, "softmax", &count);
  CheckValues(count, {3, 6, 2, 1});
  CHECK(std::fabs(loss - 1.263868) <= 1e-6);
  const double first[] = {-0.007581, 0.047546, -0.023224, -0.016741};
  for (std::int64_t e = 0; e < 4; ++e) CHECK(std::fabs(gradient.Get(e) - first[e]) <= 1e-6);
  // Two samples of three tokens.
  CHECK(std::fabs(balance(VectorLogits({2, 3, 4}), kTopTwo, 2, "softmax", &count).first - 1.320345) <= 1e-6);
  CHECK(std::fabs(balance(VectorLogits({1, 6, 4}), kTopTwo, 1, "sigmoid", &count).first - 1.093073) <= 1e-6);
  const Attributes mean = {{"scale", 1.0 / 6}};
  const Tensor logits = VectorLogits({1, 6, 4});
  CHECK(std::fabs(RunOp(ops::kRouterZLoss, mean, {logits})[0].Get(0) / 6 - 6.570441) <= 1e-6);
  const Tensor of_z = RunOp(ops::kRouterZLossGrad, mean, {logits})[0];
  const double z[] = {0.066048, 0.589232, 0.129071, 0.068307};
  for (std::int64_t e = 0; e < 4; ++e) CHECK(std::fabs(of_z.Get(e) - z[e]) <= 1e-6);
}

// Of such logits every sigmoid is 0 in float32, and in float64 below -750.
TEST_CASE("the losses of a router whose scores are all 0 are 0, and so are their gradients") {
  const Tensor low = Filled({1, 2, 4}, DType::kF64, [](std::int64_t) { return -3000.0; });
  const Tensor count = Filled({1, 4}, DType::kF64, [](std::int64_t) { return 1.0; });
  for (const char* score : {"sigmoid", "sqrtsoftplus"}) {
    CAPTURE(score);
    const Attributes attributes = {
        {"k", std::int64_t{2}}, {"tokens", std::int64_t{2}}, {"score", std::string(score)}, {"scale", 0.5}};
    CHECK(RunOp(ops::kBalanceLoss, attributes, {low, count})[0].Get(0) == 0);
    const Tensor gradient = RunOp(ops::kBalanceLossGrad, attributes, {low, count})[0];
    for (std::int64_t i = 0; i < 8; ++i) CHECK(gradient.Get(i) == 0);
    CHECK(RunOp(ops::kRouterEntropy, {{"score", std::string(score)}}, {low})[0].Get(0) == 0);
  }
}

TEST_CASE("counts of groups of samples, their mean over microbatches, entropy and loads") {
  const Tensor choice =
      Filled({2, 3, 2}, DType::kI32, [](std::int64_t i) { return kTopTwo[static_cast<size_t>(i)]; });
  const Attributes together = {{"experts", std::int64_t{4}}, {"f64", kOne}, {"samples", std::int64_t{2}}};
  const Tensor count = RunOp(ops::kTally, together, {choice})[0];
  CHECK(count.type().shape == Shape{1, 4});
  CheckValues(count, {3, 6, 2, 1});
  CheckValues(RunOp(ops::kRouteCount, {{"experts", std::int64_t{4}}}, {choice})[0], {3, 6, 2, 1});
  // Both samples at once: the value of one sample of six tokens.
  const Attributes loss = {
      {"k", std::int64_t{2}}, {"tokens", std::int64_t{6}}, {"score", std::string("softmax")}, {"scale", 1.0}};
  CHECK(std::fabs(RunOp(ops::kBalanceLoss, loss, {VectorLogits({2, 3, 4}), count})[0].Get(0) / 6 -
                  1.263868) <= 1e-6);
  // The second microbatch of an iteration sees the mean of both; the first of the next one begins anew.
  static_assert(kIteration == 7);  // its number from 1 is 8
  const Tensor of_last = Filled({6}, DType::kF64, [](std::int64_t i) { return i == 0 ? 7.0 : 5.0; });
  Tensors running = RunOp(ops::kRunningLoad, {}, {count, of_last});
  CheckValues(running[1], {3, 6, 2, 1});
  CheckValues(running[0], {8, 1, 3, 6, 2, 1});
  const Tensor other = Filled({2, 4}, DType::kF64, [](std::int64_t i) { return static_cast<double>(i); });
  running = RunOp(ops::kRunningLoad, {}, {other, running[0]});
  CheckValues(running[1], {3.5, 6, 5, 5.5});
  CheckValues(running[0], {8, 2, 7, 12, 10, 11});
  const Tensor even = Filled({1, 5, 4}, DType::kF64, [](std::int64_t) { return 0.7; });
  for (const char* score : {"softmax", "sigmoid", "sqrtsoftplus"}) {
    const Tensor entropy = RunOp(ops::kRouterEntropy, {{"score", std::string(score)}}, {even})[0];
    CHECK(std::fabs(entropy.Get(0) - 5 * std::log(4.0)) <= 1e-12);
  }
  const double p[] = {0.077462, 0.691053, 0.151375, 0.080111};  // of token 0 of the vectors
  double expected = 0;
  for (const double share : p) expected -= share * std::log(share);
  const Tensor first = Filled({1, 1, 4}, DType::kF64, [](std::int64_t e) {
    return VectorLogits({1, 6, 4}).Get(e);
  });
  CHECK(std::fabs(RunOp(ops::kRouterEntropy, {{"score", std::string("softmax")}}, {first})[0].Get(0) -
                  expected) <= 1e-5);
}

TEST_CASE("noise on a router's input lies within its bounds, and is that of the element and stream") {
  const Attributes attributes = {{"eps", 0.25}, {"stream", std::string("router")}};
  const Tensor ones = Filled({2, 50, 10}, DType::kF64, [](std::int64_t) { return 1.0; });
  const Tensor noise = RunOp(ops::kJitter, attributes, {ones})[0];
  double sum = 0;
  double least = 2;
  double most = 0;
  for (std::int64_t i = 0; i < noise.elements(); ++i) {
    sum += noise.Get(i);
    least = std::min(least, noise.Get(i));
    most = std::max(most, noise.Get(i));
  }
  CHECK(least >= 0.75);
  CHECK(least < 0.76);
  CHECK(most < 1.25);
  CHECK(most > 1.24);
  CHECK(std::fabs(sum / 1000 - 1) < 0.02);
  const Tensor other = RunOp(ops::kJitter, {{"eps", 0.25}, {"stream", std::string("other")}}, {ones})[0];
  std::int64_t same = 0;
  for (std::int64_t i = 0; i < noise.elements(); ++i) same += other.Get(i) == noise.Get(i) ? 1 : 0;
  CHECK(same < 10);
}

// y of each token as a sum over all experts, most of them with the weight 0.
std::vector<double> DenseSum(const Tensor& x, const std::vector<int>& chosen,
                             const std::vector<double>& weights, std::int64_t k, const Tensor& w1,
                             const Tensor& w2, std::int64_t experts, std::int64_t d, std::int64_t f) {
  const std::int64_t tokens = x.elements() / d;
  std::vector<double> y(static_cast<size_t>(tokens * d), 0.0);
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t e = 0; e < experts; ++e) {
      double weight = 0;
      for (std::int64_t j = 0; j < k; ++j) {
        const auto c = static_cast<size_t>(t * k + j);
        if (chosen[c] == e) weight += weights[c];
      }
      for (std::int64_t i = 0; i < f; ++i) {
        double gate = 0;
        double up = 0;
        for (std::int64_t q = 0; q < d; ++q) {
          gate += x.Get(t * d + q) * w1.Get(((e * 2 + 0) * f + i) * d + q);
          up += x.Get(t * d + q) * w1.Get(((e * 2 + 1) * f + i) * d + q);
        }
        const double h = gate / (1 + std::exp(-gate)) * up * weight;
        for (std::int64_t q = 0; q < d; ++q)
          y[static_cast<size_t>(t * d + q)] += h * w2.Get((e * d + q) * f + i);
      }
    }
  }
  return y;
}

// Of some of the experts, as on a rank of ep: those from `first` on.
Tensor RunRows(const Tensor& x, const Tensor& choice, const Tensor& weight, const Tensor& w1,
               const Tensor& w2, std::int64_t first, std::int64_t here, std::int64_t experts) {
  const std::int64_t samples = x.type().shape[0];
  Extent extent = Extent::Whole({samples, experts});
  extent.dims[1] = {Interval{first, here}};
  Tensor count(TensorType{{samples, here}, DType::kF64}, extent, {samples, experts});
  Tensors tallied = {count};
  RunInto("tally", {{"experts", experts}, {"by_expert", kOne}}, {choice}, &tallied);
  const Tensors places = RunOp(ops::kPlace, {}, {choice, tallied[0]});
  const Tensors& at = places;
  const Tensor rows = RunOp(ops::kSpread, {}, {x, at[0], at[1], choice})[0];
  const Attributes gated = {{"in_dims", kOne}, {"out_split", kOne}};
  const Tensor h = RunOp(ops::kGroupedLinear, gated, {rows, w1, at[2]})[0];
  const Attributes act = {{"act", std::string("silu")}, {"gated", kOne}};
  const Tensor scaled = RunOp(ops::kExpertActivation, act, {h, weight, at[0]})[0];
  const Tensor made = RunOp(ops::kGroupedLinear, {{"in_dims", kOne}}, {scaled, w2, at[2]})[0];
  return RunOp(ops::kCombine, {}, {made, at[0], at[1], choice})[0];
}

// The part of a weight [experts, …] from expert `first` on.
Tensor PartOf(const Tensor& w, std::int64_t first, std::int64_t here) {
  TensorType type = w.type();
  const std::int64_t size = type.shape.elements(1, type.shape.rank());
  type.shape[0] = here;
  Tensor part(type);
  for (std::int64_t i = 0; i < part.elements(); ++i) part.Set(i, w.Get(first * size + i));
  return part;
}

// As that of the cross entropy: the update divides all gradients by the loss scale.
TEST_CASE("a loss scale multiplies the gradients of a router's losses and not their values") {
  const Tensor logits = VectorLogits({1, 6, 4});
  const Tensor count = Filled({1, 4}, DType::kF64, [](std::int64_t e) { return static_cast<double>(e); });
  const Attributes attributes = {{"k", std::int64_t{2}},
                                 {"tokens", std::int64_t{6}},
                                 {"score", std::string("softmax")},
                                 {"scale", 0.25}};
  const auto check = [&](const graph::OpDef& op, const Tensors& inputs, double factor) {
    CAPTURE(op.name);
    const Tensor one = RunOp(op, attributes, inputs)[0];
    const Tensor eight = RunOp(op, attributes, inputs, {.loss_scale = 8})[0];
    for (std::int64_t i = 0; i < one.elements(); ++i) CHECK(eight.Get(i) == factor * one.Get(i));
  };
  check(ops::kBalanceLoss, {logits, count}, 1);
  check(ops::kBalanceLossGrad, {logits, count}, 8);
  check(ops::kRouterZLoss, {logits}, 1);
  check(ops::kRouterZLossGrad, {logits}, 8);
}

TEST_CASE("200 random loads: rows of experts give the sum over all experts, whole and by rank") {
  std::mt19937 random(17);
  const auto draw = [&](int below) { return static_cast<int>(random() % static_cast<unsigned>(below)); };
  const auto real = [&](std::int64_t) { return static_cast<double>(draw(2001)) / 1000 - 1; };
  for (int load = 0; load < 200; ++load) {
    CAPTURE(load);
    const std::int64_t experts = 2 * (1 + draw(5));
    const std::int64_t k = 1 + draw(static_cast<int>(std::min<std::int64_t>(experts, 4)));
    const std::int64_t samples = 1 + draw(3);
    const std::int64_t tokens = 1 + draw(40);
    const std::int64_t d = 1 + draw(6);
    const std::int64_t f = 1 + draw(5);
    const int popular =
        load % 4 == 0 ? static_cast<int>(k) : static_cast<int>(experts);  // all tokens to k experts
    std::vector<int> chosen;
    std::vector<double> weights;
    for (std::int64_t t = 0; t < samples * tokens; ++t) {
      std::vector<int> order(static_cast<size_t>(popular));
      for (int e = 0; e < popular; ++e) order[static_cast<size_t>(e)] = e;
      std::shuffle(order.begin(), order.end(), random);
      for (std::int64_t j = 0; j < k; ++j) {
        chosen.push_back(order[static_cast<size_t>(j)]);
        weights.push_back(real(0));
      }
    }
    const Tensor x = Filled({samples, tokens, d}, DType::kF64, real);
    const Tensor w1 = Filled({experts, 2, f, d}, DType::kF64, real);
    const Tensor w2 = Filled({experts, d, f}, DType::kF64, real);
    const Tensor choice = Filled({samples, tokens, k}, DType::kI32,
                                 [&](std::int64_t i) { return chosen[static_cast<size_t>(i)]; });
    const Tensor weight = Filled({samples, tokens, k}, DType::kF64,
                                 [&](std::int64_t i) { return weights[static_cast<size_t>(i)]; });
    const std::vector<double> expected = DenseSum(x, chosen, weights, k, w1, w2, experts, d, f);
    const Tensor whole = RunRows(x, choice, weight, w1, w2, 0, experts, experts);
    const std::int64_t half = experts / 2;
    const Tensor low = RunRows(x, choice, weight, PartOf(w1, 0, half), PartOf(w2, 0, half), 0, half, experts);
    const Tensor high =
        RunRows(x, choice, weight, PartOf(w1, half, half), PartOf(w2, half, half), half, half, experts);
    for (std::int64_t i = 0; i < whole.elements(); ++i) {
      CHECK(std::fabs(whole.Get(i) - expected[static_cast<size_t>(i)]) <= 1e-12);
      CHECK(std::fabs(low.Get(i) + high.Get(i) - expected[static_cast<size_t>(i)]) <= 1e-12);
    }
  }
}

// Six tokens, four experts, at most three choices each.
TEST_CASE("beyond a capacity the published choices are dropped") {
  const Tensor choice =
      Filled({1, 6, 2}, DType::kI32, [](std::int64_t i) { return kTopTwo[static_cast<size_t>(i)]; });
  const Attributes over_all = {
      {"k", std::int64_t{2}}, {"score", std::string("softmax")}, {"normalize", std::int64_t{0}}};
  const Tensor weight = RunOp(ops::kRoute, over_all, {VectorLogits({1, 6, 4})})[1];
  const auto drop = [&](const char* by) {
    return RunOp(ops::kDrop, {{"cap", std::int64_t{3}}, {"by", std::string(by)}}, {choice, weight});
  };
  const Tensors by_weight = drop("weight");
  CheckValues(by_weight[0], {1, 2, 1, 0, 0, -1, 2, -1, 3, -1, 1, 0});
  CHECK(RunOp(ops::kDropCount, {}, {by_weight[0]})[0].Get(0) == 3);
  CheckValues(drop("position")[0], {1, 2, 1, 0, 0, 1, 2, -1, 3, -1, -1, 0});
}

TEST_CASE("the bound of rows is reached and not exceeded") {
  // One row for each of three experts: each takes a whole block.
  CHECK(graph::RowBound(3, 1, 3) == 3 * graph::kRowAlignment);
  CHECK(graph::RowBound(1, 1, 64) == graph::kRowAlignment);
  CHECK(graph::RowBound(1000, 2, 1) == 1024);
  CHECK(graph::RowBound(32768, 2, 8) == 65536 + 7 * 128);  // eight groups that end on a block leave nothing
}

}  // namespace
}  // namespace engine::ops_test
