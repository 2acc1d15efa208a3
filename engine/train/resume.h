// Whether, and from what, a run's folder is resumed.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/base/status.h"
#include "engine/checkpoint/read.h"
#include "engine/recipe/recipe.h"

namespace engine::train {

struct ResumePoint {
  checkpoint::Reader reader;
  std::vector<std::string> notes;  // damaged checkpoints passed over, keys of the recipe that changed
};

// The newest whole checkpoint of the folder, or nullopt where there is none. Errors: `fresh` and the folder
// holds a run; the checkpoint's model is not the recipe's, with the keys that differ; all checkpoints are
// damaged.
absl::StatusOr<std::optional<ResumePoint>> FindResumePoint(const recipe::Recipe& recipe,
                                                           const std::string& out, bool fresh);

}  // namespace engine::train
