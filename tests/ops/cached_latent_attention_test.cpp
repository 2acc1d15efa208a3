// Attention over latents is attention over the keys and values that would be made of them.
#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/philox.h"
#include "engine/ops/ops.h"
#include "tests/ops/cases.h"
#include "tests/ops/tensor.h"

namespace engine::ops_test {
namespace {

constexpr std::int64_t kSamples = 3, kSlots = 4, kRows = 8, kHeads = 5;
constexpr std::int64_t kLatent = 7, kOwn = 4, kShared = 3, kValue = 6;  // C, N, R, U
constexpr double kLatentBound = 1e-13;  // sums of some tens of terms near 1, in float64

Tensor Random(const Shape& shape, const std::string& name) {
  Tensor tensor({shape, DType::kF64});
  const PhiloxKey key = MakePhiloxKey(11, name);
  for (std::int64_t i = 0; i < tensor.elements(); ++i)
    tensor.Set(i, 2 * UniformFromWord(PhiloxWord(key, static_cast<std::uint64_t>(i))) - 1);
  return tensor;
}

Tensor Integers(const Shape& shape, const std::vector<std::int32_t>& values) {
  Tensor tensor({shape, DType::kI32});
  for (std::int64_t i = 0; i < tensor.elements(); ++i) tensor.Set(i, values[static_cast<size_t>(i)]);
  return tensor;
}

// Rows of heads made of rows of latents by w [H, M, C], and, behind `first` elements of each, those of a shared part, if any.
Tensor MadeOf(const Tensor& latents, const Tensor& w, const Tensor* shared, std::int64_t first_shared,
              const Shape& leading) {
  const std::int64_t own = w.type().shape[1];
  const std::int64_t extra = shared != nullptr ? kShared : 0;
  const std::int64_t first_own = first_shared == 0 ? extra : 0;
  Tensor made({{leading[0], leading[1], kHeads, own + extra}, DType::kF64});
  for (std::int64_t row = 0; row < leading[0] * leading[1]; ++row) {
    for (std::int64_t h = 0; h < kHeads; ++h) {
      const std::int64_t at = (row * kHeads + h) * (own + extra);
      for (std::int64_t m = 0; m < own; ++m) {
        double sum = 0;
        for (std::int64_t c = 0; c < kLatent; ++c)
          sum += latents.Get(row * kLatent + c) * w.Get((h * own + m) * kLatent + c);
        made.Set(at + first_own + m, sum);
      }
      for (std::int64_t r = 0; r < extra; ++r)
        made.Set(at + first_shared + r, shared->Get(row * kShared + r));
    }
  }
  return made;
}

void CheckEqual(const Tensor& expected, const Tensor& actual) {
  REQUIRE(expected.elements() == actual.elements());
  double worst = 0;
  for (std::int64_t i = 0; i < expected.elements(); ++i)
    worst = std::max(worst, std::abs(expected.Get(i) - actual.Get(i)));
  CHECK(worst <= kLatentBound);
}

// With the shared part of keys before or behind the heads' own.
void CheckAgainstHeads(bool shared_first, const std::vector<std::int32_t>& at, std::int64_t window) {
  const std::int64_t first_shared = shared_first ? 0 : kOwn;
  const std::int64_t first_own = shared_first ? kShared : 0;
  const Tensor q = Random({kSamples, 1, kHeads, kOwn + kShared}, "q");
  const Tensor key_weight = Random({kHeads, kOwn, kLatent}, "key_weight");
  const Tensor value_weight = Random({kHeads, kValue, kLatent}, "value_weight");
  const Tensor latent = Random({kSamples, 1, kLatent}, "latent");
  const Tensor shared = Random({kSamples, 1, 1, kShared}, "shared");
  const Tensor latents = Random({kSlots, kRows, kLatent}, "latents");
  const Tensor shareds = Random({kSlots, kRows, 1, kShared}, "shareds");
  const Tensor positions = Integers({kSamples, 1}, at);
  const Tensor slots = Integers({kSamples}, {3, -1, 1});

  graph::Attributes attributes = {{"scale", 0.3}, {"window", window}};
  const Tensors whole = RunOp(ops::kCachedAttention, attributes,
                              {q, MadeOf(latent, key_weight, &shared, first_shared, {kSamples, 1}),
                               MadeOf(latent, value_weight, nullptr, 0, {kSamples, 1}),
                               MadeOf(latents, key_weight, &shareds, first_shared, {kSlots, kRows}),
                               MadeOf(latents, value_weight, nullptr, 0, {kSlots, kRows}), positions, slots});

  const Tensor absorbed =
      RunOp(ops::kHeadLinear, {{"transposed", std::int64_t{1}}, {"first", first_own}}, {q, key_weight})[0];
  attributes.Set("first", first_shared);
  const Tensors over_latents = RunOp(ops::kCachedLatentAttention, attributes,
                                     {absorbed, q, latent, shared, latents, shareds, positions, slots});
  CheckEqual(whole[0], RunOp(ops::kHeadLinear, {}, {over_latents[0], value_weight})[0]);
  // What is kept makes the keys and values that would be kept.
  CheckEqual(whole[1], MadeOf(over_latents[1], key_weight, &over_latents[2], first_shared, {kSlots, kRows}));
  CheckEqual(whole[2], MadeOf(over_latents[1], value_weight, nullptr, 0, {kSlots, kRows}));
}

TEST_CASE("cached_latent_attention between two head_linear is cached_attention over keys and values") {
  for (const bool shared_first : {true, false}) {
    CheckAgainstHeads(shared_first, {7, 2, 0}, 0);
    CheckAgainstHeads(shared_first, {21, 2, 3}, 6);  // caches that have forgotten
  }
}

TEST_CASE("cached_latent_attention and head_linear refuse tensors that do not go together") {
  using Types = std::vector<graph::TensorType>;
  const auto attends = [](std::int64_t shared, std::int64_t first) {
    const Types types = {{{2, 1, 4, 6}}, {{2, 1, 4, 5}}, {{2, 1, 6}},           {{2, 1, 1, shared}},
                         {{3, 8, 6}},    {{3, 8, 1, 2}}, {{2, 1}, DType::kI32}, {{2}, DType::kI32}};
    return ops::kCachedLatentAttention.infer(types, {{"scale", 1.0}, {"first", first}}).ok();
  };
  CHECK(attends(2, 3));
  CHECK_FALSE(attends(2, 4));  // behind the end of the queries' rows
  CHECK_FALSE(attends(3, 0));  // the cache has other parts
  const auto multiplies = [](std::int64_t width, const graph::Attributes& attributes) {
    return ops::kHeadLinear.infer(Types{{{2, 1, 4, width}}, {{4, 3, 6}}}, attributes).ok();
  };
  CHECK(multiplies(6, {}));
  CHECK_FALSE(multiplies(5, {}));
  CHECK(multiplies(5, {{"transposed", std::int64_t{1}}, {"first", std::int64_t{2}}}));
  CHECK_FALSE(multiplies(5, {{"transposed", std::int64_t{1}}, {"first", std::int64_t{3}}}));
}

}  // namespace
}  // namespace engine::ops_test
