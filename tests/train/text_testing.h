// Recipes whose models are text, trained in several layouts.
#pragma once

#include <string>
#include <vector>

#include "engine/model/load.h"
#include "engine/verify/verify.h"
#include "tests/train/equality.h"
#include "tests/train/testing.h"

namespace engine::train::testing {

inline recipe::Recipe Loaded(const recipe::LoadResult& result) {
  std::string errors;
  for (const Diagnostic& diagnostic : result.diagnostics) errors += Format(diagnostic);
  INFO(errors);
  REQUIRE(result.ok());
  return result.recipe;
}

template <typename Make>
Trained RunText(const Make& make, const std::string& sets, int iterations = 4) {
  const recipe::Recipe recipe = make(sets);
  const state::Device device = CpuDevice();
  const absl::StatusOr<plan::Plan> plan = driver::CompileRecipe(recipe, {.profile = device.profile});
  REQUIRE_MESSAGE(plan.ok(), Message(plan.status()));
  return TrainFor(recipe, plan, iterations, device, [](const plan::Plan& of, std::int64_t first_sample) {
    return CounterFeed(of, first_sample);
  });
}

template <typename Make>
void CheckTextLayouts(const Make& make, const std::vector<const char*>& layouts, int iterations = 4) {
  const Trained one = RunText(make, "micro_batch=2", iterations);
  if (iterations > 1) CHECK(one.losses.back() != one.losses[0]);
  for (const char* sets : layouts) {
    CAPTURE(std::string(sets));
    const Trained other = RunText(make, sets, iterations);
    CheckEqual(one, other);
    for (size_t i = 0; i < one.metrics.size(); ++i) {
      for (size_t m = 0; m < one.metrics[i].size(); ++m)
        CHECK(other.metrics[i][m] == doctest::Approx(one.metrics[i][m]).epsilon(kBound));
    }
  }
}

}  // namespace engine::train::testing
