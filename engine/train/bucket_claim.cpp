#include "engine/train/bucket_claim.h"

#include <fmt/chrono.h>

#include <ctime>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "engine/base/file.h"
#include "engine/base/hash.h"
#include "engine/base/host_name.h"
#include "engine/base/json.h"
#include "engine/base/shown.h"
#include "engine/base/status.h"
#include "engine/base/write_file.h"
#include "engine/checkpoint/layout.h"
#include "engine/driver/run_folder.h"
#include "engine/launch/handshake.h"
#include "engine/storage/storage.h"

namespace engine::train {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMostClaimBytes = 1 << 16;
constexpr const char* kOwnerName = "owner.json";

std::string OwnerIn(const std::string& prefix) { return checkpoint::JoinPath(prefix, kOwnerName); }

// nullopt: nobody has written there yet.
absl::StatusOr<std::optional<BucketOwner>> ReadOwner(const std::string& prefix) {
  const std::string name = OwnerIn(prefix);
  const absl::StatusOr<std::string> text = storage::ReadAll(name, kMostClaimBytes);
  if (absl::IsNotFound(text.status())) return std::nullopt;
  RETURN_IF_ERROR(text.status());
  absl::StatusOr<BucketOwner> owner = BucketOwner::FromText(*text);
  if (owner.ok()) return *std::move(owner);
  return DataLoss("{} does not say which run keeps checkpoints there: {}; remove it if none does",
                  ShownPath(name), Message(owner.status()));
}

absl::Status WriteOwner(const std::string& prefix, const BucketOwner& owner) {
  const std::string text = owner.ToText();
  ASSIGN_OR_RETURN(const std::unique_ptr<storage::Writer> writer,
                   storage::Create(OwnerIn(prefix), static_cast<std::int64_t>(text.size())));
  RETURN_IF_ERROR(writer->Append(text));
  return writer->Finish();
}

// As the folder says; a folder that does not say it yet is given one that no other has.
absl::StatusOr<std::string> RunIn(const std::string& out) {
  constexpr std::size_t kRandomBytes = 16;
  const std::string path = (fs::path(out) / driver::kBucketRunName).string();
  const absl::StatusOr<std::string> text = ReadRegular(path, kMostClaimBytes);
  if (text.ok()) {
    ASSIGN_OR_RETURN(const nlohmann::json json, ParseJson(*text, path));
    if (json.is_object() && json.contains("run") && json["run"].is_string())
      return json["run"].get<std::string>();
    return DataLoss("{} does not say which run this is; remove it, and --take-over lets the run go on", path);
  }
  if (!absl::IsNotFound(text.status())) return text.status();
  ASSIGN_OR_RETURN(const std::string bytes, launch::RandomBytes(kRandomBytes));
  const std::string run = HashHex(bytes);
  RETURN_IF_ERROR(WriteFile(path, nlohmann::json({{"run", run}}).dump() + "\n"));
  return run;
}

std::string Described(const BucketOwner& owner) {
  return fmt::format("that in {} on {}, since {}", ShownPath(owner.folder), Shown(owner.host),
                     Shown(owner.since));
}

}  // namespace

std::string BucketOwner::ToText() const {
  const nlohmann::ordered_json json = {{"run", run},   {"attempt", attempt}, {"folder", folder},
                                       {"host", host}, {"since", since},     {"ended", ended}};
  return json.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

absl::StatusOr<BucketOwner> BucketOwner::FromText(const std::string& text) {
  ASSIGN_OR_RETURN(const nlohmann::json json, ParseJson(text, kOwnerName));
  const auto is = [&](const char* key, nlohmann::json::value_t type) {
    return json.is_object() && json.contains(key) && json[key].type() == type;
  };
  using Type = nlohmann::json::value_t;
  for (const char* key : {"run", "folder", "host", "since"}) {
    if (!is(key, Type::string)) return DataLoss("it has no text under \"{}\"", key);
  }
  if (!is("attempt", Type::number_unsigned)) return DataLoss("it has no number under \"attempt\"");
  if (!is("ended", Type::boolean)) return DataLoss("it has neither true nor false under \"ended\"");
  return BucketOwner{.run = json["run"].get<std::string>(),
                     .attempt = json["attempt"].get<std::int64_t>(),
                     .folder = json["folder"].get<std::string>(),
                     .host = json["host"].get<std::string>(),
                     .since = json["since"].get<std::string>(),
                     .ended = json["ended"].get<bool>()};
}

absl::StatusOr<BucketClaim> BucketClaim::Take(const std::string& prefix, const std::string& out,
                                              bool take_over, std::vector<std::string>* notes) {
  ASSIGN_OR_RETURN(const std::string run, RunIn(out));
  ASSIGN_OR_RETURN(const std::optional<BucketOwner> before, ReadOwner(prefix));
  if (before && before->run != run && !before->ended) {
    if (!take_over) {
      return FailedPrecondition(
          "{} is where another run keeps its checkpoints: {}; it has not said its end\n"
          "    hint: give this run another KEY; or, if that one is gone for good, --take-over goes on with "
          "its checkpoints in "
          "its place",
          prefix, Described(*before));
    }
    notes->push_back(fmt::format("{} is taken over from another run, {}", prefix, Described(*before)));
  }
  std::error_code error;
  BucketClaim claim(prefix, {.run = run,
                             .attempt = before ? before->attempt + 1 : 1,
                             .folder = fs::absolute(out, error).string(),
                             .host = HostName(),
                             .since = fmt::format("{:%FT%TZ}", fmt::gmtime(std::time(nullptr)))});
  RETURN_IF_ERROR(WriteOwner(prefix, claim.self_));
  RETURN_IF_ERROR(claim.Check());
  return claim;
}

absl::Status BucketClaim::Check() const {
  ASSIGN_OR_RETURN(const std::optional<BucketOwner> now, ReadOwner(prefix_));
  if (!now)
    return absl::AlreadyExistsError(
        fmt::format("{} is gone, by which {} was this run's", OwnerIn(prefix_), prefix_));
  if (now->run == self_.run && now->attempt == self_.attempt) return absl::OkStatus();
  return absl::AlreadyExistsError(
      fmt::format("{} is no longer this run's place for checkpoints, so that it writes and deletes none "
                  "there: {} has it, {}",
                  prefix_, now->run == self_.run ? "a later attempt of it" : "another run", Described(*now)));
}

absl::Status BucketClaim::Release() const {
  const absl::Status still = Check();
  if (absl::IsAlreadyExists(still)) return absl::OkStatus();
  RETURN_IF_ERROR(still);
  BucketOwner ended = self_;
  ended.ended = true;
  return WriteOwner(prefix_, ended);
}

}  // namespace engine::train
