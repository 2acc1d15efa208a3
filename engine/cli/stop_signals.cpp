#include "engine/cli/stop_signals.h"

#include <atomic>
#include <csignal>

#include "engine/launch/stop_requests.h"

namespace engine::cli {
namespace {

constexpr int kNumbers[] = {SIGINT, SIGTERM, SIGHUP};
launch::StopRequests requests;
std::atomic<int> first = 0;
static_assert(std::atomic<int>::is_always_lock_free);

void Note(int number) {
  const launch::StopRequests::Meaning meaning = requests.Take(number);
  if (meaning == launch::StopRequests::Meaning::kStop) first = number;
  if (meaning != launch::StopRequests::Meaning::kInsists) return;
  std::signal(number, SIG_DFL);
  std::raise(number);
}

}  // namespace

StopSignals::StopSignals() {
  requests.Forget();
  first = 0;
  for (int i = 0; i < kSignals; ++i) {
    old_[i] = std::signal(kNumbers[i], Note);
    if (old_[i] == SIG_IGN) std::signal(kNumbers[i], SIG_IGN);
  }
}

StopSignals::~StopSignals() {
  for (int i = 0; i < kSignals; ++i) std::signal(kNumbers[i], old_[i]);
}

int StopSignals::Came() { return first; }

}  // namespace engine::cli
