// Whether, and from what, a run's folder is resumed.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/base/status.h"
#include "engine/checkpoint/read.h"
#include "engine/data/fingerprint.h"
#include "engine/launch/rendezvous.h"
#include "engine/recipe/recipe.h"

namespace engine::train {

struct ResumePoint {
  checkpoint::Reader reader;
  // Damaged checkpoints passed over; keys of the recipe, and files of the data and the tokenizer, that
  // changed.
  std::vector<std::string> notes;
  // The checkpoint is of iteration 0 and has no state of an optimizer, as imported ones have none: it begins anew.
  bool weights_alone = false;
  std::set<std::int64_t> damaged_in_bucket = {};  // iterations, in rank 0's process
};

// A run that would go on in a folder.
struct ResumeRequest {
  const recipe::Recipe& recipe;
  const data::Fingerprints& fingerprints;
  std::string out;
  bool fresh = false;  // only if neither the folder nor the bucket (checkpoint.upload) holds a run
};

// What shows that a folder holds a run: its checkpoints or its metrics; nullopt where it has neither.
std::optional<std::string> FindRun(const std::string& out);

// For a run that begins anew where one has been that kept no checkpoint: puts that one's metrics.jsonl aside, as metrics.jsonl.old, and says so.
// Nullopt: there is none that has an iteration.
absl::StatusOr<std::optional<std::string>> KeepOldMetrics(const std::string& out);

// The newest whole checkpoint of the folder, or nullopt where there is none. Errors: `fresh` and the folder
// holds a run; the checkpoint's model is not the recipe's, with the keys that differ; all checkpoints are
// damaged.
absl::StatusOr<std::optional<ResumePoint>> FindResumePoint(const ResumeRequest& request);

// The same in every process of a run: rank 0 looks, the others (`leads` false) open what it has found.
absl::StatusOr<std::optional<ResumePoint>> AgreeOnResumePoint(const ResumeRequest& request, bool leads,
                                                              launch::Client* processes);

// The newest whole checkpoint of iteration `last` or before, to which a run goes back that has gone on from `out`'s checkpoints, for
// the `rewind`-th time; one that the checkpoints' `interval` (0: none) has made, where there is any. nullopt where there is none. The same in every process.
absl::StatusOr<std::optional<ResumePoint>> AgreeOnRewindPoint(const std::string& out, std::int64_t last,
                                                              std::int64_t interval, std::int64_t rewind,
                                                              bool leads, launch::Client* processes);

// Error: this process has another recipe than rank 0, with the keys.
absl::Status AgreeOnRecipe(const recipe::Recipe& recipe, bool leads, launch::Client* processes);

// Error: this process reads other data sets, masks of the loss or tokenizer's files than rank 0, under the same names, with the names.
// Of the tokenizer, which token ids do not need, a file that one of the two has not is no error.
absl::Status AgreeOnData(const data::Fingerprints& fingerprints, bool leads, launch::Client* processes);

}  // namespace engine::train
