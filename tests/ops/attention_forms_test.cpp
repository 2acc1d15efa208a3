// Attention with a soft cap, linear biases, sinks, biases by distance, a window and grouped heads, against
// tests/oracles/attention_forms.py; the slopes of linear biases against the paper's code; and forms that are refused.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

#include "engine/graph/alibi.h"
#include "engine/ops/ops.h"
#include "tests/ops/cases.h"
#include "tests/ops/oracle.h"

namespace engine::ops_test {
namespace {

#include "tests/ops/attention_forms.inc"

// The recursion of the code that goes with the ALiBi paper (arXiv:2108.12409).
std::vector<double> PaperSlopes(int heads) {
  const double log = std::log2(heads);
  if (log == std::floor(log)) {
    const double start = std::pow(2.0, -std::pow(2.0, -(log - 3)));
    std::vector<double> slopes = {start};
    while (static_cast<int>(slopes.size()) < heads) slopes.push_back(slopes.back() * start);
    return slopes;
  }
  const int closest = 1 << static_cast<int>(std::floor(log));
  std::vector<double> slopes = PaperSlopes(closest);
  const std::vector<double> twice = PaperSlopes(2 * closest);
  for (std::size_t i = 0; static_cast<int>(slopes.size()) < heads; i += 2) slopes.push_back(twice[i]);
  return slopes;
}

// The gradient of o that the oracle has.
Tensor MadeByCosine(const graph::TensorType& type) {
  Tensor tensor(type);
  for (std::int64_t i = 0; i < tensor.elements(); ++i)
    tensor.Set(i, std::cos(0.5 + 0.9 * static_cast<double>(i)));
  return tensor;
}

}  // namespace

TEST_CASE("attention with a soft cap, linear biases, sinks and a window is the oracle's") {
  const Tensor q = MadeBySine({2, 7, 6, 3}, 0.1);
  const Tensor k = MadeBySine({2, 7, 2, 3}, 0.2);
  const Tensor v = MadeBySine({2, 7, 2, 3}, 0.3);
  const Tensor sinks = MadeBySine({6}, 0.4);
  const Case at = {&ops::kAttention, "", {{{2, 7}, Input::kPositions}}, {}};
  const Tensor positions = MakeInputs(at, DType::kF64)[0];
  const graph::Attributes attributes = {
      {"scale", 0.6}, {"window", std::int64_t{4}}, {"softcap", 1.5}, {"alibi", std::int64_t{1}}};
  const Tensors out = RunOp(ops::kAttention, attributes, {q, k, v, positions, sinks});
  CheckOracle("o", out[0], kOutput);
  CheckOracle("lse", out[1], kLse);
  const Tensor d_o = MadeByCosine(q.type());
  const Tensors d = RunOp(ops::kAttentionGrad, attributes, {q, k, v, positions, out[0], out[1], d_o, sinks});
  CheckOracle("dq", d[0], kGradQ);
  CheckOracle("dk", d[1], kGradK);
  CheckOracle("dv", d[2], kGradV);
  CheckOracle("d_sinks", d[3], kGradSinks);
}

TEST_CASE("attention with biases by distance beside all other terms, of documents, is the oracle's") {
  const Tensor q = MadeBySine({2, 6, 4, 2}, 0.1);
  const Tensor k = MadeBySine({2, 6, 2, 2}, 0.2);
  const Tensor v = MadeBySine({2, 6, 2, 2}, 0.3);
  const Tensor sinks = MadeBySine({4}, 0.4);
  const Tensor biases = MadeBySine({4, 5}, 0.6);
  Input spans = {{2, 6, 2}, Input::kGiven};
  spans.given = {0, 3, 0, 3, 0, 3, 3, 6, 3, 6, 3, 6,   // of one sample
                 0, 1, 1, 6, 1, 6, 1, 6, 1, 6, 1, 6};  // of the other
  const Tensors ints =
      MakeInputs({&ops::kAttention, "", {{{2, 6}, Input::kPositions}, spans}, {}}, DType::kF64);
  const graph::Attributes attributes = {{"scale", 0.6},
                                        {"window", std::int64_t{4}},
                                        {"softcap", 1.5},
                                        {"alibi", std::int64_t{1}},
                                        {"distance", std::int64_t{2}}};
  const Tensors out = RunOp(ops::kAttention, attributes, {q, k, v, ints[0], ints[1], sinks, biases});
  CheckOracle("o", out[0], kNearOutput);
  CheckOracle("lse", out[1], kNearLse);
  const Tensor d_o = MadeByCosine(q.type());
  const Tensors d =
      RunOp(ops::kAttentionGrad, attributes, {q, k, v, ints[0], ints[1], out[0], out[1], d_o, sinks, biases});
  CheckOracle("dq", d[0], kNearGradQ);
  CheckOracle("dk", d[1], kNearGradK);
  CheckOracle("dv", d[2], kNearGradV);
  CheckOracle("d_sinks", d[3], kNearGradSinks);
  CheckOracle("d_biases", d[4], kNearGradBiases);
}

TEST_CASE("attention with biases by distance of keys that are another sequence is the oracle's") {
  const Tensor q = MadeBySine({2, 4, 4, 2}, 0.1);
  const Tensor k = MadeBySine({2, 7, 2, 2}, 0.2);
  const Tensor v = MadeBySine({2, 7, 2, 2}, 0.3);
  const Tensor biases = MadeBySine({4, 9}, 0.6);
  const Tensor positions =
      MakeInputs({&ops::kAttention, "", {{{2, 4}, Input::kPositions}}, {}}, DType::kF64)[0];
  const graph::Attributes attributes = {
      {"scale", 0.6}, {"mask", std::string("none")}, {"distance", std::int64_t{4}}};
  const Tensors out = RunOp(ops::kAttention, attributes, {q, k, v, positions, biases});
  CheckOracle("o", out[0], kCrossOutput);
  CheckOracle("lse", out[1], kCrossLse);
  const Tensors d = RunOp(ops::kAttentionGrad, attributes,
                          {q, k, v, positions, out[0], out[1], MadeByCosine(q.type()), biases});
  CheckOracle("dq", d[0], kCrossGradQ);
  CheckOracle("dk", d[1], kCrossGradK);
  CheckOracle("dv", d[2], kCrossGradV);
  CheckOracle("d_biases", d[3], kCrossGradBiases);
}

TEST_CASE("a query that sees no key but a sink has the output 0 and the sink's score") {
  const Tensor q = MadeBySine({1, 1, 2, 3}, 0.1);
  const Tensor k = MadeBySine({1, 1, 2, 3}, 0.2);
  Tensor positions({{1, 1}, DType::kI32});
  positions.Set(0, -1);
  const Tensor sinks = MadeBySine({2}, 0.4);
  const Tensors out = RunOp(ops::kAttention, {{"scale", 1.0}}, {q, k, k, positions, sinks});
  for (int i = 0; i < 6; ++i) CHECK(out[0].Get(i) == 0);
  for (int h = 0; h < 2; ++h) CHECK(out[1].Get(h) == sinks.Get(h));
  const Tensors d =
      RunOp(ops::kAttentionGrad, {{"scale", 1.0}}, {q, k, k, positions, out[0], out[1], q, sinks});
  for (const Tensor& gradient : d) {
    for (std::int64_t i = 0; i < gradient.elements(); ++i) CHECK(gradient.Get(i) == 0);
  }
}

TEST_CASE("slopes of linear biases are the paper's") {
  CHECK(graph::AlibiSlope(0, 8) == 0.5);
  CHECK(graph::AlibiSlope(7, 8) == 1.0 / 256);
  CHECK(graph::AlibiSlope(0, 1) == 1.0 / 256);
  for (const int heads : {1, 2, 3, 8, 12, 71, 112}) {
    CAPTURE(heads);
    const std::vector<double> expected = PaperSlopes(heads);
    for (int h = 0; h < heads; ++h)
      CHECK(graph::AlibiSlope(h, heads) ==
            doctest::Approx(expected[static_cast<std::size_t>(h)]).epsilon(1e-12));
  }
}

TEST_CASE("attention refuses linear biases without a causal mask, a negative cap, and sinks of other heads") {
  const graph::TensorType q = {{2, 4, 2, 6}};
  std::vector<graph::TensorType> inputs = {q, q, q, {{2, 4}, DType::kI32}};
  CHECK(ops::kAttention.infer(inputs, {{"softcap", 2.0}, {"mask", std::string("none")}}).ok());
  CHECK_FALSE(ops::kAttention.infer(inputs, {{"softcap", -2.0}}).ok());
  // Positions may be missing only where neither the mask nor dropout goes by them.
  const std::vector<graph::TensorType> without(inputs.begin(), inputs.begin() + 3);
  const graph::Attributes unmasked = {{"mask", std::string("none")}};
  CHECK(ops::kAttention.infer(without, unmasked).ok());
  CHECK_FALSE(ops::kAttention.infer(without, {}).ok());
  CHECK_FALSE(ops::kAttention.infer(without, {{"mask", std::string("none")}, {"dropout", 0.1}}).ok());
  CHECK(ops::kAttention.infer(inputs, {{"alibi", std::int64_t{1}}}).ok());
  CHECK_FALSE(
      ops::kAttention.infer(inputs, {{"alibi", std::int64_t{1}}, {"mask", std::string("none")}}).ok());
  inputs.push_back({{2}});
  CHECK(ops::kAttention.infer(inputs, {}).ok());
  inputs.back().shape = {4};
  CHECK_FALSE(ops::kAttention.infer(inputs, {}).ok());
}

TEST_CASE("attention has biases where its attribute says so, of its heads and distances") {
  const graph::TensorType q = {{2, 4, 4, 6}};
  const graph::TensorType k = {{2, 4, 2, 6}};
  const graph::TensorType positions = {{2, 4}, DType::kI32};
  const graph::TensorType lse = {{2, 4, 4}};
  const auto accepted = [&](std::vector<graph::TensorType> biases, graph::Attributes attributes) {
    std::vector<graph::TensorType> inputs = {q, k, k, positions};
    inputs.insert(inputs.end(), biases.begin(), biases.end());
    const bool forward = ops::kAttention.infer(inputs, attributes).ok();
    inputs = {q, k, k, positions, q, lse, q};
    inputs.insert(inputs.end(), biases.begin(), biases.end());
    CHECK(ops::kAttentionGrad.infer(inputs, attributes).ok() == forward);
    return forward;
  };
  const graph::Attributes three = {{"distance", std::int64_t{3}}};
  CHECK(accepted({{{4, 7}}}, three));
  CHECK(accepted({{{4}}, {{4, 7}}}, three));  // behind sinks
  CHECK_FALSE(accepted({{{4, 7}}}, {}));
  CHECK_FALSE(accepted({}, three));
  CHECK_FALSE(accepted({{{4}}}, three));
  CHECK_FALSE(accepted({{{2, 7}}}, three));
  CHECK_FALSE(accepted({{{4, 6}}}, three));
  CHECK_FALSE(accepted({{{4, 9}}}, three));
  CHECK_FALSE(accepted({{{4, 1}}}, {{"distance", std::int64_t{0}}}));
  // They go by positions, under any mask.
  graph::Attributes unmasked = three;
  unmasked.Set("mask", std::string("none"));
  CHECK(ops::kAttention.infer(std::vector<graph::TensorType>{q, k, k, positions, {{4, 7}}}, unmasked).ok());
  CHECK_FALSE(ops::kAttention.infer(std::vector<graph::TensorType>{q, k, k, {{4, 7}}}, unmasked).ok());
}

}  // namespace engine::ops_test
