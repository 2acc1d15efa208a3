#include "engine/data/temporary_file.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>

#include "engine/base/status.h"

namespace engine::data {
namespace {

// The paths of the living TemporaryFiles; null: none. A signal handler can read nothing but lock-free
// atomics.
std::array<std::atomic<const char*>, 256> live_paths;
static_assert(std::atomic<const char*>::is_always_lock_free);

extern "C" void RemoveAndEnd(int signal_number) {
  for (const std::atomic<const char*>& path : live_paths) {
    if (const char* text = path.load()) unlink(text);
  }
  raise(signal_number);  // SA_RESETHAND has put the default back
}

}  // namespace

TemporaryFile::TemporaryFile(std::string path) : path_(std::move(path)) {
  for (; slot_ < live_paths.size(); ++slot_) {
    const char* free = nullptr;
    if (live_paths[slot_].compare_exchange_strong(free, path_.c_str())) return;
  }
  ENGINE_CHECK(false, "more than {} temporary files", live_paths.size());
}

TemporaryFile::~TemporaryFile() {
  unlink(path_.c_str());
  live_paths[slot_] = nullptr;
}

void RemoveTemporaryFilesOnSignals() {
  for (const int signal_number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE, SIGXFSZ, SIGXCPU}) {
    struct sigaction before {};
    sigaction(signal_number, nullptr, &before);
    if (before.sa_handler == SIG_IGN) continue;
    struct sigaction action {};
    action.sa_handler = RemoveAndEnd;
    action.sa_flags = SA_RESETHAND;
    sigaction(signal_number, &action, nullptr);
  }
}

}  // namespace engine::data
