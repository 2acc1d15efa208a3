#include "engine/data/unfinished_build.h"

#include <algorithm>
#include <filesystem>

#include "engine/base/status.h"
#include "engine/data/duplicates.h"
#include "engine/data/indexed_format.h"

namespace engine::data {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr int kFormat = 1;

Json ToJson(const std::vector<DatasetSpool::Sizes>& all) {
  Json json = Json::array();
  for (const DatasetSpool::Sizes& sizes : all)
    json.push_back({sizes.token_bytes, sizes.sequences, sizes.documents});
  return json;
}
std::vector<DatasetSpool::Sizes> SizesOf(const Json& json) {
  std::vector<DatasetSpool::Sizes> all;
  for (const Json& sizes : json)
    all.push_back(
        {sizes.at(0).get<std::int64_t>(), sizes.at(1).get<std::int64_t>(), sizes.at(2).get<std::int64_t>()});
  return all;
}

void ApplyRecord(const Json& record, BuildState* state) {
  for (const Json& input : record.at("finished")) {
    state->finished.push_back({.stamp = {.bytes = input.at("bytes").get<std::int64_t>(),
                                         .changed_ns = input.at("changed_ns").get<std::int64_t>()},
                               .fingerprint = input.at("content").get<std::string>(),
                               .documents = input.at("documents").get<std::int64_t>()});
  }
  const Json& position = record.at("position");
  state->position = {.at = position.at("at").get<std::int64_t>(),
                     .line = position.at("line").get<std::int64_t>(),
                     .file_bytes = position.at("file_bytes").get<std::int64_t>(),
                     .fingerprint = position.at("content").get<std::string>()};
  state->documents = record.at("documents").get<std::int64_t>();
  state->sizes = SizesOf(record.at("sizes"));
}

// The keys of which the two have other values.
std::string Differing(const Json& a, const Json& b) {
  std::string names;
  const auto text = [](const Json& json) {
    return json.dump(-1, ' ', false, Json::error_handler_t::replace);
  };
  for (const auto& [key, value] : b.items()) {
    if (a.contains(key) && text(a.at(key)) == text(value)) continue;
    names += (names.empty() ? "" : ", ") + key;
  }
  return names;
}

// The folders above it that are not there, the innermost first.
std::vector<std::string> MissingParents(const fs::path& folder) {
  std::vector<std::string> missing;
  std::error_code ignored;
  for (fs::path parent = folder.lexically_normal().parent_path();
       !parent.empty() && !fs::exists(parent, ignored); parent = parent.parent_path())
    missing.push_back(parent);
  return missing;
}

}  // namespace

std::string UnfinishedPath(const std::string& output_prefix) { return output_prefix + ".unfinished"; }

absl::StatusOr<std::unique_ptr<UnfinishedBuild>> UnfinishedBuild::Open(const std::string& output_prefix,
                                                                       const Json& what,
                                                                       std::vector<TokenType> types,
                                                                       bool restart) {
  const std::string folder = UnfinishedPath(output_prefix);
  std::error_code error;
  std::vector<std::string> made_parents = MissingParents(folder);
  fs::create_directories(folder, error);
  if (error) return SystemError("create", folder, error.value());
  ASSIGN_OR_RETURN(File lock, OpenFolder(folder));
  if (!LockFolder(lock).ok()) return FailedPrecondition("another process is building {}", output_prefix);
  if (restart) {
    RETURN_IF_ERROR(RemoveTree(folder + "/journal"));  // first: nothing goes on with the rest
    for (const fs::directory_entry& entry : fs::directory_iterator(folder, error))
      RETURN_IF_ERROR(RemoveTree(entry.path()));
  }
  ASSIGN_OR_RETURN(Journal journal, Journal::Open(folder + "/journal"));
  std::unique_ptr<UnfinishedBuild> build(
      new UnfinishedBuild(folder, std::move(types), std::move(lock), std::move(journal)));
  build->made_parents_ = std::move(made_parents);
  build->state_.sizes.resize(build->types_.size());
  RETURN_IF_ERROR(build->Load(what));
  RETURN_IF_ERROR(build->OpenFiles());
  const std::string parent = fs::path(folder).parent_path();
  RETURN_IF_ERROR(SyncFolder(folder));
  RETURN_IF_ERROR(SyncFolder(parent.empty() ? "." : parent));
  return build;
}

