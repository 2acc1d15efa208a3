#include "engine/search/block_times.h"

#include <algorithm>

#include "engine/plan/pass_clock.h"
#include "engine/search/iteration_time.h"
#include "engine/search/pass_schedule.h"

namespace engine::search {

void BlockTimes::Remember(const recipe::Recipe& recipe, std::int64_t halves, const PassTime& forward,
                          const PassTime& backward) {
  if (DefersWeights(recipe.parallelism)) return;
  const std::int64_t samples = recipe.training.micro_batch;
  const double each = 1 / static_cast<double>(samples);
  known_[BlockKey::Of(recipe)][{samples, halves}] = {.forward_s = forward.seconds() * each,
                                                     .backward_s = backward.seconds() * each};
}

double BlockTimes::LeastSeconds(const recipe::Recipe& recipe, std::int64_t halves,
                                const std::vector<std::int64_t>& blocks) const {
  constexpr double kSlack = 0.97;  // kernels of some sizes fill the device a little better than larger ones
  const auto known = known_.find(BlockKey::Of(recipe));
  if (known == known_.end()) return 0;
  // Look for a time that was taken with kernels as large or larger, and with exchange hidden as well or
  // better.
  const std::int64_t samples = recipe.training.micro_batch;
  const auto at = std::find_if(known->second.begin(), known->second.end(), [&](const auto& entry) {
    const auto& [of_samples, of_halves] = entry.first;
    return of_halves >= halves && of_samples * halves >= samples * of_halves;
  });
  if (at == known->second.end()) return 0;
  plan::PassTimes times;
  for (const std::int64_t length : blocks) {
    const double factor = kSlack * static_cast<double>(length * samples);
    times.forward.push_back(factor * at->second.forward_s);
    times.backward.push_back(factor * at->second.backward_s);
  }
  times.weights.assign(blocks.size(), 0);
  return LeastSecondsOfPasses(times, recipe);
}

}  // namespace engine::search
