// How a layout's blocks are cut into chunks, and the schedule of these.
#pragma once

#include <absl/container/flat_hash_map.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "engine/graph/graph.h"
#include "engine/plan/device_profile.h"
#include "engine/recipe/recipe.h"
#include "engine/search/fold_keys.h"
#include "engine/search/pass_schedule.h"
#include "engine/search/stage_states.h"

namespace engine::search {

// What the stages hold, by stage, of chunks of so many blocks.
std::vector<StageShape> ShapesOf(const recipe::Recipe& recipe, const std::vector<std::int64_t>& blocks);

// Cuts and schedules of the layouts of one model, each made once. What a function returns is valid until it is asked
// for another layout.
class Pipelines {
 public:
  explicit Pipelines(plan::DeviceProfile profile) : profile_(std::move(profile)) {}

  // By chunk, in the pipeline's order: as the recipe says, or else as the compiler cuts.
  const std::vector<std::int64_t>& BlocksOf(const recipe::Recipe& recipe);

  const PassSchedule& ScheduleOf(const recipe::Recipe& recipe);

 private:
  plan::DeviceProfile profile_;
  // By tp, which pads the vocabulary, and whether its ranks have whole experts.
  absl::flat_hash_map<std::pair<std::int64_t, bool>, graph::Graph> graphs_;
  absl::flat_hash_map<BlocksKey, std::vector<std::int64_t>> blocks_;
  absl::flat_hash_map<ScheduleKey, PassSchedule> schedules_;
};

}  // namespace engine::search
