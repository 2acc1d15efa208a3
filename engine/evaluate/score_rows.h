// Rows of tokens through a model, on whatever layout its plan has.
#pragma once

#include <absl/status/statusor.h>

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "engine/evaluate/results.h"
#include "engine/evaluate/windows.h"
#include "engine/plan/plan.h"
#include "engine/state/ranks.h"

namespace engine::evaluate {

// What takes part in it.
struct Scorer {
  const plan::Plan& plan;  // made with CompileOptions::keep_scores
  state::Ranks& ranks;
  launch::Client* processes = nullptr;  // null: all ranks are this process's
  std::int64_t rank = 0;                // of ranks that are processes: which one this is
  // An error of a rank's evaluation, with what would say more. Null: as it is.
  std::function<absl::Status(const absl::Status&, executor::RankExecutor&)> explain = nullptr;
};

// FailedPrecondition: the plan keeps no scores, as the model has no cross entropy over `labels`.
absl::Status CheckScores(const plan::Plan& plan);

// Scores of rows of at most plan.sequence + 1 tokens. Every rank of the run calls it with the same rows and `key`, which is
// another one for each call of a run; only rank 0's process gets all scores, the others get what they know. Rows that are shorter
// than the plan's samples stand at the beginning of one, of whose other places nothing is asked; each is one document. Error: a
// log-probability that is no finite number.
absl::StatusOr<std::vector<RowScore>> ScoreRows(const Scorer& scorer, std::span<const Row> rows,
                                                const std::string& key);

}  // namespace engine::evaluate
