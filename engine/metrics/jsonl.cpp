#include "engine/metrics/jsonl.h"

#include <fmt/chrono.h>

#include <cmath>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>

#include "engine/base/file.h"
#include "engine/base/json.h"

namespace engine::metrics {
namespace {

// An object's iteration; nullopt where the line is none that this program wrote.
std::optional<std::int64_t> IterationOf(const std::string& line, const std::string& path) {
  const absl::StatusOr<nlohmann::json> json = ParseJson(line, path);
  if (!json.ok() || !json->is_object() || !json->contains("iteration") ||
      !(*json)["iteration"].is_number_integer()) {
    return std::nullopt;
  }
  return (*json)["iteration"].get<std::int64_t>();
}

// Cuts the file off behind the last line that is whole and of `iteration` or before. Lines are in order, so
// that what is kept is the file's beginning and stays where it is: a run that is killed here loses nothing.
absl::Status Truncate(const std::string& path, std::int64_t iteration) {
  RETURN_IF_ERROR(CheckRegularOrAbsent(path));
  std::ifstream in(path, std::ios::binary);
  if (!in) return absl::OkStatus();
  std::int64_t read = 0;
  std::int64_t kept = 0;
  bool ended = true;  // the last line that is kept, by a line's end
  for (std::string line; std::getline(in, line);) {
    const bool whole = !in.eof();
    read += static_cast<std::int64_t>(line.size()) + (whole ? 1 : 0);
    const std::optional<std::int64_t> of_line = IterationOf(line, path);
    if (!of_line) continue;
    if (*of_line > iteration) break;
    kept = read;
    ended = whole;
  }
  std::error_code error;
  if (std::filesystem::file_size(path, error) != static_cast<std::uintmax_t>(kept) && !error) {
    std::filesystem::resize_file(path, static_cast<std::uintmax_t>(kept), error);
  }
  if (error) return Unavailable("{}: cannot cut off what will run again: {}", path, error.message());
  if (ended) return absl::OkStatus();
  std::ofstream out(path, std::ios::binary | std::ios::app);
  if (!(out << '\n').flush()) return Unavailable("{}: cannot write", path);
  return absl::OkStatus();
}

// A time that pandas and JavaScript read: "2026-11-23T18:30:05.250Z".
std::string Timestamp(double unix_seconds) {
  const auto milliseconds = static_cast<std::int64_t>(unix_seconds * 1e3);
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03d}Z",
                     fmt::gmtime(static_cast<std::time_t>(milliseconds / 1000)), milliseconds % 1000);
}

// JSON has no number that is not finite: null.
nlohmann::ordered_json NumberOf(const Measurement& measured) {
  if (!std::isfinite(measured.value)) return nullptr;
  if (measured.quantity->integer) return static_cast<std::int64_t>(measured.value);
  return measured.value;
}

void Put(const Measurement& measured, nlohmann::ordered_json& line) {
  nlohmann::ordered_json& value = line[measured.quantity->key];
  switch (measured.quantity->each) {
    case Quantity::Each::kOne:
      value = NumberOf(measured);
      return;
    case Quantity::Each::kName:
      value[measured.name] = NumberOf(measured);
      return;
    case Quantity::Each::kRank:
      value.push_back(NumberOf(measured));
      return;
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Jsonl>> Jsonl::Open(const std::string& path, std::int64_t iteration) {
  RETURN_IF_ERROR(Truncate(path, iteration));
  std::unique_ptr<Jsonl> sink(new Jsonl(path, iteration));
  RETURN_IF_ERROR(sink->file_.Open().status());
  return sink;
}

absl::Status Jsonl::Write(const Record& record) {
  nlohmann::ordered_json line = {{"iteration", record.iteration},
                                 {"timestamp", Timestamp(record.unix_seconds)}};
  for (const Measurement& measured : record.values) {
    if (measured.quantity->key != nullptr) Put(measured, line);
  }
  if (resumed_iteration_ > 0) line[kResumedIterationKey] = resumed_iteration_;
  RETURN_IF_ERROR(file_.Open().status());
  RETURN_IF_ERROR(file_.Append(line.dump() + "\n"));
  resumed_iteration_ = 0;
  return absl::OkStatus();
}

}  // namespace engine::metrics
