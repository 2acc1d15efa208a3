#include "engine/backend/cuda/profile/choice_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>
#include <utility>

#include "engine/base/file.h"
#include "engine/base/hash.h"

namespace engine::backend::cuda {
namespace {

using Choices = std::map<std::string, std::string>;

std::string LineOf(const std::string& key, const std::string& choice) {
  const std::string rest = key + "\t" + choice;
  return HashHex(rest) + "\t" + rest;
}

std::optional<std::pair<std::string, std::string>> ParseLine(const std::string& line) {
  const std::size_t after_hash = line.find('\t');
  const std::size_t before_choice = line.rfind('\t');
  if (after_hash == std::string::npos || before_choice == after_hash) return std::nullopt;
  if (HashHex(std::string_view(line).substr(after_hash + 1)) != line.substr(0, after_hash))
    return std::nullopt;
  return std::pair(line.substr(after_hash + 1, before_choice - after_hash - 1),
                   line.substr(before_choice + 1));
}

// The good lines of a file; none if there is no such file or it is no regular one.
Choices ReadChoices(const std::string& path) {
  constexpr std::int64_t kMostBytes = std::int64_t{1} << 26;
  Choices choices;
  const absl::StatusOr<std::string> text = ReadRegular(path, kMostBytes);
  if (!text.ok()) return choices;
  std::istringstream lines(*text);
  for (std::string line; std::getline(lines, line);) {
    if (auto parsed = ParseLine(line)) choices.insert(*std::move(parsed));
  }
  return choices;
}

// The file is replaced at once, so that who reads it meanwhile finds all of the old or of the new one.
absl::Status WriteChoices(const std::string& path, const Choices& choices) {
  const std::string temporary = fmt::format("{}.{}.{:x}", path, getpid(), std::hash<const void*>()(&choices));
  {
    std::ofstream file(temporary, std::ios::trunc);
    for (const auto& [key, choice] : choices) file << LineOf(key, choice) << '\n';
    file.close();
    if (!file) {
      std::remove(temporary.c_str());
      return Unavailable("writing the choices of kernels to {}: {}", temporary, std::strerror(errno));
    }
  }
  std::error_code error;
  std::filesystem::rename(temporary, path, error);
  if (!error) return absl::OkStatus();
  std::remove(temporary.c_str());
  return Unavailable("renaming {} to {}: {}", temporary, path, error.message());
}

// Holds others off who would write the file, by a lock on a file beside it. Where there are no locks, it holds nobody off.
class WriteLock {
 public:
  explicit WriteLock(const std::string& path)
      : descriptor_(
            open((path + ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666)) {
    if (descriptor_ < 0) return;
    while (flock(descriptor_, LOCK_EX) != 0 && errno == EINTR) {
    }
  }
  ~WriteLock() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  WriteLock(const WriteLock&) = delete;
  WriteLock& operator=(const WriteLock&) = delete;

 private:
  int descriptor_;
};

}  // namespace

std::optional<std::string> ChoiceFile::Find(const std::string& key, const IsGood& is_good) {
  const auto find = [&]() -> std::optional<std::string> {
    const auto found = choices_.find(key);
    return found != choices_.end() && is_good(found->second) ? std::optional(found->second) : std::nullopt;
  };
  if (std::optional<std::string> known = find()) return known;
  if (path_.empty()) return std::nullopt;
  for (auto& [key_there, choice] : ReadChoices(path_)) choices_.emplace(key_there, choice);
  return find();
}

absl::StatusOr<std::string> ChoiceFile::Keep(const std::string& key, const std::string& choice,
                                             const IsGood& is_good) {
  Remember(key, choice);
  if (path_.empty()) return choice;
  const WriteLock lock(path_);
  Choices all = ReadChoices(path_);
  const auto there = all.find(key);
  if (there != all.end() && is_good(there->second)) {
    Remember(key, there->second);
    return there->second;
  }
  all[key] = choice;
  RETURN_IF_ERROR(WriteChoices(path_, all));
  return choice;
}

std::int64_t CountChoices(
    const std::string& path,
    const std::function<bool(const std::string& key, const std::string& choice)>& counts) {
  std::int64_t count = 0;
  for (const auto& [key, choice] : ReadChoices(path)) count += counts(key, choice) ? 1 : 0;
  return count;
}

}  // namespace engine::backend::cuda
