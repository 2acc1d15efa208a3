// Buckets of the relative position bias, against the published tables and against exact arithmetic
// (tests/oracles/distance_buckets.py); and what relative_bias makes of its table.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "engine/graph/distance_buckets.h"
#include "engine/ops/ops.h"
#include "tests/ops/cases.h"

namespace engine::ops_test {
namespace {

#include "tests/ops/distance_buckets.inc"

using graph::DistanceBuckets;

// `firsts`: of each bucket of one direction the smallest distance that has it or a later one. Checks both forms that have as
// many buckets in a direction.
template <std::size_t kCount>
void CheckBuckets(std::int64_t most, const std::int64_t (&firsts)[kCount]) {
  const auto n = static_cast<std::int64_t>(kCount);
  CAPTURE(n);
  CAPTURE(most);
  const DistanceBuckets one_way = {n, most, false};
  const DistanceBuckets both_ways = {2 * n, most, true};
  REQUIRE(one_way.lawful());
  REQUIRE(both_ways.lawful());
  std::int64_t wrong = 0;
  for (std::int64_t d = 0; d <= most + 3; ++d) {
    const std::int64_t expected = std::upper_bound(firsts, firsts + kCount, d) - firsts - 1;
    wrong += one_way.Of(-d) != expected || (d > 0 && one_way.Of(d) != 0) ? 1 : 0;
    wrong += both_ways.Of(-d) != expected || (d > 0 && both_ways.Of(d) != n + expected) ? 1 : 0;
  }
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE("buckets of 32, up to a distance of 128, are those of T5") {
  // The last distance of each bucket of an encoder from 8 on, and of a decoder from 16 on, as Hugging Face's T5 and
  // Megatron-LM have them.
  const std::vector<std::int64_t> encoder = {11, 15, 22, 31, 45, 63, 90};
  const std::vector<std::int64_t> decoder = {18, 20, 23, 26, 30, 34, 39, 45, 51, 58, 66, 76, 86, 98, 112};
  const auto bucket_of = [](std::int64_t d, std::int64_t exact, const std::vector<std::int64_t>& lasts) {
    if (d < exact) return d;
    return exact + (std::lower_bound(lasts.begin(), lasts.end(), d) - lasts.begin());
  };
  const DistanceBuckets both_ways = {32, 128, true};
  const DistanceBuckets one_way = {32, 128, false};
  for (std::int64_t r = -200; r <= 200; ++r) {
    CAPTURE(r);
    CHECK(both_ways.Of(r) == bucket_of(std::abs(r), 8, encoder) + (r > 0 ? 16 : 0));
    CHECK(one_way.Of(r) == bucket_of(std::max<std::int64_t>(0, -r), 16, decoder));
  }
}

TEST_CASE("buckets are those of exact arithmetic") {
  CheckBuckets(128, kFirsts32To128);
  CheckBuckets(128, kFirsts9To128);
  CheckBuckets(128, kFirsts16To128);
  CheckBuckets(20, kFirsts8To20);
  CheckBuckets(4, kFirsts5To4);
  CheckBuckets(1000, kFirsts12To1000);
  CheckBuckets(256, kFirsts64To256);
  CheckBuckets(65536, kFirsts40To65536);
  CheckBuckets(2, kFirsts2To2);
  CheckBuckets(4096, kFirsts300To4096);
}

TEST_CASE("relative_bias gives each distance its bucket's row, and its gradient adds them up") {
  const graph::Attributes attributes = {
      {"buckets", std::int64_t{4}}, {"distance", std::int64_t{3}}, {"both_ways", std::int64_t{1}}};
  Tensor table({{4, 2}, DType::kF64});
  for (std::int64_t i = 0; i < 8; ++i) table.Set(i, static_cast<double>(10 * (i / 2) + i % 2));
  const Tensor biases = RunOp(ops::kRelativeBias, attributes, {table})[0];
  // Of −3 … 3: buckets 1, 1, 1, 0, 3, 3, 3.
  const std::vector<double> expected = {10, 10, 10, 0, 30, 30, 30, 11, 11, 11, 1, 31, 31, 31};
  REQUIRE(biases.type().shape == Shape{2, 7});
  for (std::int64_t i = 0; i < 14; ++i) CHECK(biases.Get(i) == expected[static_cast<std::size_t>(i)]);
  Tensor d_biases(biases.type());
  for (std::int64_t i = 0; i < 14; ++i) d_biases.Set(i, static_cast<double>(1 << i));
  const Tensor d_table = RunOp(ops::kRelativeBiasGrad, attributes, {d_biases})[0];
  const std::vector<double> sums = {8, 8 << 7, 7, 7 << 7, 0, 0, 112, 112 << 7};
  REQUIRE(d_table.type().shape == Shape{4, 2});
  for (std::int64_t i = 0; i < 8; ++i) CHECK(d_table.Get(i) == sums[static_cast<std::size_t>(i)]);
}

TEST_CASE("relative_bias refuses buckets that do not share distances out, and tables of others") {
  const auto accepted = [](std::int64_t rows, std::int64_t buckets, std::int64_t distance,
                           std::int64_t both_ways) {
    return ops::kRelativeBias
        .infer(std::vector<graph::TensorType>{{{rows, 3}}},
               {{"buckets", buckets}, {"distance", distance}, {"both_ways", both_ways}})
        .ok();
  };
  CHECK(accepted(8, 8, 16, 1));
  CHECK_FALSE(accepted(7, 8, 16, 1));
  CHECK(accepted(7, 7, 16, 0));
  CHECK_FALSE(accepted(7, 7, 16, 1));
  CHECK(accepted(8, 8, 5, 0));
  CHECK_FALSE(accepted(8, 8, 4, 0));
  CHECK_FALSE(accepted(2, 2, 16, 1));
  CHECK_FALSE(accepted(1, 1, 16, 0));
}

}  // namespace engine::ops_test
