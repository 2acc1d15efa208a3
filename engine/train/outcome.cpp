#include "engine/train/outcome.h"

#include <fmt/chrono.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "engine/base/file.h"
#include "engine/base/write_file.h"
#include "engine/driver/run_folder.h"
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

}  // namespace

bool IsRetryable(const absl::Status& failure) {
  return absl::IsAborted(failure) || absl::IsInternal(failure);
}

absl::Status WriteOutcome(const std::string& out, const Outcome& outcome) {
  std::array<char, HOST_NAME_MAX + 1> host{};
  gethostname(host.data(), host.size() - 1);
  nlohmann::ordered_json json = {
      {"outcome", NameOf(outcome.kind)}, {"iteration", nullptr}, {"iterations", outcome.iterations}};
  if (outcome.iteration) json["iteration"] = *outcome.iteration;
  if (outcome.kind == Outcome::Kind::kFailed) {
    json["reason"] = outcome.reason;
    json["retryable"] = outcome.retryable;
  }
  json["host"] = host.data();
  json["ended"] = fmt::format("{:%FT%TZ}", fmt::gmtime(std::time(nullptr)));
  constexpr int kIndent = 2;
  // Names of files are bytes, and a reason may have one.
  return WriteFile(PathOfOutcome(out),
                   json.dump(kIndent, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

absl::StatusOr<bool> RemoveOutcome(const std::string& out) {
  std::error_code error;
  const bool removed = std::filesystem::remove(PathOfOutcome(out), error);
  if (error) return SystemError("remove", PathOfOutcome(out), error.value());
  return removed;
}

void WriteKilled(const std::string& out, std::int64_t iterations, int signal) {
  std::error_code error;
  if (!std::filesystem::exists(std::filesystem::path(out) / driver::kMetricsName, error)) return;
  const absl::StatusOr<RunLock> lock = RunLock::Take(out);
  if (!lock.ok() || std::filesystem::exists(PathOfOutcome(out), error)) return;
  WriteOutcome(out, {.kind = Outcome::Kind::kFailed,
                     .iterations = iterations,
                     .reason = fmt::format("rank 0 was killed by signal {} ({})", signal, strsignal(signal)),
                     .retryable = true})
      .IgnoreError();  // the exit code says it, too
}

}  // namespace engine::train
