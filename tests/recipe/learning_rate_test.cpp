// Schedules against values worked out by hand, from the formulas in learning_rate.h.
#include "engine/recipe/learning_rate.h"

#include <doctest/doctest.h>

#include <cmath>

namespace engine::recipe {
namespace {

// Highest 1, lowest 0.1; warm-up 100 samples from 0.2, decay over 1000; batches of 10.
recipe::Recipe ScheduleRecipe(const std::string& kind) {
  recipe::Recipe recipe;
  recipe.optimizer.learning_rate = 1.0;
  recipe.schedule.kind = kind;
  recipe.schedule.min_learning_rate = 0.1;
  recipe.schedule.warmup_init = 0.2;
  recipe.schedule.warmup_samples = 100;
  recipe.schedule.decay_samples = 1000;
  recipe.training.global_batch = 10;
  recipe.training.iterations = 200;
  return recipe;
}

void CheckRate(const recipe::Recipe& recipe, std::int64_t samples, double expected) {
  INFO(recipe.schedule.kind << " at " << samples);
  CHECK(LearningRate(recipe, samples) == doctest::Approx(expected).epsilon(1e-12));
}

}  // namespace

TEST_CASE("the warm-up is a line from its first value, reached at its last sample") {
  for (const std::string kind : {"constant", "linear", "cosine", "inverse_sqrt", "wsd"}) {
    recipe::Recipe recipe = ScheduleRecipe(kind);
    recipe.schedule.wsd_decay_samples = 200;
    CheckRate(recipe, 0, 0.2);
    CheckRate(recipe, 25, 0.4);
    CheckRate(recipe, 50, 0.6);
    CheckRate(recipe, 100, 1.0);
    recipe.schedule.warmup_init = 0;
    CheckRate(recipe, 0, 0.0);
    CheckRate(recipe, 1, 0.01);
  }
}

TEST_CASE("after the warm-up, and past the decay") {
  CheckRate(ScheduleRecipe("constant"), 101, 1.0);
  CheckRate(ScheduleRecipe("constant"), 5000, 1.0);

  CheckRate(ScheduleRecipe("linear"), 550, 0.55);  // half way from 100 to 1000
  CheckRate(ScheduleRecipe("linear"), 1000, 0.1);
  CheckRate(ScheduleRecipe("linear"), 1001, 0.1);

  CheckRate(ScheduleRecipe("cosine"), 550, 0.55);
  CheckRate(ScheduleRecipe("cosine"), 400, 0.775);  // a third: ½(1 + cos 60°) = ¾ of 0.9
  CheckRate(ScheduleRecipe("cosine"), 1000, 0.1);
  CheckRate(ScheduleRecipe("cosine"), 9999, 0.1);

  CheckRate(ScheduleRecipe("inverse_sqrt"), 400, 0.5);  // √(100/400)
  CheckRate(ScheduleRecipe("inverse_sqrt"), 900, 1.0 / 3);
  CheckRate(ScheduleRecipe("inverse_sqrt"), 1001, 0.1);
  recipe::Recipe floored = ScheduleRecipe("inverse_sqrt");
  floored.schedule.min_learning_rate = 0.45;
  CheckRate(floored, 900, 0.45);
}

TEST_CASE("WSD: stable, then one of four decays over its last samples") {
  recipe::Recipe recipe = ScheduleRecipe("wsd");
  recipe.schedule.wsd_decay_samples = 400;  // from 600
  const auto decays = [&](const std::string& kind, double at_quarter, double at_half) {
    recipe.schedule.wsd_decay_kind = kind;
    CheckRate(recipe, 101, 1.0);
    CheckRate(recipe, 600, 1.0);
    CheckRate(recipe, 700, 0.1 + 0.9 * at_quarter);
    CheckRate(recipe, 800, 0.1 + 0.9 * at_half);
    CheckRate(recipe, 1000, 0.1);
    CheckRate(recipe, 1001, 0.1);
  };
  decays("linear", 0.75, 0.5);
  decays("cosine", 0.85355339059327373, 0.5);                               // ½(1 + √½)
  decays("exponential", 2 * 0.84089641525371454 - 1, 0.41421356237309515);  // 2·2^−¼ − 1, √2 − 1
  decays("minus_sqrt", 0.5, 1 - 0.70710678118654757);
}

TEST_CASE("without a warm-up the first update runs at the highest rate") {
  for (const std::string kind : {"constant", "linear", "cosine"}) {
    recipe::Recipe recipe = ScheduleRecipe(kind);
    recipe.schedule.warmup_samples = 0;
    CheckRate(recipe, 0, 1.0);
  }
  recipe::Recipe recipe = ScheduleRecipe("inverse_sqrt");
  recipe.schedule.warmup_samples = 0;
  CheckRate(recipe, 0, 1.0);  // √1/√1
  CheckRate(recipe, 4, 0.5);
}

TEST_CASE("lengths by iterations, by fraction, and of the training") {
  recipe::Recipe by_iterations = ScheduleRecipe("linear");
  by_iterations.schedule.warmup_samples = by_iterations.schedule.decay_samples = 0;
  by_iterations.schedule.warmup_iterations = 10;
  by_iterations.schedule.decay_iterations = 100;
  recipe::Recipe by_fraction = by_iterations;
  by_fraction.schedule.warmup_iterations = 0;
  by_fraction.schedule.warmup_fraction = 0.1;
  recipe::Recipe of_training = by_iterations;
  of_training.schedule.decay_iterations = 0;
  of_training.training.iterations = 100;
  recipe::Recipe of_samples = of_training;
  of_samples.training.iterations = 0;
  of_samples.training.samples = 1009;  // 100 whole batches
  for (const recipe::Recipe& recipe : {by_iterations, by_fraction, of_training, of_samples}) {
    CheckRate(recipe, 50, 0.6);
    CheckRate(recipe, 550, 0.55);
    CheckRate(recipe, 1000, 0.1);
  }
  recipe::Recipe wsd = ScheduleRecipe("wsd");
  wsd.schedule.wsd_decay_iterations = 40;
  wsd.schedule.wsd_decay_kind = "linear";
  CheckRate(wsd, 800, 0.55);
}

}  // namespace engine::recipe
