// What there is to see of a run: its folder's files, read and put together. `engine watch` and `engine report` print it.
//
// Nothing is ever written, locked or waited for, so a run may be somebody else's, on another machine, or long over. Files may
// be missing, half written, damaged, or of another version of the program: what cannot be read is a note, and the rest is shown.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/status.h"
#include "engine/view/history.h"
#include "engine/view/line_follower.h"
#include "engine/view/plan_view.h"
#include "engine/view/rank_history.h"
#include "engine/view/time_split.h"

namespace engine::view {

// outcome.json (docs/launch.md).
struct OutcomeView {
  std::string outcome;  // finished | stopped | failed
  std::optional<std::int64_t> iteration;
  std::int64_t iterations = 0;  // 0: not known
  std::string reason, host, ended;
  bool retryable = false;
};

// The newest record of an iteration. Numbers that it lacks are NaN; units are those of metrics.jsonl.
struct LastIteration {
  std::int64_t iteration = 0;  // 0: none yet
  double ended_unix_s = 0;     // 0: not known
  std::int64_t skipped = 0;    // iterations without an update, so far
  std::vector<double> values;  // by kCurves

  double operator[](const metrics::Quantity& quantity) const;
};

// A measure of a task of an evaluation.
struct TaskView {
  std::string name;  // "lambada/acc"
  double value = 0;
  double standard_error = 0;  // not finite: not known
};

struct EvaluationView {
  std::int64_t iteration = 0;
  double loss = 0;  // not finite: it was not, or is not known
  double ended_unix_s = 0, seconds = 0;
  std::vector<TaskView> tasks = {};
};

struct CheckpointView {
  std::int64_t iteration = 0;
  double ended_unix_s = 0;  // 0: not known
  double save_s = 0, stall_s = 0;
};

// A checkpoint that could not be written; training went on.
struct NotSavedView {
  std::int64_t iteration = 0;  // whose
  double unix_s = 0;           // when that was known; 0: not known
};

// Iterations without an update, one behind the other.
struct SkippedView {
  std::int64_t first_iteration = 0, last_iteration = 0;
  double ended_unix_s = 0, seconds = 0;  // when the last ended, and how long all took
};

// An iteration before which the run got more or fewer ranks.
struct ResizedView {
  std::int64_t iteration = 0;
  double began_unix_s = 0;  // 0: not known
  std::int64_t ranks_before = 0, ranks = 0;
};

// A return to a checkpoint ([guard]). The lines of the iterations that were gone back over are no more in metrics.jsonl.
struct RewoundView {
  std::int64_t iteration = 0;      // after which the run goes on
  std::int64_t bad_iteration = 0;  // for which it went back
  std::int64_t rewinds = 0;        // so far; one to train the same once more is not counted
  double unix_s = 0;               // 0: not known
};

// A line of faults.jsonl (docs/faults.md).
struct FaultView {
  std::int64_t iteration = 0;
  double unix_s = 0;
  std::string fault;
};

struct RunView {
  enum class State { kEmpty, kStarting, kRunning, kSilent, kFinished, kStopped, kFailed };

  std::string folder;  // as the user calls it
  std::string name;    // its last part
  std::string recipe_path;
  std::optional<PlanView> plan;
  std::optional<OutcomeView> outcome;

