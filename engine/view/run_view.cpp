#include "engine/view/run_view.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/base/shown.h"
#include "engine/checkpoint/layout.h"
#include "engine/checkpoint/store.h"
#include "engine/driver/run_folder.h"
#include "engine/recipe/batch_size.h"
#include "engine/view/take_record.h"

namespace engine::view {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using State = RunView::State;

constexpr std::int64_t kMostSmallBytes = std::int64_t{1} << 20;  // of outcome.json and origin.json
constexpr std::int64_t kMostPlanBytes = std::int64_t{1} << 28;

std::string WordIn(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_string() ? found->get<std::string>() : std::string();
}

std::optional<std::int64_t> CountIn(const Json& json, const char* key) {
  const auto found = json.find(key);
  if (found == json.end() || !found->is_number_integer()) return std::nullopt;
  return found->get<std::int64_t>();
}

// "runs/x/" and "." too.
std::string NameOf(const std::string& folder) {
  std::error_code error;
  fs::path path = fs::absolute(folder, error).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  return path.filename().string();
}

// When a file was last written, by its file system; 0 where it is not there.
double WrittenUnixSeconds(const std::string& path) {
  struct stat facts = {};
  if (::stat(path.c_str(), &facts) != 0) return 0;
  return static_cast<double>(facts.st_mtim.tv_sec) + static_cast<double>(facts.st_mtim.tv_nsec) / 1e9;
}

// An object of a small file; NotFound where there is no such file.
absl::StatusOr<Json> ReadObject(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadRegular(path, kMostSmallBytes));
  ASSIGN_OR_RETURN(Json json, ParseJson(text, path));
  if (!json.is_object()) return InvalidArgument("{}: {} where an object should be", path, TypeOf(json));
  return json;
}

// Samples that a training has consumed after so many iterations.
double SamplesAfter(const recipe::Recipe& recipe, std::int64_t iterations) {
  return static_cast<double>(recipe::RunOn(recipe.training, {}, iterations, recipe::kNoEnd).samples);
}

double MeanSampleSeconds(const std::deque<RunView::Recent>& recent, std::size_t begin, std::size_t end) {
  double seconds = 0, samples = 0;
  for (std::size_t i = begin; i < end; ++i) {
    seconds += recent[i].seconds;
    samples += recent[i].samples;
  }
  return samples > 0 ? seconds / samples : 0;
}

}  // namespace

double LastIteration::operator[](const metrics::Quantity& quantity) const {
  const auto found = std::find(kCurves.begin(), kCurves.end(), &quantity);
  const auto index = static_cast<std::size_t>(found - kCurves.begin());
  return index < values.size() ? values[index] : std::numeric_limits<double>::quiet_NaN();
}

const char* Name(State state) {
  constexpr std::array kNames = {"empty", "starting", "running", "silent", "finished", "stopped", "failed"};
  return kNames[static_cast<std::size_t>(state)];
}

double QuietSeconds(const RunView& view) {
  constexpr double kLeast_s = 10;
  constexpr double kTimes = 5;
  double longest_s = std::max(view.last_evaluation_s, view.last_save_s);
  for (const RunView::Recent& iteration : view.recent) longest_s = std::max(longest_s, iteration.seconds);
  return std::max(kLeast_s, kTimes * longest_s);
}

State RunView::StateAt(double now_unix_s) const {
  if (outcome) {
    return outcome->outcome == "finished"  ? State::kFinished
           : outcome->outcome == "stopped" ? State::kStopped
                                           : State::kFailed;
  }
  if (last.iteration == 0) return plan || last_sign_unix_s > 0 ? State::kStarting : State::kEmpty;
  return now_unix_s - last_sign_unix_s > QuietSeconds(*this) ? State::kSilent : State::kRunning;
}

std::optional<std::int64_t> RunView::Iterations() const {
  if (plan && plan->side.recipe) return plan->side.recipe->iterations();
  if (outcome && outcome->iterations > 0) return outcome->iterations;
  return std::nullopt;
}

