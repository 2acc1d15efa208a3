// What of a batch goes to a cache, and where: places by hand.
#include <doctest/doctest.h>

#include <vector>

#include "engine/base/e4m3.h"
#include "engine/ops/ops.h"
#include "tests/ops/cases.h"

namespace engine::ops_test {
namespace {

Tensor Numbers(const Shape& shape, DType dtype, const std::vector<double>& values) {
  Tensor tensor({shape, dtype});
  for (std::int64_t i = 0; i < tensor.elements(); ++i) tensor.Set(i, values[static_cast<size_t>(i)]);
  return tensor;
}

// Two slots of three rows, 0 at first, behind an update with tokens 1, 2, … of one sample.
std::vector<double> Updated(const std::vector<double>& positions, double slot) {
  const auto tokens = static_cast<std::int64_t>(positions.size());
  std::vector<double> x;
  for (std::int64_t s = 0; s < tokens; ++s) x.push_back(static_cast<double>(s + 1));
  const Tensors inputs = {Numbers({1, tokens, 1, 1}, DType::kF32, x),
                          Numbers({2, 3, 1, 1}, DType::kF32, std::vector<double>(6, 0)),
                          Numbers({1, tokens}, DType::kI32, positions), Numbers({1}, DType::kI32, {slot})};
  const Tensor cache = RunOp(ops::kCacheUpdate, {}, inputs)[0];
  std::vector<double> rows;
  for (std::int64_t i = 0; i < cache.elements(); ++i) rows.push_back(cache.Get(i));
  return rows;
}

TEST_CASE(
    "cache_update: rows by position, the last of a row stays, padding and samples without a slot leave "
    "nothing") {
  CHECK(Updated({0, 1}, 1) == std::vector<double>{0, 0, 0, 1, 2, 0});
  CHECK(Updated({0, 1, 1, 1}, 0) == std::vector<double>{1, 2, 0, 0, 0, 0});  // padding behind token 2
  CHECK(Updated({2, 3, 4, 5, 6}, 0) == std::vector<double>{5, 3, 4, 0, 0, 0});
  CHECK(Updated({0, 1}, -1) == std::vector<double>(6, 0));
}

// The numbers as e4m3 has them, in the tensor's own type.
Tensor AsKept(const Tensor& of) {
  Tensor kept = of;
  for (std::int64_t i = 0; i < of.elements(); ++i)
    kept.Set(i, FloatFromE4M3(E4M3FromFloat(static_cast<float>(of.Get(i)))));
  return kept;
}
Tensor In(const Tensor& of, DType dtype) {
  Tensor other({of.type().shape, dtype});
  for (std::int64_t i = 0; i < of.elements(); ++i) other.Set(i, of.Get(i));
  return other;
}

TEST_CASE("cache_update: a cache in e4m3 has rounded numbers, halves to even, and ends at 448") {
  const Tensors inputs = {Numbers({1, 4, 1, 1}, DType::kF32, {1.0625, 1.1875, -500, 0x1p-11}),
                          Numbers({1, 4, 1, 1}, DType::kE4M3, {7, 7, 7, 7}),
                          Numbers({1, 4}, DType::kI32, {0, 1, 2, 3}), Numbers({1}, DType::kI32, {0})};
  const Tensor cache = RunOp(ops::kCacheUpdate, {}, inputs)[0];
  CHECK(cache.type().dtype == DType::kE4M3);
  const std::vector<double> expected = {1, 1.25, -448, 0};
  for (std::int64_t i = 0; i < 4; ++i) CHECK(cache.Get(i) == expected[static_cast<size_t>(i)]);
}

// `caches`: the inputs that are caches; those two before them are the tokens that go there.
void CheckNarrow(const graph::OpDef& op, std::string_view label, size_t caches) {
  CAPTURE(op.name);
  for (const Case& test : AllCases()) {
    if (test.op != &op || test.label != label) continue;
    Tensors exact = MakeInputs(test, DType::kF64);
    Tensors narrow = exact;
    for (const size_t i : {caches, caches + 1}) {
      narrow[i] = In(exact[i], DType::kE4M3);
      exact[i] = AsKept(exact[i]);
      exact[i - 2] = AsKept(exact[i - 2]);  // a step reads the new token as the cache will have it
    }
    const Tensors expected = RunOp(op, test.attributes, exact);
    const Tensors actual = RunOp(op, test.attributes, narrow);
    for (size_t o = 0; o < expected.size(); ++o) CHECK(Distance(expected[o], actual[o]) == 0);
    return;
  }
  FAIL("no such case");
}

TEST_CASE("attention over caches in e4m3 is that over the rounded numbers, the new token's too") {
  CheckNarrow(ops::kCachedAttention, "plain", 3);
  CheckNarrow(ops::kCachedAttention, "a window in a cache that forgets", 3);
  CheckNarrow(ops::kCachedLatentAttention, "latents", 4);
}

}  // namespace
}  // namespace engine::ops_test
