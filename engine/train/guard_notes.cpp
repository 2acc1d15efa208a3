#include "engine/train/guard_notes.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "engine/base/file.h"
#include "engine/base/status.h"
#include "engine/base/write_file.h"
#include "engine/checkpoint/layout.h"
#include "engine/checkpoint/manifest.h"
#include "engine/driver/run_folder.h"

namespace engine::train {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMostNoteBytes = 1 << 20;
constexpr std::ptrdiff_t kKept = 4;  // two copies, and two that partners may still have
constexpr const char* kReturnsName = "returns.json";
constexpr const char* kEnding = ".json";

std::string NoteNameOf(std::int64_t iteration) { return checkpoint::IterationName(iteration) + kEnding; }

// Of iterations that the folder has a file of, rising.
std::vector<std::int64_t> IterationsIn(const std::string& folder) {
  std::vector<std::int64_t> found;
  std::error_code error;
  for (fs::directory_iterator it(folder, error); !error && it != fs::directory_iterator();
       it.increment(error)) {
    const std::string name = it->path().filename();
    if (!name.ends_with(kEnding)) continue;
    if (const auto iteration = checkpoint::ParseIterationName(it->path().stem().string()))
      found.push_back(*iteration);
  }
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace

bool Remembers(const recipe::Guard& guard) { return guard.on_nonfinite != "stop" || guard.rewinds(); }

GuardNotes::GuardNotes(const std::string& out) : folder_((fs::path(out) / driver::kGuardName).string()) {}

absl::Status GuardNotes::Write(std::int64_t iteration, const checkpoint::GuardState& state) const {
  std::error_code error;
  fs::create_directories(folder_, error);
  if (error) return SystemError("make the folder", folder_, error.value());
  const fs::path path = fs::path(folder_) / NoteNameOf(iteration);
  const fs::path writing = path.string() + ".writing";
  std::ofstream file(writing, std::ios::trunc);
  file << checkpoint::FormatGuard(state);
  file.close();
  if (!file) return Unavailable("cannot write {}", writing.string());
  fs::rename(writing, path, error);
  if (error) return SystemError("rename", writing.string(), error.value());
  // Those of later iterations are of an attempt before, which went further than this one has come.
  std::vector<std::int64_t> here = IterationsIn(folder_);
  const auto later = std::upper_bound(here.begin(), here.end(), iteration);
  if (later - here.begin() > kKept)
    here.erase(later - kKept, later);
  else
    here.erase(here.begin(), later);
  for (const std::int64_t old : here) fs::remove(fs::path(folder_) / NoteNameOf(old), error);
  return absl::OkStatus();
}

absl::StatusOr<std::string> GuardNotes::Read(std::int64_t iteration) const {
  ASSIGN_OR_RETURN(const std::string text,
                   ReadRegular((fs::path(folder_) / NoteNameOf(iteration)).string(), kMostNoteBytes));
  RETURN_IF_ERROR(checkpoint::ParseGuard(text).status());
  return text;
}

std::int64_t GuardNotes::Returns() const {
  const absl::StatusOr<std::string> text =
      ReadRegular((fs::path(folder_) / kReturnsName).string(), kMostNoteBytes);
  if (!text.ok()) return 0;
  const nlohmann::json json = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  const bool is_known = json.is_object() && json.contains("returns") && json["returns"].is_number_unsigned();
  return is_known ? json["returns"].get<std::int64_t>() : 0;
}

absl::Status GuardNotes::WentBack(std::int64_t returns) const {
  std::error_code error;
  fs::create_directories(folder_, error);
  if (error) return SystemError("make the folder", folder_, error.value());
  RETURN_IF_ERROR(
      WriteFile(fs::path(folder_) / kReturnsName, nlohmann::json({{"returns", returns}}).dump() + "\n"));
  for (const std::int64_t iteration : IterationsIn(folder_))
    fs::remove(fs::path(folder_) / NoteNameOf(iteration), error);
  return absl::OkStatus();
}

}  // namespace engine::train