std::optional<RunView::TimeLeft> RunView::Left() const {
  const std::optional<std::int64_t> iterations = Iterations();
  if (!plan || !plan->side.recipe || !iterations || recent.empty() || last.iteration >= *iterations)
    return std::nullopt;
  const recipe::Recipe& recipe = *plan->side.recipe;
  // Records without the samples of an iteration count each as one batch (take_record.cpp).
  const bool counts_samples = std::isfinite(last[metrics::kGlobalBatch]);
  const double left = counts_samples
                          ? SamplesAfter(recipe, *iterations) - SamplesAfter(recipe, last.iteration)
                          : static_cast<double>(*iterations - last.iteration);
  const double passes_s = time.training_s() + time.skipped_s() + time.data_wait_s();
  const double whole = passes_s > 0 ? 1 + (time.evaluation_s() + time.saving_s()) / passes_s : 1;
  constexpr std::size_t kStretches = 8;
  const std::size_t stretch = std::max<std::size_t>(1, recent.size() / kStretches);
  TimeLeft time_left{.seconds = MeanSampleSeconds(recent, 0, recent.size()) * left * whole};
  time_left.least = time_left.most = time_left.seconds;
  for (std::size_t begin = 0; begin + stretch <= recent.size(); begin += stretch) {
    const double seconds = MeanSampleSeconds(recent, begin, begin + stretch) * left * whole;
    time_left.least = std::min(time_left.least, seconds);
    time_left.most = std::max(time_left.most, seconds);
  }
  return time_left;
}

absl::StatusOr<RunReader> RunReader::Open(const std::string& folder) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) {
    return error ? InvalidArgument("{}: {}", ShownPath(folder), error.message())
                 : InvalidArgument("{} is no folder", ShownPath(folder));
  }
  for (const char* name : {driver::kMetricsName, driver::kPlanName, driver::kOutcomeName}) {
    if (fs::exists(fs::path(folder) / name, error)) return RunReader(folder);
  }
  return NotFound("{} holds no run: neither {}, {} nor {}", ShownPath(folder), driver::kMetricsName,
                  driver::kPlanName, driver::kOutcomeName);
}

RunReader::RunReader(const std::string& folder)
    : metrics_((fs::path(folder) / driver::kMetricsName).string()) {
  view_.folder = folder;
  view_.name = NameOf(folder);
}

void RunReader::Refresh(std::int64_t most_bytes) {
  view_.notes.clear();
  ReadPlan();
  ReadMetrics(most_bytes);
  ReadOutcome();
  ReadFaults();
  ReadCheckpoints();
}

std::string RunReader::PathOf(const char* name) const { return (fs::path(view_.folder) / name).string(); }

void RunReader::Note(const std::string& text) { view_.notes.push_back(text); }

void RunReader::ReadMetrics(std::int64_t most_bytes) {
  simdjson::dom::parser parser;
  const auto restart = [this] {
    RunView empty;
    empty.folder = view_.folder;
    empty.name = view_.name;
    empty.plan = std::move(view_.plan);
    empty.recipe_path = view_.recipe_path;
    empty.notes = std::move(view_.notes);
    view_ = std::move(empty);
    damaged_lines_ = 0;
  };
  const auto take = [&](std::string_view line) {
    if (!line.empty() && !TakeRecord(line, &parser, &view_)) ++damaged_lines_;
  };
  const absl::Status status = metrics_.Read(most_bytes, restart, take);
  if (!status.ok() && !absl::IsNotFound(status)) Note(Message(status));
  view_.share_read = metrics_.share();
  view_.last_sign_unix_s = std::max(
      {view_.last_sign_unix_s, metrics_.modified_unix_s(), WrittenUnixSeconds(PathOf(driver::kPlanName))});
  NoteDamage(PathOf(driver::kMetricsName), damaged_lines_ + metrics_.long_lines(), "record");
}

void RunReader::NoteDamage(const std::string& path, std::int64_t lines, const char* what) {
  if (lines == 0) return;
  Note(fmt::format("{}: {} line{} that {} no {}", path, lines, lines == 1 ? "" : "s",
                   lines == 1 ? "is" : "are", what));
}

