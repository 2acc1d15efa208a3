// What of a batch goes to a cache, and where: places by hand.
#include <doctest/doctest.h>

#include <vector>

#include "engine/ops/ops.h"
#include "tests/ops/tensor.h"

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

}  // namespace
}  // namespace engine::ops_test