  History history;
  TimeSplit time;
  Distribution iteration_ms;
  LastIteration last;
  double last_sign_unix_s = 0;  // when the run last wrote a record or prepared its folder; 0: not known
  // The newest kMostRecent iterations, in order.
  struct Recent {
    double seconds = 0, samples = 0;
  };
  std::deque<Recent> recent;
  double last_evaluation_s = 0, last_save_s = 0;           // how long each took
  std::vector<double> rank_busy_ms;                        // by rank, of the last iteration that was logged
  std::vector<double> rank_clock_mhz, rank_temperature_c;  // likewise, of GPUs; none: nothing is known
  // By rank, over all iterations that were logged since the run has had so many ranks.
  struct Gpu {
    Range clock_mhz, temperature_c;
  };
  std::vector<Gpu> gpus;
  std::int64_t world = 0;  // ranks of the last iteration; 0: not known
  RankHistory ranks;
  std::optional<EvaluationView> last_evaluation, best_evaluation;
  std::int64_t evaluations = 0, checkpoints = 0, skipped_stretches = 0, faults = 0,
               returns = 0;  // all there were
  // Of each the newest kMostRecords, in order.
  std::vector<EvaluationView> evaluation_records;
  std::vector<CheckpointView> checkpoint_records;
  std::vector<NotSavedView> not_saved_records;
  std::vector<SkippedView> skipped_records;
  std::vector<ResizedView> resized_records;
  std::vector<RewoundView> rewound_records;
  std::vector<FaultView> fault_records;
  std::vector<std::int64_t> kept_checkpoints;  // iterations that have a folder, rising
  std::optional<std::int64_t> checkpoint_being_written;
  std::int64_t first_iteration = 0;  // that has a record; 0: none has
  double first_began_unix_s = 0;     // 0: not known
  std::int64_t nan_iteration = 0;    // the first whose loss or gradient norm is not finite; 0: none
  double nan_ended_unix_s = 0;
  double share_read = 1;           // of metrics.jsonl
  std::vector<std::string> notes;  // what could not be read, and why

  static constexpr std::size_t kMostRecords = 256;
  // Appends to one of the lists of records.
  template <class Record>
  static void Keep(Record record, std::vector<Record>* records) {
    records->push_back(std::move(record));
    if (records->size() > kMostRecords) records->erase(records->begin());
  }
  static constexpr std::size_t kMostRecent = 256;

  // At a time in seconds since 1970.
  State StateAt(double now_unix_s) const;
  // Iterations of the whole training; nullopt where no file says.
  std::optional<std::int64_t> Iterations() const;
  // Seconds from now to the end of the training: by the mean pace of the newest iterations, and by that of their fastest and
  // slowest stretch. nullopt where it cannot be said.
  struct TimeLeft {
    double seconds = 0, least = 0, most = 0;
  };
  std::optional<TimeLeft> Left() const;
};

// "running", as people read it.
const char* Name(RunView::State state);

// How long a run of this pace may write nothing before it counts as silent.
double QuietSeconds(const RunView& view);

class RunReader {
 public:
  // A folder that holds a run: one with metrics.jsonl, plan.json or outcome.json. Errors: NotFound, it holds
  // none; InvalidArgument, it is no folder.
  static absl::StatusOr<RunReader> Open(const std::string& folder);

  // Reads what is new, of metrics.jsonl at most about `most_bytes`. Files that cannot be read are in view().notes.
  void Refresh(std::int64_t most_bytes);
  const RunView& view() const { return view_; }

  static constexpr std::int64_t kAllBytes = std::int64_t{1} << 62;

 private:
  explicit RunReader(const std::string& folder);
  void ReadMetrics(std::int64_t most_bytes);
  void ReadPlan();
  void ReadOutcome();
  void ReadFaults();
  void ReadCheckpoints();
  void Note(const std::string& text);
  // Lines of a file that are no `what`.
  void NoteDamage(const std::string& path, std::int64_t lines, const char* what);
  std::string PathOf(const char* name) const;

  RunView view_;
  LineFollower metrics_;
  std::int64_t damaged_lines_ = 0;
  double plan_written_unix_s_ = 0;  // of the plan.json that view_ has
  std::string plan_note_;           // what is wrong with it
};

// The runs of several folders. Folders that hold none, as a pattern of the shell may name some, are left out, each with a
// line in *notes; an error where none holds a run, or one is no folder.
absl::StatusOr<std::vector<RunReader>> OpenRuns(const std::vector<std::string>& folders,
                                                std::vector<std::string>* notes);

}  // namespace engine::view
