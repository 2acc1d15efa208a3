#include "engine/metrics/tensorboard.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "engine/metrics/event_file.h"

namespace engine::metrics {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "events.out.tfevents.";

double NowSeconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Readers take a folder's files in the order of their names, which begin with a time: after all that are there, whatever
// clock they were named by.
std::string NewEventFile(const fs::path& folder, const RunDescription& run) {
  auto seconds = static_cast<std::int64_t>(run.begin_unix_seconds);
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (!name.starts_with(kPrefix)) continue;
    seconds = std::max<std::int64_t>(seconds, std::strtoll(name.c_str() + kPrefix.size(), nullptr, 10) + 1);
  }
  return (folder / fmt::format("{}{:010d}.{}.{}.0", kPrefix, seconds, run.host, getpid())).string();
}

}  // namespace

TensorBoard::TensorBoard(const std::string& folder, RunDescription run)
    : run_(std::move(run)),
      by_iteration_(NewEventFile(folder, run_)),
      by_samples_(NewEventFile(fs::path(folder) / "samples", run_)) {}

std::string TensorBoard::Beginning(std::int64_t resumed_step, bool with_description) const {
  const double wall = run_.begin_unix_seconds;
  std::string records = VersionEvent(wall) + SessionStartEvent(wall, resumed_step + 1);
  if (!with_description) return records;
  for (const auto& [title, markdown] : run_.texts) records += TextEvent(wall, resumed_step, title, markdown);
  const std::string metrics[] = {kLoss.tag, kValidationLoss.tag};
  return records + ExperimentEvent(wall, run_.settings, metrics) + HyperParametersEvent(wall, run_.settings);
}

absl::StatusOr<std::int64_t> TensorBoard::Append(AppendFile& file, std::int64_t resumed_step,
                                                 bool with_description, const std::string& records) {
  std::error_code error;
  fs::create_directories(fs::path(file.path()).parent_path(), error);  // an error is the file's
  ASSIGN_OR_RETURN(const std::int64_t size, file.Open());
  RETURN_IF_ERROR(file.Append(size > 0 ? records : Beginning(resumed_step, with_description) + records));
  return size;
}

absl::Status TensorBoard::Write(const Record& record) {
  std::vector<Curve> by_iteration;
  std::vector<Curve> by_samples;
  for (const auto& [quantity, value, name] : record.values) {
    if (quantity->tag == nullptr || !std::isfinite(value)) continue;
    by_iteration.emplace_back(quantity->tag + name, value * quantity->tag_factor);
    if (!quantity->over_samples) continue;
    by_samples.emplace_back(by_iteration.back().first + " vs samples", by_iteration.back().second);
  }
  if (!record.histograms.empty()) {
    const std::string event = HistogramsEvent(record.unix_seconds, record.iteration, record.histograms);
    RETURN_IF_ERROR(Append(by_iteration_, run_.resumed_iteration, true, event).status());
  }
  if (by_iteration.empty()) return absl::OkStatus();
  std::int64_t samples_size = 0;
  if (!by_samples.empty()) {
    ASSIGN_OR_RETURN(samples_size,
                     Append(by_samples_, run_.resumed_samples, false,
                            ScalarsEvent(record.unix_seconds, record.consumed_samples, by_samples)));
  }
  absl::Status status = Append(by_iteration_, run_.resumed_iteration, true,
                               ScalarsEvent(record.unix_seconds, record.iteration, by_iteration))
                            .status();
  if (!status.ok() && !by_samples.empty()) by_samples_.TakeBack(samples_size);
  return status;
}

absl::Status TensorBoard::Close(bool succeeded) {
  return Append(by_iteration_, run_.resumed_iteration, true, SessionEndEvent(NowSeconds(), succeeded))
      .status();
}

}  // namespace engine::metrics