UnfinishedBuild::~UnfinishedBuild() { (void)WaitForCommit(); }

std::string UnfinishedBuild::PathOf(std::size_t dataset, bool kept) const {
  return fmt::format("{}/{}{}", folder_, dataset, kept ? ".kept" : "");
}

absl::Status UnfinishedBuild::Load(const Json& what) {
  const std::vector<Json>& records = journal_.records();
  if (records.empty()) return journal_.Append({{"format", kFormat}, {"build", what}});
  constexpr const char* kWayOut = "--restart throws it away";
  try {
    if (records[0].at("format") != kFormat) {
      return FailedPrecondition("{} was left unfinished by another version of this program; {}", folder_,
                                kWayOut);
    }
    if (const std::string other = Differing(records[0].at("build"), what); !other.empty()) {
      return FailedPrecondition(
          "{} has what another build left unfinished, which differs in: {}. The command of that build goes "
          "on with it; {}",
          folder_, other, kWayOut);
    }
    for (std::size_t i = 1; i < records.size(); ++i) {
      if (!records[i].contains("made")) {
        ApplyRecord(records[i], &state_);
        continue;
      }
      const Json& made = records[i].at("made");
      kept_ = made.at("kept").get<bool>();
      made_ = MadeData{SizesOf(made.at("sizes")), made.at("duplicates").get<std::vector<std::int64_t>>()};
    }
  } catch (const nlohmann::json::exception& error) {
    return DataLoss("{}/journal is damaged: {}; {}", folder_, error.what(), kWayOut);
  }
  written_ = state_.finished.size();
  return absl::OkStatus();
}

absl::Status UnfinishedBuild::OpenFiles() {
  if (made_.has_value()) return absl::OkStatus();
  const auto open = [&]() -> absl::Status {
    if (state_.sizes.size() != types_.size()) return DataLoss("{}/journal is damaged", folder_);
    for (std::size_t i = 0; i < types_.size(); ++i) {
      ASSIGN_OR_RETURN(DatasetSpool spool, DatasetSpool::Open(PathOf(i, false), types_[i], state_.sizes[i]));
      spools_.push_back(std::move(spool));
    }
    const auto hash_bytes = static_cast<std::int64_t>(sizeof(Hash128));
    ASSIGN_OR_RETURN(hashes_,
                     GrowingFile::Open(folder_ + "/hashes", state_.sizes.front().documents * hash_bytes));
    return absl::OkStatus();
  };
  absl::Status status = open();
  if (!absl::IsDataLoss(status)) return status;
  return DataLoss("{}: what an unfinished build has made is not whole; --restart begins anew",
                  Message(status));
}

absl::Status UnfinishedBuild::Add(std::span<const EncodedDocuments> of_datasets,
                                  std::span<const Hash128> hashes, const InputPosition& end) {
  for (std::size_t i = 0; i < spools_.size(); ++i) RETURN_IF_ERROR(spools_[i].Add(of_datasets[i]));
  RETURN_IF_ERROR(hashes_->Append(hashes.data(), hashes.size_bytes()));
  state_.position = end;
  state_.documents += static_cast<std::int64_t>(hashes.size());
  for (std::size_t i = 0; i < spools_.size(); ++i) state_.sizes[i] = spools_[i].sizes();
  return absl::OkStatus();
}

absl::Status UnfinishedBuild::EndInput(const FinishedInput& input) {
  state_.finished.push_back(input);
  state_.finished.back().documents = state_.documents;
  state_.position = {};
  state_.documents = 0;
  return absl::OkStatus();
}

