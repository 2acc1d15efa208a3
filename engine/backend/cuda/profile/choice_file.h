// Choices that were timed once and are kept in a file, so that later runs, and other ranks, choose alike.
//
// The file is text, a line a choice: HASH \t KEY \t CHOICE. HASH is HashHex (base/hash.h) of the rest of the line; KEY says
// all that the choice depends on, with tabs between its parts, among them the device and the versions of libraries; CHOICE
// has no tab. Lines that do not say so are ignored, and dropped when the file is next written.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "engine/base/status.h"

namespace engine::backend::cuda {

class ChoiceFile {
 public:
  // Empty: what is chosen is remembered, and not kept.
  explicit ChoiceFile(std::string path) : path_(std::move(path)) {}
  bool is_kept() const { return !path_.empty(); }

  // Whether a choice means anything to who asks.
  using IsGood = std::function<bool(const std::string& choice)>;

  // A good choice that was made here, or that is in the file, also by another process meanwhile.
  std::optional<std::string> Find(const std::string& key, const IsGood& is_good);

  // Keeps the choice, unless the file has a good one by now. Returns the one that stands, in all processes that take theirs
  // from this file. Error: the file cannot be written.
  absl::StatusOr<std::string> Keep(const std::string& key, const std::string& choice, const IsGood& is_good);

  // For this process alone.
  void Remember(const std::string& key, const std::string& choice) { choices_[key] = choice; }

 private:
  std::string path_;
  std::map<std::string, std::string> choices_;  // made or found here
};

// Choices in a file for which `counts` holds, of all devices and versions; 0 where there is no such file.
std::int64_t CountChoices(
    const std::string& path,
    const std::function<bool(const std::string& key, const std::string& choice)>& counts);

}  // namespace engine::backend::cuda
