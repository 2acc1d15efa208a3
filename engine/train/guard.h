// What a run does about numbers that show that something is wrong: [guard] of the recipe (docs/bad-numbers.md).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/status.h"
#include "engine/checkpoint/metadata.h"
#include "engine/recipe/iteration_range.h"
#include "engine/recipe/recipe.h"
#include "engine/train/report.h"

namespace engine::train {

// An iteration for which the run goes back to a checkpoint.
struct BadIteration {
  enum class Act {
    kSkip,  // to the last checkpoint, and all behind it once more but the iteration
    kStop,  // nowhere; with guard.rerun to the last checkpoint, to train the iteration once more before the run ends
    kRewind,  // as far as guard.rewind_iterations says, and on behind the iteration and guard.skip_batches more
  };

  std::int64_t iteration = 0;
  Act act = Act::kSkip;
  std::string why;  // "iteration 7: loss nan and gradient norm nan"

  // The last iteration whose checkpoint is old enough.
  std::int64_t LatestCheckpoint(const recipe::Guard& guard) const;
  // What is left out when the run goes on from the checkpoint of that iteration.
  recipe::IterationRange LeftOut(const recipe::Guard& guard, std::int64_t checkpoint) const;
};

// "iteration 7: loss nan and gradient norm nan".
std::string NumbersText(const IterationReport& report);
// What follows it in the error that ends a run.
inline constexpr const char* kSpoilt =
    "so the weights are spoilt and not saved; a lower [optimizer] learning_rate or a longer warm-up may help";

// Whether the run goes back for the iteration that is reported, which has been trained. `state` is what is known of the
// iterations before it, to which this one is added where nothing is wrong with it. An update that was left out because its
// gradients are not finite is counted, and not judged. Whatever the layout, all ranks of a run see the same numbers and judge the same.
std::optional<BadIteration> Judge(const recipe::Guard& guard, const IterationReport& report,
                                  checkpoint::GuardState* state);

// Why the run ends after an iteration for which it does not go back: the numbers are not finite, or `state` has guard.max_skips updates in
// a row that were skipped. OK where it goes on.
absl::Status EndOf(const recipe::Guard& guard, const IterationReport& report,
                   const checkpoint::GuardState& state);

// The iterations that the recipe leaves out.
std::vector<recipe::IterationRange> LeftOutBy(const recipe::Guard& guard);

}  // namespace engine::train
