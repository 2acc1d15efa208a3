// FLOPs that the ops state, against a count of the multiplications and additions of the plain loops.
#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "engine/ops/ops.h"

namespace engine::ops_test {
namespace {

using graph::TensorType;

graph::Work StatedCost(const graph::OpDef& op, const std::vector<TensorType>& inputs,
                       const graph::Attributes& attributes) {
  const auto outputs = op.infer(inputs, attributes);
  REQUIRE(outputs.ok());
  return op.work(inputs, *outputs, attributes);
}
double StatedFlops(const graph::OpDef& op, const std::vector<TensorType>& inputs,
                   const graph::Attributes& attributes) {
  return StatedCost(op, inputs, attributes).flops;
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
  // The backward pass computes the scores again; they are no product of its formula.
  CHECK(StatedCost(ops::kAttention, {q, k, k, positions}, {}).product_flops == 2 * product);
  CHECK(StatedCost(ops::kAttentionGrad, {q, k, k, positions, q, lse, q}, {}).product_flops == 4 * product);
}

TEST_CASE(
    "attention without a mask counts every pair of a query and a key, of a rank of cp those of its queries") {
  const TensorType q = {{2, 6, 4, 5}};
  const TensorType k = {{2, 10, 2, 5}};
  const TensorType positions = {{2, 6}, DType::kI32};
  const TensorType lse = {{2, 6, 4}};
  const graph::Attributes none = {{"mask", std::string("none")}};
  const double product = 2.0 * 2 * 4 * 6 * 10 * 5;  // 2 FLOPs for each sample, head, query, key and element
  CHECK(StatedFlops(ops::kAttention, {q, k, k, positions}, none) == 2 * product);
  CHECK(StatedCost(ops::kAttention, {q, k, k, positions}, none).product_flops == 2 * product);
  CHECK(StatedFlops(ops::kAttentionGrad, {q, k, k, positions, q, lse, q}, none) == 5 * product);
  CHECK(StatedCost(ops::kAttentionGrad, {q, k, k, positions, q, lse, q}, none).product_flops == 4 * product);
}

TEST_CASE("attention with values of another width than keys counts each product by the width that it is of") {
  const TensorType q = {{2, 6, 4, 5}};
  const TensorType k = {{2, 10, 2, 5}};
  const TensorType v = {{2, 10, 2, 3}};
  const TensorType o = {{2, 6, 4, 3}};
  const TensorType positions = {{2, 6}, DType::kI32};
  const TensorType lse = {{2, 6, 4}};
  const graph::Attributes none = {{"mask", std::string("none")}};
  const double pairs = 2.0 * 2 * 4 * 6 * 10;  // 2 FLOPs for each sample, head, query and key
  const auto forward = StatedCost(ops::kAttention, {q, k, v, positions}, none);
  CHECK(forward.flops == doctest::Approx(pairs * (5 + 3)));  // q·kᵀ, P·v
  CHECK(forward.product_flops == doctest::Approx(pairs * (5 + 3)));
  const auto backward = StatedCost(ops::kAttentionGrad, {q, k, v, positions, o, lse, o}, none);
  CHECK(backward.flops == doctest::Approx(pairs * (3 * 5 + 2 * 3)));  // q·kᵀ, dS·k, dSᵀ·q; d_o·vᵀ, Pᵀ·d_o
  CHECK(backward.product_flops == doctest::Approx(pairs * (2 * 5 + 2 * 3)));
}

TEST_CASE("the gradient of a part of a join reads that part alone") {
  const graph::Attributes part = {{"first", std::int64_t{2}}, {"count", std::int64_t{3}}};
  CHECK(StatedCost(ops::kJoinGrad, {{{2, 4, 6, 12}}}, part).bytes == 2.0 * 2 * 4 * 6 * 3 * 4);
  graph::Attributes shared = part;
  shared.Set("shared", std::int64_t{1});
  CHECK(StatedCost(ops::kJoinGrad, {{{2, 4, 6, 12}}}, shared).bytes == 2.0 * 4 * (6 + 1) * 3 * 4);
}

TEST_CASE("select_token reads and writes one token of each sample") {
  CHECK(StatedCost(ops::kSelectToken, {{{2, 8, 6}}}, {{"index", std::int64_t{3}}}).bytes == 2.0 * 2 * 6 * 4);
  CHECK(StatedFlops(ops::kSelectToken, {{{2, 8, 6}}}, {{"index", std::int64_t{3}}}) == 0);
}

TEST_CASE("attention within a window counts the pairs inside, of a rank of cp those of its two chunks") {
  constexpr std::int64_t kSequence = 24;
  constexpr std::int64_t kHeads = 3;
  constexpr std::int64_t kHead = 5;
  const TensorType k = {{2, kSequence, kHeads, kHead}};
  for (const std::int64_t window : {0, 1, 2, 5, 11, 23, 24, 100}) {
    for (const std::int64_t cp : {1, 2, 3, 4}) {
      CAPTURE(window);
      CAPTURE(cp);
      const std::int64_t queries = kSequence / cp;
      // Ranks have the chunks r and 2·cp − 1 − r.
      std::vector<double> pairs(static_cast<size_t>(cp), 0);
      for (std::int64_t i = 0; i < kSequence; ++i) {
        const std::int64_t chunk = i / (queries / 2);
        const std::int64_t rank = std::min(chunk, 2 * cp - 1 - chunk);
        for (std::int64_t j = 0; j <= i; ++j) {
          if (window == 0 || i - j < window) pairs[static_cast<size_t>(rank)] += 1;
        }
      }
      const double product = 2.0 * 2 * kHeads * kHead;
      const double most = *std::max_element(pairs.begin(), pairs.end());
      const double all = std::accumulate(pairs.begin(), pairs.end(), 0.0);
      const TensorType q = {{2, queries, kHeads, kHead}};
      const TensorType positions = {{2, queries}, DType::kI32};
      const graph::Attributes attributes = {{"window", window}};
      const graph::Work forward = StatedCost(ops::kAttention, {q, k, k, positions}, attributes);
      CHECK(forward.flops == 2 * product * most);
      CHECK(forward.product_flops * static_cast<double>(cp) == doctest::Approx(2 * product * all));
      const TensorType lse = {{2, queries, kHeads}};
      const graph::Work backward =
          StatedCost(ops::kAttentionGrad, {q, k, k, positions, q, lse, q}, attributes);
      CHECK(backward.flops == 5 * product * most);
      CHECK(backward.product_flops * static_cast<double>(cp) == doctest::Approx(4 * product * all));
    }
  }
}

TEST_CASE("products are all that a linear counts, and element-wise work is none") {
  const graph::Attributes attributes = {{"in_dims", std::int64_t{1}}};
  const TensorType x = {{2, 3, 5}};
  const graph::Work linear = StatedCost(ops::kLinear, {x, {{7, 5}}}, attributes);
  CHECK(linear.product_flops == linear.flops);
  const graph::Work add = StatedCost(ops::kAdd, {x, x}, {});
  CHECK(add.flops > 0);
  CHECK(add.product_flops == 0);
}

}  // namespace
}  // namespace engine::ops_test
