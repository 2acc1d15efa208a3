#include "engine/checkpoint/store.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>

#include "engine/base/status.h"
#include "engine/checkpoint/file_io.h"
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

// The iterations that Prune keeps: the `keep` newest whole ones.
std::vector<std::int64_t> NewestWhole(const std::string& root, std::vector<std::int64_t> iterations,
                                      int keep) {
  std::vector<std::int64_t> kept;
  std::sort(iterations.rbegin(), iterations.rend());
  for (std::int64_t iteration : iterations) {
    if (static_cast<int>(kept.size()) == keep) break;
    const std::string folder = IterationPath(root, iteration);
    const absl::Status status = kept.empty() ? OpenAndVerify(folder) : Reader::Open(folder).status();
    if (status.ok()) kept.push_back(iteration);
  }
  return kept;
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
                                                           std::vector<std::string>* reports) {
  ASSIGN_OR_RETURN(std::vector<std::int64_t> iterations, ListIterations(root));
  std::reverse(iterations.begin(), iterations.end());
  for (std::int64_t iteration : iterations) {
    const std::string folder = IterationPath(root, iteration);
    const absl::Status status = OpenAndVerify(folder);
    if (status.ok()) return std::optional<std::string>(folder);
    reports->push_back(fmt::format("checkpoint {} is damaged and not used: {}", folder, Message(status)));
  }
  return std::optional<std::string>();
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

absl::Status Prune(const std::string& root, int keep) {
  if (keep < 1) return InvalidArgument("cannot keep {} checkpoints; the fewest is 1", keep);
  ASSIGN_OR_RETURN(const std::vector<std::int64_t> iterations, ListIterations(root));
  const std::vector<std::int64_t> kept = NewestWhole(root, iterations, keep);
  if (static_cast<int>(kept.size()) < keep) return absl::OkStatus();
  for (std::int64_t iteration : iterations) {
    if (iteration >= kept.back()) break;
    const std::string doomed = DeletingPath(root, iteration);
    RETURN_IF_ERROR(RemoveUnlessLocked(doomed).status());
    RETURN_IF_ERROR(Rename(IterationPath(root, iteration), doomed));
    RETURN_IF_ERROR(SyncFolder(root));
    RETURN_IF_ERROR(RemoveTree(doomed));
  }
  return absl::OkStatus();
}

}  // namespace engine::checkpoint
