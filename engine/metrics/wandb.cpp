#include "engine/metrics/wandb.h"

#include <fmt/chrono.h>

#include <cmath>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string_view>
#include <system_error>

#include "engine/base/file.h"
#include "engine/metrics/wandb_log.h"

namespace engine::metrics {
namespace {

namespace fs = std::filesystem;

// Fields of Record.
constexpr int kNum = 1;
constexpr int kHistory = 2;
constexpr int kSummary = 3;
constexpr int kConfig = 5;
constexpr int kRun = 17;
constexpr int kExit = 18;

constexpr std::int64_t kRecordsOfBeginning = 2;  // run and configuration

constexpr std::string_view kFolderPrefix = "offline-run-";

// Eight letters and digits, as W&B's own are.
std::string NewId() {
  constexpr std::string_view kCharacters = "0123456789abcdefghijklmnopqrstuvwxyz";
  std::random_device device;
  std::uniform_int_distribution<std::size_t> any(0, kCharacters.size() - 1);
  std::string id;
  for (int i = 0; i < 8; ++i) id.push_back(kCharacters[any(device)]);
  return id;
}

// The id of the run whose file is in `folder`, the last by name; empty: there is none.
std::string IdIn(const std::string& folder, std::string* run_folder) {
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name.starts_with(kFolderPrefix) && it->path().string() > *run_folder)
      *run_folder = it->path().string();
  }
  return run_folder->empty() ? "" : run_folder->substr(run_folder->rfind('-') + 1);
}

// Whether this record of an earlier process is cut off by a process that goes on after `iteration`: it is a row of a later
// iteration, which will run again, or says that the run has ended.
bool RunsAgain(std::string_view record, std::int64_t iteration) {
  if (FindProtoField(record, kExit)) return true;
  const std::optional<ProtoField> history = FindProtoField(record, kHistory);
  if (!history) return false;
  const std::optional<ProtoField> step = FindProtoField(history->bytes, 2);
  const std::optional<ProtoField> number = step ? FindProtoField(step->bytes, 1) : std::nullopt;
  return !number || static_cast<std::int64_t>(number->varint) > iteration;
}

// Cuts the file off where it tells of later iterations, or of the run's end, or is not whole. Returns how many records are
// left; 0 where it is none of ours, and then empties it.
absl::StatusOr<std::int64_t> CutOff(const std::string& path, std::int64_t iteration) {
  std::error_code error;
  if (!fs::exists(path, error)) return 0;
  ASSIGN_OR_RETURN(const File file, OpenForWriting(path));
  std::int64_t kept = 0;
  std::int64_t end = 0;
  RETURN_IF_ERROR(VisitWandbRecords(file, [&](std::string_view record, std::int64_t record_end) {
    if (RunsAgain(record, iteration)) return false;
    ++kept;
    end = record_end;
    return true;
  }));
  if (kept < kRecordsOfBeginning) kept = end = 0;
  RETURN_IF_ERROR(WithContext(file.Resize(end), "cannot cut off what will run again"));
  return kept;
}

std::string RecordOf(std::int64_t num, int field, const ProtoMessage& message) {
  return ProtoMessage().Varint(kNum, static_cast<std::uint64_t>(num)).Message(field, message).bytes();
}

ProtoMessage ItemOf(std::string_view key, std::string_view json) {
  return ProtoMessage().Bytes(1, key).Bytes(16, json);
}

std::string JsonOf(const Setting& setting) {
  return std::visit([](const auto& value) { return nlohmann::json(value).dump(); }, setting);
}

}  // namespace

ProtoMessage Wandb::RunMessage() const {
  ProtoMessage run;
  run.Bytes(1, id_);
  if (!names_.entity.empty()) run.Bytes(2, names_.entity);
  run.Bytes(3, names_.project).Bytes(8, names_.name);
  if (!run_.host.empty()) run.Bytes(13, run_.host);
  return run.Message(17, ProtoMessage().Varint(1, static_cast<std::uint64_t>(run_.begin_unix_seconds)));
}

ProtoMessage Wandb::ConfigMessage() const {
  ProtoMessage config;
  for (const auto& [key, setting] : run_.settings) config.Message(1, ItemOf(key, JsonOf(setting)));
  return config;
}

