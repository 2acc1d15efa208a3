#include "engine/cli/restarts.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <limits>

#include "engine/checkpoint/store.h"
#include "engine/cli/device.h"

namespace engine::cli {
namespace {

constexpr int kSignalBase = 128;  // of exit codes

// The exit code of the whole attempt: that of a rank that failed by itself, where one did.
int CodeOf(const std::vector<launch::HostEnd>& ends) {
  const auto any = [&](const auto& is) { return std::find_if(ends.begin(), ends.end(), is); };
  // All ranks have come to the end, also those whose host was lost after that.
  if (any([](const launch::HostEnd& end) { return end.code == 0; }) != ends.end()) return 0;
  const auto own =
      any([](const launch::HostEnd& end) { return end.code != kPeerLost && end.code != kStopped; });
  if (own != ends.end()) return own->code;
  const auto stopped = any([](const launch::HostEnd& end) { return end.code == kStopped; });
  return stopped != ends.end() ? kStopped : kPeerLost;
}

// Of which all ranks of these hosts have copies in memory.
std::int64_t NewestInMemory(const std::vector<launch::HostEnd>& ends) {
  std::int64_t newest = ends.empty() ? -1 : std::numeric_limits<std::int64_t>::max();
  for (const launch::HostEnd& end : ends) newest = std::min(newest, end.newest);
  return newest;
}

}  // namespace

bool MayGoWell(int code) {
  const int signal = code - kSignalBase;
  const bool was_killed = signal > 0 && signal != SIGINT && signal != SIGTERM && signal != SIGHUP;
  return code == kDeviceFailed || code == kPeerLost || code == kMachineSuspect || was_killed;
}

Restarts::Restarts(const RestartOptions& options)
    : options_(options), began_(NewestOnDisk()), newest_(began_) {}

launch::Sequel Restarts::After(std::int64_t attempts, const std::vector<launch::HostEnd>& ends) {
  launch::Sequel sequel{.ends = true, .code = CodeOf(ends), .text = "", .pause = {}, .from_disk = false};
  const bool asked_to_stop =
      std::any_of(ends.begin(), ends.end(), [](const launch::HostEnd& end) { return end.asked_to_stop; });
  if (!MayGoWell(sequel.code) || asked_to_stop || options_.most == 0) return sequel;
  // Copies that nobody has compared are not gone on from.
  sequel.from_disk = std::any_of(ends.begin(), ends.end(),
                                 [](const launch::HostEnd& end) { return end.code == kMachineSuspect; });
  newest_ = std::max(NewestOnDisk(), sequel.from_disk ? -1 : NewestInMemory(ends));
  const bool gets_on = newest_ > began_ && newest_ != failed_at_;
  in_vain_ = gets_on ? 1 : in_vain_ + 1;
  failed_at_ = newest_;
  if (in_vain_ >= kMostInVain) {
    sequel.text = fmt::format("not started again: {} failures without a checkpoint between them", in_vain_);
    return sequel;
  }
  if (attempts > options_.most) {
    sequel.text = fmt::format("not started again: all {} restarts are used up", options_.most);
    return sequel;
  }
  sequel.from_disk = sequel.from_disk || in_vain_ == kMostInVain - 1;
  constexpr std::chrono::milliseconds kFirst = std::chrono::seconds(1);
  constexpr std::chrono::milliseconds kLongest = std::chrono::minutes(1);
  if (!gets_on) sequel.pause = std::min(kLongest, kFirst * (1 << (in_vain_ - 1)));
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(sequel.pause).count();
  sequel.text = fmt::format("restart {} of {} {}", attempts, options_.most,
                            seconds == 0 ? "at once" : fmt::format("in {} s", seconds));
  sequel.ends = false;
  return sequel;
}

std::int64_t Restarts::NewestOnDisk() const {
  const absl::StatusOr<std::vector<std::int64_t>> iterations =
      checkpoint::ListIterations(options_.checkpoints);
  return iterations.ok() && !iterations->empty() ? iterations->back() : -1;
}

}  // namespace engine::cli
