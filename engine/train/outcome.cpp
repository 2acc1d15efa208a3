#include "engine/train/outcome.h"

#include <absl/strings/cord.h>
#include <fmt/chrono.h>

#include <cerrno>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "engine/base/file.h"
#include "engine/base/file_io.h"
#include "engine/base/host_name.h"
#include "engine/base/print.h"
#include "engine/base/write_file.h"
#include "engine/checkpoint/store.h"
#include "engine/driver/run_folder.h"
#include "engine/launch/stop_requests.h"
#include "engine/train/run.h"
#include "engine/train/run_lock.h"

namespace engine::train {
namespace {

std::string NameOf(Outcome::Kind kind) {
  switch (kind) {
    case Outcome::Kind::kFinished:
      return "finished";
    case Outcome::Kind::kStopped:
      return "stopped";
    case Outcome::Kind::kFailed:
      return "failed";
  }
  return "?";
}

std::string PathOfOutcome(const std::string& out) {
  return (std::filesystem::path(out) / driver::kOutcomeName).string();
}

// Names of files are bytes, and a reason may have one.
std::string TextOf(const nlohmann::ordered_json& json) {
  constexpr int kIndent = 2;
  return json.dump(kIndent, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

constexpr std::int64_t kMostOutcomeBytes = 1 << 20;

// Of a status' payload.
constexpr const char* kVerdictUrl = "engine/verdict";

}  // namespace

absl::Status WithVerdict(absl::Status failure, Verdict verdict) {
  if (!failure.ok())
    failure.SetPayload(kVerdictUrl, absl::Cord(verdict == Verdict::kMachine ? "machine" : "true"));
  return failure;
}

Verdict VerdictOf(const absl::Status& failure) {
  const auto verdict = failure.GetPayload(kVerdictUrl);
  if (!verdict) return Verdict::kNone;
  return *verdict == "machine" ? Verdict::kMachine : Verdict::kTrue;
}

bool IsRetryable(const absl::Status& failure) {
  return absl::IsAborted(failure) || absl::IsInternal(failure);
}

absl::Status WriteOutcome(const std::string& out, const Outcome& outcome) {
  nlohmann::ordered_json json = {
      {"outcome", NameOf(outcome.kind)}, {"iteration", nullptr}, {"iterations", outcome.iterations}};
  if (outcome.iteration) json["iteration"] = *outcome.iteration;
  if (outcome.kind == Outcome::Kind::kFailed) {
    json["reason"] = outcome.reason;
    json["retryable"] = outcome.retryable;
  }
  json["host"] = HostName();
  json["ended"] = fmt::format("{:%FT%TZ}", fmt::gmtime(std::time(nullptr)));
  return WriteFile(PathOfOutcome(out), TextOf(json));
}

void OutcomeWriter::Begin(const std::string& out, std::int64_t iterations) {
  const std::lock_guard<std::mutex> lock(mutex_);
  out_ = out;
  iterations_ = iterations;
}

absl::Status OutcomeWriter::Write(Outcome outcome) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (out_.empty() || written_) return absl::OkStatus();
  written_ = true;
  outcome.iteration = iteration_;
  outcome.iterations = iterations_;
  return WriteOutcome(out_, outcome);
}

void OutcomeWriter::WriteStoppedAtOnce() {
  const absl::Status told = Write({.kind = Outcome::Kind::kFailed, .reason = launch::kStoppedAtOnce});
  if (!told.ok()) TellUnwritten(told);
}

void TellUnwritten(const absl::Status& error) {
  Print(stderr, "warning: {}, so nothing there says how this run ended\n", Message(error));
}

bool HasFinished(const std::string& out, std::int64_t iterations) {
  const absl::StatusOr<std::string> text = ReadWholeFile(PathOfOutcome(out), kMostOutcomeBytes);
  if (!text.ok()) return false;
  const nlohmann::json outcome = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!outcome.is_object() || !outcome.contains("outcome") ||
      outcome["outcome"] != NameOf(Outcome::Kind::kFinished))
    return false;
  const absl::StatusOr<std::vector<std::int64_t>> kept = checkpoint::ListIterations(CheckpointRoot(out));
  return kept.ok() && !kept->empty() && kept->back() >= iterations;
}

absl::StatusOr<bool> RemoveOutcome(const std::string& out) {
  std::error_code error;
  // A folder that cannot be written to is told by the first file that the run would write.
  if (!std::filesystem::exists(PathOfOutcome(out), error)) return false;
  const bool removed = std::filesystem::remove(PathOfOutcome(out), error);
  if (error) return SystemError("remove", PathOfOutcome(out), error.value());
  return removed;
}

void FinishOutcome(const std::string& out, std::int64_t iterations, const std::string& verdict,
                   bool retryable) {
  std::error_code error;
  if (!std::filesystem::exists(std::filesystem::path(out) / driver::kMetricsName, error)) return;
  const absl::StatusOr<RunLock> lock = RunLock::Take(out);
  if (!lock.ok()) return;
  const absl::StatusOr<std::string> text = ReadWholeFile(PathOfOutcome(out), kMostOutcomeBytes);
  if (!text.ok()) {
    WriteOutcome(out, {.kind = Outcome::Kind::kFailed,
                       .iterations = iterations,
                       .reason = verdict.empty() ? "its ranks were ended" : verdict,
                       .retryable = retryable})
        .IgnoreError();  // the exit code says it, too
    return;
  }
  const nlohmann::ordered_json written =
      nlohmann::ordered_json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!written.is_object() || written.value("outcome", "") != "failed") return;
  nlohmann::ordered_json finished = written;
  finished["retryable"] = retryable;
  if (finished != written) WriteFile(PathOfOutcome(out), TextOf(finished)).IgnoreError();
}

}  // namespace engine::train