void RunReader::ReadPlan() {
  const std::string path = PathOf(driver::kPlanName);
  const double written = WrittenUnixSeconds(path);
  if (written != plan_written_unix_s_) {
    plan_written_unix_s_ = written;
    plan_note_.clear();
    const absl::StatusOr<std::string> text = ReadRegular(path, kMostPlanBytes);
    absl::StatusOr<PlanView> plan = text.ok() ? PlanViewOf(path, *text) : text.status();
    if (plan.ok()) {
      plan_note_ = plan->recipe_note;
      view_.plan = *std::move(plan);
    } else if (!absl::IsNotFound(plan.status())) {
      plan_note_ = Message(plan.status());
    }
  }
  if (!plan_note_.empty()) Note(plan_note_);
  const absl::StatusOr<Json> origin = ReadObject(PathOf(driver::kOriginName));
  if (origin.ok()) view_.recipe_path = WordIn(*origin, "recipe");
}

void RunReader::ReadOutcome() {
  const absl::StatusOr<Json> json = ReadObject(PathOf(driver::kOutcomeName));
  view_.outcome.reset();
  if (absl::IsNotFound(json.status())) return;
  if (!json.ok()) return Note(Message(json.status()));
  OutcomeView outcome{.outcome = WordIn(*json, "outcome"),
                      .iteration = CountIn(*json, "iteration"),
                      .iterations = CountIn(*json, "iterations").value_or(0),
                      .reason = WordIn(*json, "reason"),
                      .host = WordIn(*json, "host"),
                      .ended = WordIn(*json, "ended")};
  const auto retryable = json->find("retryable");
  outcome.retryable = retryable != json->end() && retryable->is_boolean() && retryable->get<bool>();
  view_.outcome = std::move(outcome);
}

void RunReader::ReadFaults() {
  const std::string path = PathOf(driver::kFaultsName);
  view_.fault_records.clear();
  view_.faults = 0;
  const absl::StatusOr<std::string> text = ReadRegular(path, kMostSmallBytes);
  if (absl::IsNotFound(text.status())) return;
  if (!text.ok()) return Note(Message(text.status()));
  std::istringstream lines(*text);
  std::int64_t damaged = 0;
  for (std::string line; std::getline(lines, line);) {
    const absl::StatusOr<Json> json = ParseJson(line, path);
    const bool is_fault = json.ok() && json->is_object() && !WordIn(*json, "fault").empty();
    if (!is_fault) {
      ++damaged;
      continue;
    }
    ++view_.faults;
    RunView::Keep(FaultView{.iteration = CountIn(*json, "iteration").value_or(0),
                            .unix_s = static_cast<double>(CountIn(*json, "timestamp").value_or(0)),
                            .fault = WordIn(*json, "fault")},
                  &view_.fault_records);
  }
  NoteDamage(path, damaged, "fault");
}

void RunReader::ReadCheckpoints() {
  const std::string root = PathOf(driver::kCheckpointsName);
  view_.kept_checkpoints.clear();
  view_.checkpoint_being_written.reset();
  std::error_code error;
  fs::directory_iterator entry(root, error);
  if (error == std::errc::no_such_file_or_directory) return;
  while (!error && entry != fs::directory_iterator()) {
    const std::string name = entry->path().filename();
    if (const auto iteration = checkpoint::ParseIterationName(name)) {
      view_.kept_checkpoints.push_back(*iteration);
    } else if (const auto leftover = checkpoint::ParseLeftoverName(name);
               leftover && leftover->kind == checkpoint::LeftoverKind::kWriting) {
      view_.checkpoint_being_written = leftover->iteration;
    }
    entry.increment(error);
  }
  if (error) Note(fmt::format("{}: {}", root, error.message()));
  std::sort(view_.kept_checkpoints.begin(), view_.kept_checkpoints.end());
}

absl::StatusOr<std::vector<RunReader>> OpenRuns(const std::vector<std::string>& folders,
                                                std::vector<std::string>* notes) {
  std::vector<RunReader> runs;
  for (const std::string& folder : folders) {
    absl::StatusOr<RunReader> run = RunReader::Open(folder);
    if (run.ok()) {
      runs.push_back(*std::move(run));
    } else if (absl::IsNotFound(run.status())) {
      notes->push_back(Message(run.status()));
    } else {
      return run.status();
    }
  }
  if (runs.empty()) return absl::NotFoundError(notes->empty() ? "no folder" : notes->front());
  return runs;
}

}  // namespace engine::view
