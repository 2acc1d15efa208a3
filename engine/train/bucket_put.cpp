#include "engine/train/bucket_put.h"

#include <cstddef>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "engine/base/json.h"
#include "engine/base/status.h"
#include "engine/checkpoint/layout.h"
#include "engine/checkpoint/manifest.h"
#include "engine/checkpoint/read.h"
#include "engine/checkpoint/store.h"
#include "engine/state/shard_exchange.h"
#include "engine/storage/put_file.h"
#include "engine/train/bucket.h"
#include "engine/train/bucket_objects.h"

namespace engine::train {
namespace {

// What a process is asked to put there of one checkpoint.
struct Errand {
  std::string folder, to;  // both hold the files by the same names
  std::vector<checkpoint::FileInfo> files;
};

// With 100 bytes a file (name, size, checksum) an errand fits into a message of the rendezvous; what is more is rank 0's.
constexpr std::size_t kMostFiles = 4096;

std::string ErrandKey(const PutTeam& team, std::int64_t rank) {
  return fmt::format("{}, files for rank {} to put", team.key, rank);
}
std::string DoneKey(const PutTeam& team, std::int64_t rank) {
  return fmt::format("{}, files put by rank {}", team.key, rank);
}

std::string StatusText(const absl::Status& status) {
  return status.ok() ? state::ToText(std::string()) : state::ToText(status);
}

// What rank 0 tells another: an errand, or how it all has ended.
struct Word {
  std::optional<absl::Status> end = {};
  Errand errand = {};
  BucketOwner owner = {};  // whose place it is, as the errand began
};

std::string WordText(const nlohmann::json& word) {
  return word.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string ErrandText(const Errand& errand, const BucketOwner& owner) {
  nlohmann::json files = nlohmann::json::array();
  for (const checkpoint::FileInfo& file : errand.files)
    files.push_back({file.name, file.bytes, file.checksum});
  return WordText(nlohmann::json::object(
      {{"folder", errand.folder}, {"to", errand.to}, {"owner", owner.ToText()}, {"files", files}}));
}

absl::StatusOr<Word> WordOf(const std::string& text) try {
  ASSIGN_OR_RETURN(const nlohmann::json json, ParseJson(text, "what rank 0 tells of the bucket"));
  if (json.contains("end")) return Word{.end = state::Told(json["end"].get<std::string>()).status()};
  Word word;
  word.errand.folder = json.at("folder").get<std::string>();
  word.errand.to = json.at("to").get<std::string>();
  ASSIGN_OR_RETURN(word.owner, BucketOwner::FromText(json.at("owner").get<std::string>()));
  for (const nlohmann::json& file : json.at("files")) {
    word.errand.files.push_back(
        {file.at(0).get<std::string>(), file.at(1).get<std::int64_t>(), file.at(2).get<std::string>()});
  }
  return word;
} catch (const nlohmann::json::exception& error) {
  return Internal("what rank 0 tells of the bucket cannot be read: {}", error.what());
}

// An error that is not AlreadyExists is of the server, and never one of the checkpoint's.
absl::Status CheckClaim(const BucketClaim& claim) {
  const absl::Status status = claim.Check();
  return status.ok() || absl::IsAlreadyExists(status) ? status : Unavailable("{}", Message(status));
}

// DataLoss where a file is not what the manifest says.
absl::Status PutFiles(const BucketClaim& claim, const Errand& errand, launch::Client* processes) {
  return ForEachFile(errand.files.size(), [&](std::size_t i) {
    const checkpoint::FileInfo& file = errand.files[i];
    const std::string path = checkpoint::JoinPath(errand.folder, file.name);
    storage::PutChecks checks;
    checks.goes_on = [&] { return processes != nullptr ? processes->status() : absl::OkStatus(); };
    checks.may_appear = [&](const std::string& checksum) {
      if (checksum != file.checksum)
        return DataLoss("{}: its checksum is {}; the manifest says {}", path, checksum, file.checksum);
      return CheckClaim(claim);
    };
    return storage::PutFile(path, checkpoint::JoinPath(errand.to, file.name), checks);
  });
}

absl::Status WithRank(std::int64_t rank, const absl::Status& status) {
  return WithContext(status, fmt::format("rank {} ({})", rank, launch::ProcessName()));
}

// What went wrong in several ranks, as one error.
class Failures {
 public:
  void Add(const absl::Status& status) {
    if (status.ok()) return;
    ++count_;
    if (first_.ok() || absl::IsAlreadyExists(status)) first_ = status;
  }
  absl::Status Sum() const {
    if (count_ < 2 || absl::IsAlreadyExists(first_)) return first_;
    return absl::Status(first_.code(), fmt::format("{}; {} other rank{} failed, too", Message(first_),
                                                   count_ - 1, count_ == 2 ? "" : "s"));
  }

 private:
  absl::Status first_;
  std::int64_t count_ = 0;
};

// The files of a checkpoint, by all processes. DataLoss where one is damaged.
absl::Status PutAllFiles(const BucketClaim& claim, const checkpoint::Reader& reader, const std::string& to,
                         const PutTeam& team) {
  const std::string folder = std::filesystem::absolute(reader.folder()).string();
  std::vector<Errand> errands(static_cast<std::size_t>(team.world), Errand{folder, to, {}});
  for (const checkpoint::FileInfo& file : reader.manifest().files) {
    const std::optional<int> of = checkpoint::RankOfShardName(file.name);
    const std::size_t rank = of ? static_cast<std::size_t>(*of % team.world) : 0;
    errands[errands[rank].files.size() < kMostFiles ? rank : 0].files.push_back(file);
  }
  std::vector<std::int64_t> helpers;
  for (std::int64_t rank = 1; rank < team.world; ++rank) {
    const Errand& errand = errands[static_cast<std::size_t>(rank)];
    if (errand.files.empty()) continue;
    RETURN_IF_ERROR(team.processes->Set(ErrandKey(team, rank), ErrandText(errand, claim.owner())));
    helpers.push_back(rank);
  }
  Failures failures;
  const absl::Status own = state::InMemory([&] { return PutFiles(claim, errands.front(), team.processes); });
  failures.Add(team.world > 1 && !own.ok() ? WithRank(0, own) : own);
  for (const std::int64_t rank : helpers) {
    ASSIGN_OR_RETURN(const std::string done, team.processes->Take(DoneKey(team, rank)));
    failures.Add(state::Told(done).status());
  }
  return failures.Sum();
}

// The manifest last, which makes a checkpoint of them.
absl::Status PutOne(const BucketClaim& claim, const checkpoint::Reader& reader, const std::string& to,
                    const PutTeam& team) {
  RETURN_IF_ERROR(PutAllFiles(claim, reader, to, team));
  RETURN_IF_ERROR(CheckClaim(claim));  // large files take their time
  return storage::PutFile(ManifestIn(reader.folder()), ManifestIn(to));
}

// That iteration, and before it those of earlier ones that were left.
absl::Status PutAll(const BucketClaim& claim, const std::string& root, std::int64_t iteration,
                    std::set<std::int64_t>* damaged, const PutTeam& team, std::vector<std::string>* reports) {
  RETURN_IF_ERROR(claim.Check());
  const std::string& prefix = claim.prefix();
  ASSIGN_OR_RETURN(const InBucketByIteration there, ListObjects(prefix));
  std::int64_t newest = -1;
  for (const std::int64_t whole : WholeOf(there)) {
    if (!damaged->contains(whole)) newest = whole;
  }
  ASSIGN_OR_RETURN(const std::vector<std::int64_t> here, checkpoint::ListIterations(root));
  for (const std::int64_t one : here) {
    const bool is_left = one > newest && one < iteration;  // by a run that could not put it there
    if (!is_left && one != iteration) continue;
    const std::string folder = checkpoint::IterationPath(root, one);
    const absl::StatusOr<checkpoint::Reader> reader = checkpoint::Reader::Open(folder);
    if (!reader.ok() && !is_left) return reader.status();
    absl::Status status = reader.status();
    if (status.ok() && reader->metadata().iteration != one)
      status = DataLoss("its manifest is of iteration {}", reader->metadata().iteration);
    if (status.ok()) {
      if (const auto before = there.find(one); before != there.end())
        RETURN_IF_ERROR(DeleteObjects(prefix, one, before->second));
      damaged->erase(one);
      status = PutOne(claim, *reader, checkpoint::IterationPath(prefix, one), team);
      if (!status.ok() && !(is_left && absl::IsDataLoss(status))) return status;
    }
    if (!status.ok()) reports->push_back(NotUsed(folder, status));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Put> PutIntoBucket(const BucketClaim& claim, const std::string& root, std::int64_t iteration,
                                  std::set<std::int64_t>* damaged, const PutTeam& team) {
  Put put;
  put.failure = state::InMemory([&] { return PutAll(claim, root, iteration, damaged, team, &put.reports); });
  if (team.processes != nullptr) {
    RETURN_IF_ERROR(team.processes->status());
    for (std::int64_t rank = 1; rank < team.world; ++rank)
      RETURN_IF_ERROR(team.processes->Set(
          ErrandKey(team, rank), WordText(nlohmann::json::object({{"end", StatusText(put.failure)}}))));
  }
  if (absl::IsAlreadyExists(put.failure)) return put.failure;
  return put;
}

absl::StatusOr<Put> HelpToPut(const std::string& prefix, const PutTeam& team) {
  for (;;) {
    ASSIGN_OR_RETURN(const std::string text, team.processes->Take(ErrandKey(team, team.rank)));
    ASSIGN_OR_RETURN(const Word word, WordOf(text));
    if (word.end) {
      if (absl::IsAlreadyExists(*word.end))
        return absl::AbortedError(Message(*word.end));  // rank 0 tells of it
      return Put{.failure = *word.end};
    }
    const BucketClaim claim = BucketClaim::Of(prefix, word.owner);
    const absl::Status done = state::InMemory([&] { return PutFiles(claim, word.errand, team.processes); });
    RETURN_IF_ERROR(team.processes->Set(DoneKey(team, team.rank),
                                        StatusText(done.ok() ? done : WithRank(team.rank, done))));
  }
}

}  // namespace engine::train
