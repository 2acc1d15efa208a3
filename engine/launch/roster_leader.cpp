#include "engine/launch/roster_leader.h"

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "engine/launch/handshake.h"
#include "engine/launch/link.h"
#include "engine/launch/rendezvous_times.h"

namespace engine::launch {
namespace {

constexpr auto kLeaderLook = std::chrono::milliseconds(50);  // between looks at what has changed by time
constexpr auto kCall = std::chrono::seconds(1);              // between calls at the coordinator's address
constexpr auto kOverIsHeard = std::chrono::seconds(3);

}  // namespace

RosterLeader::RosterLeader(Descriptor listener, const Roster::Options& options, std::int64_t generation,
                           std::set<std::int64_t> expected, Clock::time_point by)
    : options_(options),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      table_(options.table),
      connections_(
          std::move(listener), static_cast<std::size_t>(options.table.hosts),
          [this](Connection& from, const WireMessage& message) { TakeIn(from, message); },
          [this](const Connection& dropped, const std::string&) { Dropped(dropped); }) {
  table_.Take(generation, std::move(expected), by, Clock::now());
  thread_ = std::thread([this] { Loop(); });
  if (options_.host != 0) caller_ = std::thread([this] { CallCoordinator(); });
}

RosterLeader::~RosterLeader() {
  stopping_ = true;
  const std::uint64_t one = 1;
  (void)!write(wake_.number(), &one, sizeof(one));
  thread_.join();
  if (caller_.joinable()) caller_.join();
}

void RosterLeader::Loop() {
  Clock::time_point next_tick = Clock::now();
  std::optional<Clock::time_point> last_moment;
  while (!(stopping_ &&
           (!over_ || !connections_.AnyIsAwaited() || (last_moment && Clock::now() > *last_moment)))) {
    if (stopping_ && !last_moment) last_moment = Clock::now() + kOverIsHeard;
    connections_.Poll(Clock::now() + kLeaderLook, stopping_ ? -1 : wake_.number());
    connections_.ServeReadable();
    connections_.Admit();
    if (Clock::now() >= next_tick) {
      Tick();
      next_tick = Clock::now() + TickOf({.heartbeat_timeout = options_.heartbeat_timeout});
    }
    const std::optional<HostTable::News> news = table_.Decide(Clock::now());
    // First who is here: whoever has a place knows, then, who may lead next.
    if (std::exchange(has_new_hosts_, false)) TellHosts();
    if (news) Tell(*news);
    if (yields_.exchange(false)) SendToAll(MessageKind::kLeaderAt, {options_.coordinator.ToString()});
    connections_.Flush();
  }
}

void RosterLeader::Tick() {
  const Milliseconds tick = TickOf({.heartbeat_timeout = options_.heartbeat_timeout});
  SendToAll(MessageKind::kAlive, {});
  std::vector<Connection*> silent;
  for (auto& [host, seat] : seats_) {
    if (++seat.silent_ticks * tick > options_.heartbeat_timeout) silent.push_back(seat.connection);
  }
  for (Connection* connection : silent) connections_.Drop(*connection, "not heard of");
}

void RosterLeader::TakeIn(Connection& from, const WireMessage& message) {
  if (from.rank >= 0) return TakeInOfHost(from, message);
  if (from.failing.empty()) return TakeHello(from, message);
  if (message.kind == MessageKind::kFailed)
    table_.Finish(options_.table.lost_code, from.failing + " " + message.fields[0]);
  from.closing = true;
}

void RosterLeader::TakeHello(Connection& from, const WireMessage& message) {
  const std::vector<std::string>& fields = message.fields;
  const auto refuse = [&](const std::string& why) {
    from.Queue(MessageKind::kRefused, {why});
    from.closing = true;
  };
  if (message.kind != MessageKind::kHello || fields[0] != kMagic) {
    from.gone = true;
    return;
  }
  if (!SameProof(fields.back(), ProofOf(MessageKind::kHello, options_.token, from.nonce, fields))) {
    has_refused_token_ = true;
    return refuse("token");
  }
  from.Queue(MessageKind::kWelcome, {ProofOf(MessageKind::kWelcome, options_.token, from.nonce, fields)});
  from.stream.SetMost(kMostFrameBytes);
  const std::int64_t host = NumberOf(fields[2]);
  const std::string& process = fields[7];
  if (host < 0) {  // a host that has failed before it came
    from.failing = process;
    return;
  }
  if (NumberOf(fields[3]) != options_.table.hosts || host >= options_.table.hosts) {
    return refuse(fmt::format("host {} ({}) is of a run of {} hosts with its spares, but this one has {}",
                              host, process, fields[3], options_.table.hosts));
  }
  if (const auto found = seats_.find(host); found != seats_.end() && names_[host] == process) {
    connections_.Drop(*found->second.connection, "has come again");
  } else if (found != seats_.end()) {
    return refuse(
        fmt::format("host {} came ({}), but that host is here already ({})", host, process, names_[host]));
  }
  from.rank = host;
  seats_[host] = {.connection = &from};
  names_[host] = process;
}

void RosterLeader::TakeInOfHost(Connection& from, const WireMessage& message) {
  const std::vector<std::string>& fields = message.fields;
  const std::int64_t host = from.rank;
  seats_[host].silent_ticks = 0;
  switch (message.kind) {
    case MessageKind::kAlive:
      return;
    case MessageKind::kHostHere:
      if (over_) return from.Queue(MessageKind::kRunOver, *over_);
      has_new_hosts_ = true;
      return table_.Come(host,
                         {.process = names_[host],
                          .successor_at = fields[0],
                          .ranks_at = fields[1],
                          .generation = NumberOf(fields[2]),
                          .node = NumberOf(fields[3]),
                          .size = {.nodes = NumberOf(fields[4]), .dp = NumberOf(fields[5])},
                          .copies_at = fields[6]},
                         Clock::now());
    case MessageKind::kHostEnded:
      if (fields[3] == "1" && table_.IsSpare(host))  // its stop is its own end alone
        return from.Queue(MessageKind::kRunOver, {fields[2], ""});
      return table_.End(host, NumberOf(fields[1]),
                        {.code = static_cast<int>(NumberOf(fields[2])),
                         .asked_to_stop = fields[3] == "1",
                         .is_suspect = fields[4] == "1",
                         .verdict = fields[5],
                         .newest = NumberOf(fields[6])},
                        fields[0]);
    default:
      return connections_.Drop(from, "goes");
  }
}

void RosterLeader::Dropped(const Connection& connection) {
  const auto found = seats_.find(connection.rank);
  if (found == seats_.end() || found->second.connection != &connection) return;
  seats_.erase(found);
  table_.Go(connection.rank, Clock::now());
  has_new_hosts_ = true;
}

void RosterLeader::Tell(const HostTable::News& news) {
  if (news.over) {
    std::string text = news.text;
    if (!text.empty() && !has_begun_ && has_refused_token_)
      text += fmt::format("; somebody came with another token, and was refused: {}", kTokenRule);
    over_ = {std::to_string(news.code), text};
    return SendToAll(MessageKind::kRunOver, *over_);
  }
  has_begun_ = true;
  for (const auto& [host, seat] : seats_) {
    const auto place = news.nodes.find(host);
    seat.connection->Queue(
        MessageKind::kAttempt,
        {std::to_string(news.generation), place == news.nodes.end() ? "-1" : std::to_string(place->second),
         news.ranks_at, news.from_disk ? "1" : "0", std::to_string(news.size.nodes),
         std::to_string(news.size.dp), news.text, news.copies_at});
  }
}

void RosterLeader::TellHosts() {
  std::string text;
  for (const auto& [host, successor_at] : table_.Present())
    text += fmt::format("{} {}\n", host, successor_at);
  SendToAll(MessageKind::kHosts, {text});
}

void RosterLeader::SendToAll(MessageKind kind, const std::vector<std::string>& fields) {
  for (const auto& [host, seat] : seats_) seat.connection->Queue(kind, fields);
}

// Hosts that are started anew know no other address. So host 0 leads again once it is back, and has attempt and places from those that come.
void RosterLeader::CallCoordinator() {
  const Member self{.rank = options_.host,
                    .world = options_.table.hosts,
                    .build = "",
                    .plan_hash = "",
                    .device = "",
                    .process = options_.process};
  for (Clock::time_point next = Clock::now() + kCall; !stopping_; std::this_thread::sleep_for(kLeaderLook)) {
    if (Clock::now() < next) continue;
    next = Clock::now() + kCall;
    absl::StatusOr<Descriptor> socket = ConnectOnce(options_.coordinator, Clock::now() + kCall);
    if (socket.ok() && OpenLink(*std::move(socket), options_.token, self, kCall).ok()) yields_ = true;
  }
}

}  // namespace engine::launch