nlohmann::ordered_json UnfinishedBuild::TakeRecord() {
  Json finished = Json::array();
  for (; written_ < state_.finished.size(); ++written_) {
    const FinishedInput& input = state_.finished[written_];
    finished.push_back({{"bytes", input.stamp.bytes},
                        {"changed_ns", input.stamp.changed_ns},
                        {"content", input.fingerprint},
                        {"documents", input.documents}});
  }
  return {{"finished", finished},
          {"position",
           {{"at", state_.position.at},
            {"line", state_.position.line},
            {"file_bytes", state_.position.file_bytes},
            {"content", state_.position.fingerprint}}},
          {"documents", state_.documents},
          {"sizes", ToJson(state_.sizes)}};
}

absl::Status UnfinishedBuild::Write(const Json& record) {
  for (const DatasetSpool& spool : spools_) RETURN_IF_ERROR(spool.Sync());
  RETURN_IF_ERROR(hashes_->file().Sync());
  return journal_.Append(record);
}

absl::Status UnfinishedBuild::WaitForCommit() {
  if (committing_.valid()) failed_.Update(committing_.get());
  return failed_;
}

absl::Status UnfinishedBuild::Commit() {
  RETURN_IF_ERROR(WaitForCommit());
  return failed_ = Write(TakeRecord());
}

absl::Status UnfinishedBuild::CommitBeside() {
  if (committing_.valid() && committing_.wait_for(std::chrono::seconds(0)) != std::future_status::ready)
    return absl::OkStatus();
  RETURN_IF_ERROR(WaitForCommit());
  committing_ = std::async(std::launch::async, [this, record = TakeRecord()] { return Write(record); });
  return absl::OkStatus();
}

absl::StatusOr<MadeData> UnfinishedBuild::Complete(bool drop_duplicates) {
  if (made_.has_value()) return *made_;
  RETURN_IF_ERROR(Commit());
  MadeData made;
  ASSIGN_OR_RETURN(std::vector<bool> kept, FindDuplicates(hashes_->file(), state_.sizes.front().documents));
  kept.flip();
  auto document = kept.begin();
  for (const FinishedInput& input : state_.finished) {
    const auto end = document + input.documents;
    made.duplicates.push_back(std::count(document, end, false));
    document = end;
  }
  kept_ = drop_duplicates && std::find(kept.begin(), kept.end(), false) != kept.end();
  for (std::size_t i = 0; i < spools_.size(); ++i) {
    if (kept_) {
      ASSIGN_OR_RETURN(DatasetSpool some, DatasetSpool::Open(PathOf(i, true), types_[i], {}));
      RETURN_IF_ERROR(spools_[i].CopyKept(kept, &some));
      RETURN_IF_ERROR(some.Sync());
      spools_[i] = std::move(some);
    }
    RETURN_IF_ERROR(spools_[i].WriteIndex(PathOf(i, false) + ".idx"));
    made.sizes.push_back(spools_[i].sizes());
  }
  RETURN_IF_ERROR(SyncFolder(folder_));
  RETURN_IF_ERROR(journal_.Append(
      {{"made", {{"kept", kept_}, {"sizes", ToJson(made.sizes)}, {"duplicates", made.duplicates}}}}));
  made_ = made;
  return made;
}

absl::Status UnfinishedBuild::Publish(std::span<const std::string> prefixes) {
  for (std::size_t i = 0; i < prefixes.size(); ++i)
    RETURN_IF_ERROR(RemoveOldIndex(PathOf(i, false) + ".idx", prefixes[i]));
  for (std::size_t i = prefixes.size(); i-- > 0;)
    RETURN_IF_ERROR(PublishDataset(PathOf(i, kept_) + ".bin", PathOf(i, false) + ".idx", prefixes[i]));
  return absl::OkStatus();
}

absl::Status UnfinishedBuild::Remove() {
  (void)WaitForCommit();
  RETURN_IF_ERROR(RemoveTree(folder_ + "/journal"));  // first: nothing goes on with the rest
  return RemoveTree(folder_);
}

absl::Status UnfinishedBuild::Discard() {
  RETURN_IF_ERROR(Remove());
  std::error_code not_empty;
  for (const std::string& parent : made_parents_) {
    if (!fs::remove(parent, not_empty)) break;
  }
  return absl::OkStatus();
}

}  // namespace engine::data
