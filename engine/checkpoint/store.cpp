#include "engine/checkpoint/store.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>

#include "engine/base/file_io.h"
#include "engine/base/status.h"
#include "engine/checkpoint/layout.h"
#include "engine/checkpoint/read.h"

namespace engine::checkpoint {
namespace {

absl::StatusOr<std::vector<std::string>> ListNames(const std::string& root) {
  std::vector<std::string> names;
  std::error_code error;
  std::filesystem::directory_iterator entry(root, error);
  if (error.value() == ENOENT) return names;
  while (!error && entry != std::filesystem::directory_iterator()) {
    names.push_back(entry->path().filename());
    entry.increment(error);
  }
  if (error) return SystemError("list", root, error.value());
  std::sort(names.begin(), names.end());
  return names;
}

absl::Status OpenAndVerify(const std::string& folder) {
  ASSIGN_OR_RETURN(const Reader reader, Reader::Open(folder));
  return reader.Verify();
}

}  // namespace

absl::StatusOr<std::vector<std::int64_t>> ListIterations(const std::string& root) {
  ASSIGN_OR_RETURN(const std::vector<std::string> names, ListNames(root));
  std::vector<std::int64_t> iterations;
  for (const std::string& name : names) {
    if (const std::optional<std::int64_t> iteration = ParseIterationName(name))
      iterations.push_back(*iteration);
  }
  std::sort(iterations.begin(), iterations.end());
  return iterations;
}

absl::StatusOr<std::optional<std::string>> FindNewestWhole(const std::string& root,
                                                           std::vector<std::string>* reports,
                                                           std::int64_t last) {
  ASSIGN_OR_RETURN(std::vector<std::int64_t> iterations, ListIterations(root));
  std::reverse(iterations.begin(), iterations.end());
  for (std::int64_t iteration : iterations) {
    if (iteration > last) continue;
    const std::string folder = IterationPath(root, iteration);
    const absl::Status status = OpenAndVerify(folder);
    if (status.ok()) return std::optional<std::string>(folder);
    reports->push_back(fmt::format("checkpoint {} is damaged and not used: {}", folder, Message(status)));
  }
  return std::optional<std::string>();
}

absl::Status DeleteCheckpoint(const std::string& root, std::int64_t iteration) {
  const absl::StatusOr<std::int64_t> held = ReadIteration(IterationPath(root, iteration));
  if (held.ok() && *held != iteration) return absl::OkStatus();
  const std::string doomed = DeletingPath(root, iteration);
  RETURN_IF_ERROR(RemoveUnlessLocked(doomed).status());
  RETURN_IF_ERROR(Rename(IterationPath(root, iteration), doomed));
  RETURN_IF_ERROR(SyncFolder(root));
  return RemoveTree(doomed);
}

absl::Status RemoveLeftovers(const std::string& root) {
  ASSIGN_OR_RETURN(const std::vector<std::string> names, ListNames(root));
  for (const std::string& name : names) {
    const std::optional<Leftover> leftover = ParseLeftoverName(name);
    if (!leftover) continue;
    const std::string path = JoinPath(root, name);
    const std::string place = IterationPath(root, leftover->iteration);
    std::error_code error;
    if (leftover->kind == LeftoverKind::kReplaced && !std::filesystem::exists(place, error)) {
      RETURN_IF_ERROR(Rename(path, place));
      RETURN_IF_ERROR(SyncFolder(root));
      continue;
    }
    RETURN_IF_ERROR(RemoveUnlessLocked(path).status());
  }
  return absl::OkStatus();
}

void Retention::Resumed(std::int64_t iteration) {
  newest_ = iteration;
  verified_[iteration] = true;
}

void Retention::Saved(std::int64_t iteration) {
  newest_ = iteration;
  abandoned_.erase(iteration);
  std::erase(saved_, iteration);
  saved_.push_back(iteration);
}

absl::Status Retention::WentBack(std::int64_t iteration) {
  ASSIGN_OR_RETURN(const std::vector<std::int64_t> iterations, ListIterations(root_));
  for (const std::int64_t behind : iterations) {
    if (behind > iteration && behind <= newest_) abandoned_.insert(behind);
  }
  std::erase_if(saved_, [&](std::int64_t saved) { return saved > iteration; });
  newest_ = iteration;
  return absl::OkStatus();
}

bool Retention::IsWhole(std::int64_t iteration) {
  const absl::StatusOr<Reader> reader = Reader::Open(IterationPath(root_, iteration));
  if (!reader.ok()) return false;
  if (std::find(saved_.begin(), saved_.end(), iteration) != saved_.end()) return true;
  const auto [verified, is_first] = verified_.try_emplace(iteration, false);
  if (is_first) verified->second = reader->Verify().ok();
  return verified->second;
}

absl::Status Retention::Prune() {
  for (; !abandoned_.empty(); abandoned_.erase(abandoned_.begin()))
    RETURN_IF_ERROR(DeleteCheckpoint(root_, *abandoned_.begin()));
  if (keep_ < 1) return absl::OkStatus();
  ASSIGN_OR_RETURN(std::vector<std::int64_t> iterations, ListIterations(root_));
  std::erase_if(iterations, [&](std::int64_t iteration) { return iteration > newest_; });
  if (std::ssize(iterations) <= keep_) return absl::OkStatus();
  const auto age = [&](std::int64_t iteration) {  // greater: newer
    const auto saved = std::find(saved_.begin(), saved_.end(), iteration);
    return std::pair(saved == saved_.end() ? -1 : saved - saved_.begin(), iteration);
  };
  std::vector<std::int64_t> newest_first = iterations;
  std::sort(newest_first.begin(), newest_first.end(),
            [&](std::int64_t a, std::int64_t b) { return age(a) > age(b); });
  std::vector<std::int64_t> kept;
  for (std::int64_t iteration : newest_first) {
    if (std::ssize(kept) < keep_ && iteration % every_ == 0 && IsWhole(iteration)) kept.push_back(iteration);
  }
  if (std::ssize(kept) < keep_) return absl::OkStatus();
  const std::int64_t oldest = *std::min_element(kept.begin(), kept.end());
  for (std::int64_t iteration : iterations) {
    if (iteration >= oldest) break;
    RETURN_IF_ERROR(DeleteCheckpoint(root_, iteration));
  }
  return absl::OkStatus();
}

}  // namespace engine::checkpoint
