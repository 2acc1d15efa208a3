// The growing batch against Megatron-LM's own loop, written down again in floating point as it is there
// (megatron/core/num_microbatches_calculator.py, RampupBatchsizeNumMicroBatchesCalculator).
#include "engine/recipe/batch_size.h"

#include <doctest/doctest.h>

#include <vector>

namespace engine::recipe {
namespace {

Training Growing(std::int64_t start, std::int64_t increment, std::int64_t samples, std::int64_t batch) {
  return {.global_batch = batch, .rampup = {.start = start, .increment = increment, .samples = samples}};
}

std::int64_t MegatronBatch(const Training& t, std::int64_t consumed) {
  const double increments = static_cast<double>((t.global_batch - t.rampup.start) / t.rampup.increment);
  const double each = static_cast<double>(t.rampup.samples) / increments;
  if (consumed > t.rampup.samples) return t.global_batch;
  const auto steps = static_cast<std::int64_t>(static_cast<double>(consumed) / each);
  return t.rampup.start + steps * t.rampup.increment;
}

}  // namespace

TEST_CASE("the batch is Megatron-LM's at every number of consumed samples") {
  for (const Training& t : {Growing(16, 16, 1024, 64), Growing(8, 8, 100, 40), Growing(4, 12, 3000, 40),
                            Growing(32, 32, 5, 96), Growing(2, 2, 4096, 512)}) {
    CAPTURE(t.rampup.samples);
    for (std::int64_t consumed = 0; consumed < t.rampup.samples + 100; ++consumed) {
      CAPTURE(consumed);
      REQUIRE(BatchAt(t, consumed) == MegatronBatch(t, consumed));
    }
  }
}

TEST_CASE("a growing batch: its sizes, and how far so many iterations or samples get") {
  const Training t = Growing(16, 16, 96, 64);  // 16 below 32 samples, 32 below 64, 48 below 96, then 64
  CHECK((BatchSizes(t) == std::vector<std::int64_t>{16, 32, 48, 64}));
  std::vector<std::int64_t> batches;
  Progress walked;
  for (int i = 0; i < 8; ++i) {
    const std::int64_t batch = BatchAt(t, walked.samples);
    batches.push_back(batch);
    walked = {walked.iterations + 1, walked.samples + batch};
    const Progress jumped = RunOn(t, {}, i + 1, kNoEnd);
    CHECK(jumped.iterations == walked.iterations);
    CHECK(jumped.samples == walked.samples);
    for (const std::int64_t beyond : {std::int64_t{0}, std::int64_t{15}}) {
      const Progress whole = RunOn(t, {}, kNoEnd, walked.samples + beyond);
      CHECK(whole.iterations == walked.iterations);
      CHECK(whole.samples == walked.samples);
    }
    const Progress on = RunOn(t, walked, walked.iterations + 3, kNoEnd);
    CHECK(on.samples == RunOn(t, {}, i + 4, kNoEnd).samples);
  }
  CHECK((batches == std::vector<std::int64_t>{16, 16, 32, 48, 64, 64, 64, 64}));

  Recipe recipe;
  recipe.training = t;
  recipe.training.samples = 176;
  CHECK(recipe.iterations() == 5);
  CHECK(recipe.samples() == 176);
  recipe.training.samples = 0;
  recipe.training.iterations = 6;
  CHECK(recipe.samples() == 240);
}

TEST_CASE("a batch that does not grow, or whose numbers the rules refuse, has one size") {
  for (const Training& t : {Growing(0, 0, 0, 64), Growing(16, 0, 96, 64), Growing(16, 16, 0, 64),
                            Growing(64, 16, 96, 64), Growing(16, 20, 96, 64), Growing(1, 1, kNoEnd, 64)}) {
    CHECK_FALSE(Ramps(t));
    CHECK((BatchSizes(t) == std::vector<std::int64_t>{64}));
    CHECK(BatchAt(t, 0) == 64);
    CHECK(RunOn(t, {}, kNoEnd, 200).samples == 192);
  }
}

}  // namespace engine::recipe
