#include "engine/cli/attempts.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <thread>
#include <utility>
#include <vector>

#include "engine/base/print.h"
#include "engine/cli/device.h"
#include "engine/cli/stop_signals.h"
#include "engine/train/run.h"

namespace engine::cli {
namespace {

using Turn = launch::Roster::Turn;

// Waits so long, or until a signal asks for a stop, and says whether one did. No rank runs meanwhile: what the newest checkpoint has is
// what is saved.
bool StopComesWithin(std::chrono::milliseconds pause) {
  constexpr auto kLook = std::chrono::milliseconds(20);
  const StopSignals signals;
  for (const auto end = launch::Clock::now() + pause; launch::Clock::now() < end && StopSignals::Came() == 0;)
    std::this_thread::sleep_for(kLook);
  return StopSignals::Came() != 0;
}

void Say(const std::optional<launch::HostEnd>& end, const std::string& text, bool has_other_hosts) {
  if (text.empty()) return;
  const bool is_told = !end || text.starts_with("not started again");  // how it ended here
  const std::string verdict = is_told                 ? ""
                              : !end->verdict.empty() ? end->verdict + "; "
                              : has_other_hosts       ? "a rank of another host was lost; "
                                                      : "a rank was lost; ";
  Print(stderr, "engine run: {}{}\n", verdict, text);
}

Turn Over(int code) {
  Turn turn;
  turn.over = true;
  turn.code = code;
  return turn;
}

}  // namespace

bool KeepInTouch(const LaunchOptions& options) { return options.nodes > 1 && options.max_restarts > 0; }

Attempts::Attempts(const LaunchOptions& options, const launch::AttemptSize& whole, SmallerLayouts& layouts,
                   const launch::Endpoint& coordinator, const std::string& token, const std::string& out,
                   std::function<bool()> has_finished, launch::Descriptor listener, int copies_port)
    : node_(options.node_rank),
      whole_(whole),
      coordinator_(coordinator),
      has_finished_(std::move(has_finished)),
      meets_within_(RendezvousOf(options).heartbeat_timeout),
      restarts_({.checkpoints = train::CheckpointRoot(out), .most = options.max_restarts}) {
  if (!KeepInTouch(options)) return;
  const launch::RendezvousOptions times = RendezvousOf(options);
  launch::Roster::Options roster;
  roster.host = options.node_rank;
  roster.table = {
      .nodes = whole.nodes,
      .hosts = options.nodes + options.spares,
      .min_nodes = options.min_nodes.value_or(whole.nodes),
      .dp = whole.dp,
      .last_call = MillisecondsOf(options.last_call_timeout_s),
      .patience = times.join_timeout,
      .settling = 3 * times.heartbeat_timeout,
      .lost_code = kPeerLost,
      .judge = [this](std::int64_t attempts,
                      const std::vector<launch::HostEnd>& ends) { return restarts_.After(attempts, ends); },
      .fit = [&layouts](std::int64_t hosts, std::int64_t least) { return layouts.For(hosts, least); },
      .begins = [this](bool from_disk) { restarts_.Begin(from_disk); }};
  roster.coordinator = coordinator;
  roster.token = token;
  roster.heartbeat_timeout = times.heartbeat_timeout;
  roster.process = launch::ProcessName();
  roster.stopped_code = kStopped;
  roster.copies_port = copies_port;
  roster_ = std::make_unique<launch::Roster>(std::move(roster), std::move(listener));
}

Turn Attempts::Next(const std::optional<launch::HostEnd>& end) {
  if (roster_ == nullptr) return NextHere(end);
  const StopSignals signals;
  constexpr auto kPause = std::chrono::seconds(1);
  auto next_look = launch::Clock::now() + meets_within_;
  // Others may have trained to the end, and gone, while this host was started anew. One whose own ranks have failed hears what follows from those who lead.
  const auto is_over = [&] {
    if ((end && end->code != 0) || launch::Clock::now() < next_look) return false;
    next_look = launch::Clock::now() + kPause;
    return has_finished_();
  };
  Turn turn = roster_->Next(
      end, [] { return StopSignals::Came() != 0; }, is_over);
  Say(end, turn.text, /*has_other_hosts=*/true);
  return turn;
}

Turn Attempts::NextHere(const std::optional<launch::HostEnd>& end) {
  Turn turn;
  turn.node = node_;
  turn.size = whole_;
  turn.ranks_at = coordinator_;
  if (end) {
    const launch::Sequel sequel = restarts_.After(attempts_, {*end});
    Say(end, sequel.text, /*has_other_hosts=*/false);
    if (sequel.ends) return Over(sequel.code);
    if (StopComesWithin(sequel.pause)) return Over(kStopped);
    turn.from_disk = sequel.from_disk;
  }
  restarts_.Begin(turn.from_disk);
  turn.generation = ++attempts_;
  return turn;
}

}  // namespace engine::cli
