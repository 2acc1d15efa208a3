// FLOPs that the ops state, against a count of the multiplications and additions of the plain loops.
#include <doctest/doctest.h>

#include "engine/ops/ops.h"

namespace engine::ops_test {
namespace {

using graph::TensorType;

double StatedFlops(const graph::OpDef& op, const std::vector<TensorType>& inputs,
                   const graph::Attributes& attributes) {
  const auto outputs = op.infer(inputs, attributes);
  REQUIRE(outputs.ok());
  return op.cost(inputs, *outputs, attributes).flops;
}

TEST_CASE("a linear and its gradients count 2·M·N·K") {
  const graph::Attributes attributes = {{"in_dims", std::int64_t{2}}};
  const TensorType x = {{2, 3, 2, 5}};
  const TensorType w = {{7, 2, 5}};
  const TensorType y = {{2, 3, 7}};
  double count = 0;
  for (int token = 0; token < 2 * 3; ++token) {
    for (int out = 0; out < 7; ++out) {
      for (int in = 0; in < 2 * 5; ++in) count += 2;
    }
  }
  CHECK(StatedFlops(ops::kLinear, {x, w}, attributes) == count);
  CHECK(StatedFlops(ops::kLinearDgrad, {y, w}, attributes) == count);
  CHECK(StatedFlops(ops::kLinearWgrad, {y, x}, attributes) == count);
}

TEST_CASE("attention counts the unmasked pairs") {
  constexpr int kSequence = 6;
  constexpr int kHeads = 4;
  constexpr int kHead = 5;
  const TensorType q = {{2, kSequence, kHeads, kHead}};
  const TensorType k = {{2, kSequence, 2, kHead}};
  const TensorType positions = {{2, kSequence}, DType::kI32};
  const TensorType lse = {{2, kSequence, kHeads}};
  double product = 0;  // one of the products over pairs
  for (int row = 0; row < 2 * kHeads; ++row) {
    for (int i = 0; i < kSequence; ++i) {
      for (int j = 0; j <= i; ++j) product += 2 * kHead;
    }
  }
  CHECK(StatedFlops(ops::kAttention, {q, k, k, positions}, {}) == 2 * product);
  CHECK(StatedFlops(ops::kAttentionGrad, {q, k, k, positions, q, lse, q}, {}) == 5 * product);
}

}  // namespace
}  // namespace engine::ops_test
