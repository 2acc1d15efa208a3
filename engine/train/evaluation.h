// The loss on the validation samples, while the weights stay.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/base/diagnostic.h"
#include "engine/train/run_context.h"

namespace engine::train {

// Whether the recipe wants an evaluation after this iteration, from 1.
bool EvaluationDue(const recipe::Recipe& recipe, std::int64_t iteration);

// The tasks that the recipe's evaluations ask; none where it names none.
absl::StatusOr<std::vector<evaluate::Task>> TasksOf(const recipe::Recipe& recipe);

// The error at evaluation.tasks where one is neither FORM=FILE nor the name of a TOML file; nullopt where all are. Files are not looked for.
std::optional<Diagnostic> CheckTasks(const recipe::Recipe& recipe);

// Evaluates the weights as they are after `iteration`, and reports their validation loss and what they come to in each task.
absl::Status Evaluate(const RunContext& run, std::int64_t iteration);

}  // namespace engine::train
