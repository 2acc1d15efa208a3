#include "engine/recipe/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace engine::recipe {
namespace {

double Cosine(double fraction) { return 0.5 * (1.0 + std::cos(std::numbers::pi * fraction)); }

double WsdCoefficient(const std::string& kind, double q) {
  if (kind == "linear") return 1.0 - q;
  if (kind == "cosine") return Cosine(q);
  if (kind == "minus_sqrt") return 1.0 - std::sqrt(q);
  return 2.0 * std::pow(0.5, q) - 1.0;
}

}  // namespace

ScheduleLengths LengthsOf(const recipe::Recipe& recipe) {
  const recipe::Schedule& schedule = recipe.schedule;
  const std::int64_t batch = recipe.training.global_batch;
  const std::int64_t whole = recipe.samples();
  const auto pick = [&](std::int64_t samples, std::int64_t iterations) {
    return samples > 0 ? samples : iterations * batch;
  };
  const std::int64_t decay = pick(schedule.decay_samples, schedule.decay_iterations);
  ScheduleLengths lengths;
  lengths.decay = static_cast<double>(decay > 0 ? decay : whole);
  lengths.warmup = schedule.warmup_fraction > 0
                       ? schedule.warmup_fraction * lengths.decay
                       : static_cast<double>(pick(schedule.warmup_samples, schedule.warmup_iterations));
  lengths.wsd_decay = static_cast<double>(pick(schedule.wsd_decay_samples, schedule.wsd_decay_iterations));
  return lengths;
}

double LearningRate(const recipe::Recipe& recipe, std::int64_t samples) {
  const recipe::Schedule& schedule = recipe.schedule;
  const double highest = recipe.optimizer.learning_rate;
  const double lowest = schedule.min_learning_rate;
  const ScheduleLengths lengths = LengthsOf(recipe);
  const double n = static_cast<double>(samples);
  if (lengths.warmup > 0 && n <= lengths.warmup) {
    return schedule.warmup_init + (highest - schedule.warmup_init) * n / lengths.warmup;
  }
  if (schedule.kind == "constant") return highest;
  if (n > lengths.decay) return lowest;
  if (schedule.kind == "inverse_sqrt") {
    return std::max(lowest, highest * std::sqrt(std::max(lengths.warmup, 1.0)) / std::sqrt(std::max(n, 1.0)));
  }
  const double range = highest - lowest;
  if (schedule.kind == "wsd") {
    const double start = lengths.decay - lengths.wsd_decay;
    if (n <= start) return highest;
    return lowest + WsdCoefficient(schedule.wsd_decay_kind, (n - start) / lengths.wsd_decay) * range;
  }
  const double r = (n - lengths.warmup) / (lengths.decay - lengths.warmup);
  return lowest + (schedule.kind == "linear" ? 1.0 - r : Cosine(r)) * range;
}

}  // namespace engine::recipe
