#include "engine/train/run_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <fmt/chrono.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "engine/base/file.h"
#include "engine/base/shown.h"
#include "engine/base/write_file.h"
#include "engine/driver/run_folder.h"
#include "engine/launch/rendezvous.h"

namespace engine::train {

namespace {

constexpr std::int64_t kMostHolderBytes = 1 << 16;

std::string PathOfHolder(const std::string& folder) {
  return (std::filesystem::path(folder) / driver::kHolderName).string();
}

// Who took the lock last: empty where the folder does not say it.
std::string HolderOf(const std::string& folder) {
  const absl::StatusOr<std::string> text = ReadRegular(PathOfHolder(folder), kMostHolderBytes);
  if (!text.ok()) return "";
  const nlohmann::json json = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  const auto is_text = [&](const char* key) { return json.contains(key) && json[key].is_string(); };
  if (!json.is_object() || !is_text("process") || !is_text("since")) return "";
  return fmt::format("{}, since {}", Shown(json["process"].get<std::string>()),
                     Shown(json["since"].get<std::string>()));
}

// Only for people to read: a folder that cannot be written is refused where it matters.
void SayHolder(const std::string& folder) {
  const nlohmann::ordered_json json = {{"process", launch::ProcessName()},
                                       {"since", fmt::format("{:%FT%TZ}", fmt::gmtime(std::time(nullptr)))}};
  WriteFile(PathOfHolder(folder), json.dump() + "\n").IgnoreError();
}

}  // namespace

absl::StatusOr<RunLock> RunLock::Take(const std::string& folder, std::chrono::milliseconds patience,
                                      const std::function<void(const std::string& holder)>& waits) {
  constexpr auto kLook = std::chrono::milliseconds(50);
  const auto deadline = std::chrono::steady_clock::now() + patience;
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return Unavailable("{}: cannot create: {}", folder, error.message());
  const int descriptor = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return Unavailable("{}: cannot open: {}", folder, std::strerror(errno));
  RunLock lock(descriptor);
  bool is_told = false;
  while (flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return lock;  // a file system without locks
    const std::string holder = HolderOf(folder);
    if (std::chrono::steady_clock::now() >= deadline)
      return FailedPrecondition("{} is in use by another run{}; wait for its end, or give another --out",
                                folder, holder.empty() ? "" : " (" + holder + ")");
    if (waits && !std::exchange(is_told, true)) waits(holder);
    std::this_thread::sleep_for(kLook);
  }
  SayHolder(folder);
  return lock;
}

RunLock::~RunLock() {
  if (descriptor_ >= 0) close(descriptor_);
}

}  // namespace engine::train
