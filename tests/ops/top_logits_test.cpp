// The largest logits against a sort of all of them, and sums over them; places by hand.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "engine/base/philox.h"
#include "engine/ops/ops.h"
#include "tests/ops/tensor.h"

namespace engine::ops_test {
namespace {

constexpr double kNone = -std::numeric_limits<double>::infinity();

Tensors TopOf(const Tensor& logits, const std::vector<double>& temperatures, std::int64_t classes,
              std::int64_t count) {
  Tensor tempered({{std::ssize(temperatures)}, logits.type().dtype});
  for (std::int64_t i = 0; i < tempered.elements(); ++i)
    tempered.Set(i, temperatures[static_cast<std::size_t>(i)]);
  return RunOp(ops::kTopLogits, {{"classes", classes}, {"count", count}}, {logits, tempered});
}

Tensor RowOf(const std::vector<double>& logits) {
  Tensor tensor({{1, 1, std::ssize(logits)}, DType::kF32});
  for (std::int64_t i = 0; i < tensor.elements(); ++i) tensor.Set(i, logits[static_cast<std::size_t>(i)]);
  return tensor;
}

std::vector<double> NumbersOf(const Tensor& tensor) {
  std::vector<double> numbers;
  for (std::int64_t i = 0; i < tensor.elements(); ++i) numbers.push_back(tensor.Get(i));
  return numbers;
}

}  // namespace

TEST_CASE(
    "top_logits: those of a sort of the last token's classes, with ties by id, and sums over all classes") {
  constexpr std::int64_t kSamples = 3, kRows = 2, kColumns = 700, kClasses = 690, kCount = 40;
  Tensor logits({{kSamples, kRows, kColumns}, DType::kF64});
  for (std::int64_t i = 0; i < logits.elements(); ++i) {
    const double uniform =
        UniformFromWord(PhiloxWord(MakePhiloxKey(3, "logits"), static_cast<std::uint64_t>(i)));
    logits.Set(i, i % kColumns < kClasses ? std::round(100 * uniform) / 10 : 1000);  // padding is large
  }
  const std::vector<double> temperatures = {0.5, 1, 3};
  const Tensors top = TopOf(logits, temperatures, kClasses, kCount);
  for (std::int64_t b = 0; b < kSamples; ++b) {
    std::vector<std::pair<double, std::int64_t>> sorted;
    long double sum = 0, tempered = 0;
    for (std::int64_t v = 0; v < kClasses; ++v) {
      const double z = logits.Get((b * kRows + kRows - 1) * kColumns + v);
      sorted.emplace_back(-z, v);
      sum += std::exp(static_cast<long double>(z));
      tempered += std::exp(static_cast<long double>(z / temperatures[static_cast<std::size_t>(b)]));
    }
    std::sort(sorted.begin(), sorted.end());
    for (std::int64_t n = 0; n < kCount; ++n) {
      CHECK(top[0].Get(b * kCount + n) == sorted[static_cast<std::size_t>(n)].second);
      CHECK(top[1].Get(b * kCount + n) == -sorted[static_cast<std::size_t>(n)].first);
    }
    CHECK(std::abs(top[2].Get(2 * b) - static_cast<double>(std::log(sum))) < 1e-13);
    CHECK(std::abs(top[2].Get(2 * b + 1) - static_cast<double>(std::log(tempered))) < 1e-13);
  }
}

TEST_CASE("top_logits: fewer classes than are asked for, logits of nothing, logits that are no numbers") {
  const Tensors few = TopOf(RowOf({2, 5, 9}), {1}, 2, 4);
  CHECK(NumbersOf(few[0]) == std::vector<double>{1, 0, -1, -1});
  CHECK(NumbersOf(few[1]) == std::vector<double>{5, 2, kNone, kNone});
  const Tensors some = TopOf(RowOf({kNone, 0, kNone}), {2}, 3, 2);
  CHECK(NumbersOf(some[0]) == std::vector<double>{1, 0});
  CHECK(NumbersOf(some[2]) == std::vector<double>{0, 0});
  for (const std::vector<double>& row :
       {std::vector<double>{1, NAN, 2}, {1, -kNone, 2}, {kNone, kNone, kNone}}) {
    const Tensors none = TopOf(RowOf(row), {1}, 3, 2);
    CHECK(!std::isfinite(none[2].Get(0)));
    CHECK(!std::isfinite(none[2].Get(1)));
  }
}

}  // namespace engine::ops_test
