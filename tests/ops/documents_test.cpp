// Attention within documents against tests/oracles/documents.py, and spans that are refused.
#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "engine/ops/ops.h"
#include "tests/ops/oracle.h"

namespace engine::ops_test {
namespace {

#include "tests/ops/documents.inc"

// Lengths of the script's documents.
const std::vector<std::vector<std::int32_t>> kLengths = {{3, 1, 5}, {1, 4, 2, 2}};

Tensor SpansOf(const std::vector<std::vector<std::int32_t>>& lengths) {
  std::vector<std::int32_t> bounds;
  for (const std::vector<std::int32_t>& of_sample : lengths) {
    std::int32_t first = 0;
    for (const std::int32_t length : of_sample) {
      for (std::int32_t i = 0; i < length; ++i) bounds.insert(bounds.end(), {first, first + length});
      first += length;
    }
  }
  const auto samples = static_cast<std::int64_t>(lengths.size());
  Tensor spans({{samples, static_cast<std::int64_t>(bounds.size()) / 2 / samples, 2}, DType::kI32});
  for (std::size_t i = 0; i < bounds.size(); ++i) spans.Set(static_cast<std::int64_t>(i), bounds[i]);
  return spans;
}

struct Computed {
  Tensors out, gradients;
};

// With positions, or without (`placed`).
Computed ComputeOn(const graph::Attributes& attributes, bool placed) {
  const Tensor q = MadeBySine({2, 9, 4, 3}, 0.1);
  Tensors inputs = {q, MadeBySine({2, 9, 2, 3}, 0.2), MadeBySine({2, 9, 2, 3}, 0.3)};
  if (placed) {
    Tensor positions({{2, 9}, DType::kI32});
    for (std::int64_t i = 0; i < 18; ++i) positions.Set(i, static_cast<double>(i % 9));
    inputs.push_back(positions);
  }
  inputs.push_back(SpansOf(kLengths));
  Computed computed;
  computed.out = RunOp(ops::kAttention, attributes, inputs);
  Tensor d_o(q.type());
  for (std::int64_t i = 0; i < d_o.elements(); ++i) d_o.Set(i, std::cos(0.5 + 0.9 * static_cast<double>(i)));
  inputs.insert(inputs.end(), {computed.out[0], computed.out[1], d_o});
  computed.gradients = RunOp(ops::kAttentionGrad, attributes, inputs);
  return computed;
}

}  // namespace

TEST_CASE("attention within documents is the oracle's") {
  const Computed causal = ComputeOn({{"scale", 0.6}}, /*placed=*/true);
  CheckOracle("o", causal.out[0], kCausalOutput);
  CheckOracle("lse", causal.out[1], kCausalLse);
  CheckOracle("dq", causal.gradients[0], kCausalGradQ);
  CheckOracle("dk", causal.gradients[1], kCausalGradK);
  CheckOracle("dv", causal.gradients[2], kCausalGradV);
  const Computed window = ComputeOn({{"scale", 0.6}, {"window", std::int64_t{3}}}, /*placed=*/true);
  CheckOracle("o, window", window.out[0], kWindowOutput);
  CheckOracle("lse, window", window.out[1], kWindowLse);
  CheckOracle("dq, window", window.gradients[0], kWindowGradQ);
  CheckOracle("dk, window", window.gradients[1], kWindowGradK);
  CheckOracle("dv, window", window.gradients[2], kWindowGradV);
  for (const bool placed : {false, true}) {
    CAPTURE(placed);
    const Computed whole = ComputeOn({{"scale", 0.6}, {"mask", std::string("none")}}, placed);
    CheckOracle("o, no mask", whole.out[0], kWholeOutput);
    CheckOracle("lse, no mask", whole.out[1], kWholeLse);
    CheckOracle("dq, no mask", whole.gradients[0], kWholeGradQ);
    CheckOracle("dk, no mask", whole.gradients[1], kWholeGradK);
    CheckOracle("dv, no mask", whole.gradients[2], kWholeGradV);
  }
}

TEST_CASE("spans are two numbers of each query") {
  const graph::TensorType q = {{2, 4, 2, 6}};
  const graph::TensorType positions = {{2, 4}, DType::kI32};
  const auto infers = [&](const Shape& spans) {
    return ops::kAttention.infer(std::vector<graph::TensorType>{q, q, q, positions, {spans, DType::kI32}}, {})
        .ok();
  };
  CHECK(infers({2, 4, 2}));
  CHECK_FALSE(infers({2, 4, 3}));
  CHECK_FALSE(infers({2, 3, 2}));
  CHECK_FALSE(infers({1, 4, 2}));
  // Spans alone do not say where a query stands.
  const std::vector<graph::TensorType> without = {q, q, q, {{2, 4, 2}, DType::kI32}};
  CHECK_FALSE(ops::kAttention.infer(without, {}).ok());
  CHECK(ops::kAttention.infer(without, {{"mask", std::string("none")}}).ok());
}

}  // namespace engine::ops_test