absl::Status Wandb::Append(std::span<const Content> contents) {
  ASSIGN_OR_RETURN(const std::int64_t size, file_.Open());
  std::string bytes = size == 0 ? WandbFileHeader() : "";
  std::int64_t records = records_;
  for (const auto& [field, message] : contents) {
    bytes +=
        WandbFragments(RecordOf(++records, field, message), size + static_cast<std::int64_t>(bytes.size()));
  }
  RETURN_IF_ERROR(file_.Append(bytes));
  records_ = records;
  return absl::OkStatus();
}

absl::Status Wandb::Open() {
  if (id_.empty()) {
    std::string folder;
    id_ = IdIn(folder_, &folder);
    if (id_.empty()) {
      id_ = NewId();
      const auto begin = static_cast<std::time_t>(run_.begin_unix_seconds);
      folder = (fs::path(folder_) /
                fmt::format("{}{:%Y%m%d_%H%M%S}-{}", kFolderPrefix, fmt::localtime(begin), id_))
                   .string();
    }
    file_ = AppendFile((fs::path(folder) / fmt::format("run-{}.wandb", id_)).string());
    const absl::StatusOr<std::int64_t> kept = CutOff(file_.path(), run_.resumed_iteration);
    if (!kept.ok()) id_.clear();
    RETURN_IF_ERROR(kept.status());
    records_ = *kept;
  }
  std::error_code error;
  fs::create_directories(fs::path(file_.path()).parent_path(), error);  // an error is the file's
  ASSIGN_OR_RETURN(const std::int64_t size, file_.Open());
  if (size == 0) {
    records_ = 0;
    is_described_ = false;
  }
  if (is_described_) return absl::OkStatus();
  RETURN_IF_ERROR(Append(std::vector<Content>{{kRun, RunMessage()}, {kConfig, ConfigMessage()}}));
  is_described_ = true;
  return absl::OkStatus();
}

Wandb::Content Wandb::Summary() const {
  std::map<std::string, std::string> latest = row_;
  latest.insert(latest_.begin(), latest_.end());  // where the row has a tag, its value stays
  ProtoMessage summary;
  for (const auto& [tag, json] : latest) summary.Message(1, ItemOf(tag, json));
  return {kSummary, summary};
}

std::vector<Wandb::Content> Wandb::Row() const {
  if (row_.empty()) return {};
  ProtoMessage history;
  for (const auto& [tag, json] : row_) history.Message(1, ItemOf(tag, json));
  history.Message(2, ProtoMessage().Varint(1, static_cast<std::uint64_t>(row_iteration_)));
  return {{kHistory, history}};
}

absl::Status Wandb::AppendRow(const std::vector<Content>& more) {
  std::vector<Content> contents = Row();
  contents.insert(contents.end(), more.begin(), more.end());
  RETURN_IF_ERROR(Append(contents));
  for (const auto& [tag, json] : row_) latest_[tag] = json;
  row_.clear();
  return absl::OkStatus();
}

absl::Status Wandb::Write(const Record& record) {
  RETURN_IF_ERROR(Open());
  if (record.iteration != row_iteration_) RETURN_IF_ERROR(AppendRow());
  row_iteration_ = record.iteration;
  for (const auto& [quantity, value, name] : record.values) {
    if (quantity->tag == nullptr || !std::isfinite(value)) continue;
    row_[quantity->tag + name] = nlohmann::json(value * quantity->tag_factor).dump();
  }
  row_["_step"] = fmt::format("{}", record.iteration);
  row_["_runtime"] = nlohmann::json(record.unix_seconds - run_.begin_unix_seconds).dump();
  row_["_timestamp"] = nlohmann::json(record.unix_seconds).dump();
  if (record.event != Record::Event::kCheckpoint) return absl::OkStatus();
  return AppendRow({Summary()});
}

absl::Status Wandb::Close(bool succeeded) {
  RETURN_IF_ERROR(Open());
  return AppendRow({Summary(), {kExit, ProtoMessage().Varint(1, succeeded ? 0 : 1)}});
}

}  // namespace engine::metrics
