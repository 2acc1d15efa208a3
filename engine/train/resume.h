// Whether, and from what, a run's folder is resumed.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/base/status.h"
#include "engine/checkpoint/read.h"
#include "engine/launch/rendezvous.h"
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

// The same in every process of a run: rank 0 looks, the others (`leads` false) open what it has found.
absl::StatusOr<std::optional<ResumePoint>> AgreeOnResumePoint(const recipe::Recipe& recipe,
                                                              const std::string& out, bool fresh, bool leads,
                                                              launch::Client* processes);

// Error: this process has another recipe than rank 0, with the keys.
absl::Status AgreeOnRecipe(const recipe::Recipe& recipe, bool leads, launch::Client* processes);

}  // namespace engine::train
