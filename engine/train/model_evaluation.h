// `engine evaluate`: a model that is there, asked tasks.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/driver/model_layout.h"
#include "engine/evaluate/results.h"
#include "engine/evaluate/task.h"
#include "engine/recipe/recipe.h"
#include "engine/state/ranks.h"

namespace engine::train {

// A model, and where its weights are.
struct EvaluatedModel {
  recipe::Recipe recipe;
  std::string checkpoint = {};  // a folder; empty: what recipe.training.weights_from names, or they are drawn
  std::vector<std::string> notes = {};  // damaged checkpoints that were passed over
};

// Of a folder: the newest whole checkpoint of a run, or the checkpoint, or the Hugging Face model that it is; its model on the
// layout. InvalidArgument: it cannot be split so. Of a recipe that has passed validation: the newest whole checkpoint in `run`, where there is one, on the recipe's layout.
absl::StatusOr<EvaluatedModel> ModelOfFolder(const std::string& folder,
                                             const driver::ModelLayout& layout = {});
absl::StatusOr<EvaluatedModel> ModelOfRecipe(recipe::Recipe recipe, const std::string& run);

struct ModelEvaluationOptions {
  std::vector<std::string> tasks;  // evaluate::ReadTasks
  std::int64_t limit = 0;          // examples of each task; 0: all
  std::int64_t batch = 0;          // rows at a time on a rank; 0: as many as their logits take 512 MiB
  std::function<void(const std::string&)> note =
      {};  // lines about weights and layout; null: nobody reads them
};

struct AskedTask {
  evaluate::TaskResult result;
  std::string samples;  // evaluate::SamplesText
};

// Asks the tasks in their order; all of their files are read before anything is computed. Where the layout is one rank, the
// model's samples are only as long as the longest row. Calls `emit` with each as it is done. On the CPU numbers are float32,
// whatever the recipe's precision.
absl::Status EvaluateModel(const EvaluatedModel& model, const ModelEvaluationOptions& options,
                           const state::Device& device, const std::function<void(const AskedTask&)>& emit);

}  // namespace engine::train
