// A part of driver/advise.h: what each warning looks at, and the families of them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>

#include "engine/driver/model_steps.h"
#include "engine/plan/plan.h"
#include "engine/predict/predict.h"
#include "engine/recipe/recipe.h"
#include "engine/recipe/rules.h"

namespace engine::driver {

// One warning a function; each looks at one subject.
struct AdviceSubject {
  const recipe::Recipe& recipe;
  const plan::Plan& plan;
  const predict::Prediction& time;
  const plan::DeviceProfile& profile;
  const recipe::RuleContext& report;
  const ModelSteps& steps;

  // Whether the keys of a decoder say what the model is; else its steps do.
  bool is_decoder() const { return !recipe.is_text(); }
  bool on_gpu() const { return recipe.cluster.device != "cpu"; }
  bool has_times() const { return time.has_times(); }
  // Shorter runs are trials, whose model is thrown away.
  bool is_long() const { return recipe.iterations() >= 1000; }
  double parameters() const { return static_cast<double>(plan.parameter_count); }
};

using Advice = void (*)(const AdviceSubject&);
std::span<const Advice> DeviceAdvice();    // W1.. and W2..: the layout and what the device makes of it
std::span<const Advice> KernelAdvice();    // W2.. of the sizes and forms of the model's kernels
std::span<const Advice> ExpertAdvice();    // W2.. of experts
std::span<const Advice> TrainingAdvice();  // W3..: what the model learns
std::span<const Advice> RunAdvice();       // W4..: evaluation and checkpoints

// The attention of the longest window; node −1: no layer has one.
struct LongestWindow {
  std::int64_t tokens = 0;
  Saying saying = {-1, "window"};
};
LongestWindow LongestWindowOf(const ModelSteps& steps);

// `before`, and how much longer than fast ones the reference kernels take that take most; there are some in predict::Prediction::slow.
// Empty where they take less than 1.5 times as long.
std::string SlowerBy(const predict::Prediction& time, std::string_view before);

inline const char* LengthKey(const recipe::Recipe& recipe) {
  return recipe.training.iterations > 0 ? "training.iterations" : "training.samples";
}

inline std::int64_t LargestArena(const plan::Plan& plan) {
  std::int64_t bytes = 0;
  for (const plan::StagePlan& stage : plan.stages) bytes = std::max(bytes, stage.arena_bytes);
  return bytes;
}

}  // namespace engine::driver
