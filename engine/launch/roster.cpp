#include "engine/launch/roster.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <set>
#include <sstream>
#include <utility>
#include <vector>

#include "engine/base/status.h"
#include "engine/launch/rendezvous_times.h"
#include "engine/launch/roster_leader.h"

namespace engine::launch {
namespace {

constexpr auto kLook = std::chrono::milliseconds(20);
constexpr auto kConnects = std::chrono::milliseconds(1000);  // a host that is there, once it has been

}  // namespace

Roster::Roster(Options options, Descriptor listener)
    : options_(std::move(options)),
      leads_at_(options_.coordinator),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (options_.host == 0) {
    std::set<std::int64_t> expected;
    for (std::int64_t host = 0; host < options_.table.nodes; ++host) expected.insert(host);
    leader_ = std::make_unique<RosterLeader>(std::move(listener), options_, 0, std::move(expected),
                                             Clock::now() + options_.table.patience);
  }
  thread_ = std::thread([this] { Live(); });
}

Roster::~Roster() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    leaving_ = true;
  }
  const std::uint64_t one = 1;
  (void)!write(wake_.number(), &one, sizeof(one));
  thread_.join();
}

Roster::Turn Roster::Next(const std::optional<HostEnd>& end, const std::function<bool()>& stop_comes,
                          const std::function<bool()>& is_over) {
  std::unique_lock<std::mutex> lock(mutex_);
  // What became of an attempt that others have replaced by a newer one is nothing to them.
  if (end && begun_ == generation_) TellEnd(*end);
  while (!turn_) {
    changed_.wait_for(lock, kLook);
    if (turn_) continue;
    lock.unlock();  // it may read files
    const bool over = is_over();
    lock.lock();
    if (over && !turn_)
      return Turn{.over = true,
                  .code = 0,
                  .text = "the run has come to its end while this host was not there",
                  .ranks_at = {},
                  .listener = {}};
    if (turn_ || !stop_comes()) continue;
    // A spare, from the beginning or since the last attempt began.
    if (node_ < 0 && (generation_ > 0 || options_.host >= options_.table.nodes))
      return Turn{.over = true, .code = options_.stopped_code, .text = "", .ranks_at = {}, .listener = {}};
    TellEnd({.code = options_.stopped_code, .asked_to_stop = true, .verdict = ""});
  }
  if (turn_->over)
    return Turn{.over = true, .code = turn_->code, .text = turn_->text, .ranks_at = {}, .listener = {}};
  begun_ = turn_->generation;
  return *std::exchange(turn_, std::nullopt);
}

std::size_t Roster::hosts_here() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return hosts_.size();
}

// With the mutex held.
void Roster::TellEnd(const HostEnd& end) {
  if (end_ && end_->asked_to_stop) return;
  end_ = end;
  says_end_ = true;
  const std::uint64_t one = 1;
  (void)!write(wake_.number(), &one, sizeof(one));
}

void Roster::Live() {
  for (;;) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (leaving_ || (turn_ && turn_->over)) break;
    }
    absl::StatusOr<Link> link = Reach();
    if (link.ok()) {
      if (const absl::Status made = MakeListeners(LocalAddress(link->socket())); !made.ok()) link = made;
    }
    if (!link.ok()) {
      EndRun(options_.table.lost_code, Message(link.status()));
      break;
    }
    Converse(std::move(*link).TakeSocket());
  }
  leader_.reset();  // here, where it does not keep the caller of Next
}

absl::StatusOr<Link> Roster::Call(absl::StatusOr<Descriptor> socket,
                                  std::chrono::milliseconds patience) const {
  RETURN_IF_ERROR(socket.status());
  const Member self{.rank = options_.host,
                    .world = options_.table.hosts,
                    .build = "",
                    .plan_hash = "",
                    .device = "",
                    .process = options_.process};
  return OpenLink(*std::move(socket), options_.token, self, patience);
}

// Host 0, which may be started later than this one.
absl::StatusOr<Link> Roster::MeetFirst() {
  constexpr auto kPause = std::chrono::milliseconds(50);
  const Clock::time_point deadline = Clock::now() + options_.table.patience;
  for (;;) {
    absl::StatusOr<Link> link =
        Call(ConnectOnce(leads_at_, Clock::now() + kConnects), options_.heartbeat_timeout);
    if (link.ok() || absl::IsFailedPrecondition(link.status())) return link;
    if (Clock::now() > deadline) {
      return Unavailable("waited {} for host 0 at {}: {}", Text(options_.table.patience),
                         leads_at_.ToString(), Message(link.status()));
    }
    std::this_thread::sleep_for(kPause);
    const std::lock_guard<std::mutex> lock(mutex_);
    if (leaving_) return link;
  }
}

// The host that leads: where it was, else the lowest of those that are left, which may be this one. The others give each lower one time to
// see for itself that the one before is gone.
absl::StatusOr<Link> Roster::Reach() {
  if (hosts_.empty()) return MeetFirst();  // it knows of no other
  std::vector<Endpoint> candidates = {leads_at_};
  for (const auto& [host, leads_at] : hosts_) {
    if (host < options_.host && leads_at.ToString() != leads_at_.ToString()) candidates.push_back(leads_at);
  }
  const std::chrono::milliseconds each = options_.heartbeat_timeout + kConnects;
  const Clock::time_point own_turn = Clock::now() + each * (candidates.size() - 1);
  for (;; std::this_thread::sleep_for(kLook)) {
    for (const Endpoint& candidate : candidates) {
      absl::StatusOr<Link> link =
          Call(ConnectOnce(candidate, Clock::now() + kConnects), options_.heartbeat_timeout);
      if (!link.ok()) continue;
      leads_at_ = candidate;
      return link;
    }
    leader_.reset();
    if (Clock::now() >= own_turn) return Lead();
    const std::lock_guard<std::mutex> lock(mutex_);
    if (leaving_) return absl::AbortedError("this host leaves");
  }
}

absl::StatusOr<Link> Roster::Lead() {
  std::set<std::int64_t> expected;
  for (const auto& [host, leads_at] : hosts_) {
    if (host >= options_.host) expected.insert(host);
  }
  ASSIGN_OR_RETURN(leads_at_, ParseEndpoint(successor_at_));
  std::int64_t generation = 0;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    generation = generation_;
  }
  if (listen(successor_listener_.number(), SOMAXCONN) != 0)
    return Unavailable("cannot listen on {}: {}", successor_at_, std::strerror(errno));
  leader_ = std::make_unique<RosterLeader>(std::move(successor_listener_), options_, generation,
                                           std::move(expected), Clock::now() + options_.table.settling);
  return Call(ConnectOnce(leads_at_, Clock::now() + kConnects), options_.heartbeat_timeout);
}

absl::Status Roster::MakeListeners(const std::string& address) {
  if (!successor_listener_.open() && leader_ == nullptr) {
    ASSIGN_OR_RETURN(successor_listener_, ReservePort(address));
    successor_at_ = Endpoint{address, PortOf(successor_listener_)}.ToString();
  }
  if (leader_ != nullptr) successor_at_ = leads_at_.ToString();
  const std::lock_guard<std::mutex> lock(mutex_);
  if (ranks_listener_.open()) return absl::OkStatus();
  ASSIGN_OR_RETURN(ranks_listener_, Listen({address, 0}));
  ranks_at_ = Endpoint{address, PortOf(ranks_listener_)}.ToString();
  return absl::OkStatus();
}

void Roster::Converse(Descriptor socket) {
  const std::string address = LocalAddress(socket);
  FrameStream stream(std::move(socket));
  const Milliseconds tick = TickOf({.heartbeat_timeout = options_.heartbeat_timeout});
  Clock::time_point heard = Clock::now();
  Clock::time_point next_tick = Clock::now() + tick;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stream.Queue(
        Encode({MessageKind::kHostHere,
                {successor_at_, ranks_at_, std::to_string(generation_), std::to_string(node_),
                 std::to_string(size_.nodes), std::to_string(size_.dp),
                 options_.copies_port > 0 ? Endpoint{address, options_.copies_port}.ToString() : ""}}));
    says_end_ = end_.has_value();
  }
  for (;;) {
    if (!MakeListeners(address).ok()) return;
    SayWhatIsNew(stream);
    if (!stream.Flush()) return;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (leaving_ || (turn_ && turn_->over)) {
        stream.Queue(Encode({MessageKind::kGoodbye, {}}));
        stream.Flush();
        return;
      }
    }
    std::array<pollfd, 2> waiting = {{{stream.number(), POLLIN, 0}, {wake_.number(), POLLIN, 0}}};
    if (stream.has_unsent()) waiting[0].events |= POLLOUT;
    poll(waiting.data(), waiting.size(), static_cast<int>(tick.count()));
    std::uint64_t count = 0;
    (void)!read(wake_.number(), &count, sizeof(count));
    const bool open = stream.Fill();
    for (;;) {
      const absl::StatusOr<std::optional<std::string>> frame = stream.Next();
      if (!frame.ok()) return;
      if (!*frame) break;
      heard = Clock::now();
      const absl::StatusOr<WireMessage> message = Decode(**frame);
      if (!message.ok() || !TakeIn(*message)) return;
    }
    if (!open || Clock::now() - heard > options_.heartbeat_timeout) return;
    if (Clock::now() >= next_tick) {
      stream.Queue(Encode({MessageKind::kAlive, {}}));
      next_tick = Clock::now() + tick;
    }
  }
}

void Roster::SayWhatIsNew(FrameStream& stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!says_end_ || !end_) return;
  says_end_ = false;
  stream.Queue(Encode(
      {MessageKind::kHostEnded,
       {ranks_at_, std::to_string(generation_), std::to_string(end_->code), end_->asked_to_stop ? "1" : "0",
        end_->is_suspect ? "1" : "0", end_->verdict, std::to_string(end_->newest)}}));
}

bool Roster::TakeIn(const WireMessage& message) {
  const std::vector<std::string>& fields = message.fields;
  switch (message.kind) {
    case MessageKind::kHosts: {
      std::map<std::int64_t, Endpoint> hosts;
      std::istringstream lines(fields[0]);
      std::int64_t host = 0;
      for (std::string at; lines >> host >> at;) {
        const absl::StatusOr<Endpoint> endpoint = ParseEndpoint(at);
        if (endpoint.ok()) hosts[host] = *endpoint;
      }
      const std::lock_guard<std::mutex> lock(mutex_);
      hosts_ = std::move(hosts);
      return true;
    }
    case MessageKind::kAttempt: {
      const absl::StatusOr<Endpoint> ranks_at = ParseEndpoint(fields[2]);
      const AttemptSize size{.nodes = NumberOf(fields[4]), .dp = NumberOf(fields[5])};
      if (!ranks_at.ok() || size.nodes < 1 || size.dp < 1) return false;
      const std::lock_guard<std::mutex> lock(mutex_);
      if (NumberOf(fields[0]) <= generation_) return true;  // it is told to one that did not know
      generation_ = NumberOf(fields[0]);
      node_ = NumberOf(fields[1]);
      size_ = size;
      end_.reset();
      if (node_ < 0) return true;
      turn_.emplace(Turn{.over = false,
                         .code = 0,
                         .text = fields[6],
                         .generation = generation_,
                         .node = node_,
                         .size = size,
                         .ranks_at = *ranks_at,
                         .listener = node_ == 0 ? std::move(ranks_listener_) : Descriptor(),
                         .from_disk = fields[3] == "1",
                         .copies_at = fields[7]});
      changed_.notify_all();
      return true;
    }
    case MessageKind::kRunOver:
      EndRun(static_cast<int>(NumberOf(fields[0])), fields[1]);
      return true;
    case MessageKind::kRefused:
    case MessageKind::kAbort:  // of a host 0 that has failed before it could lead
      EndRun(options_.table.lost_code, fields[0]);
      return true;
    case MessageKind::kLeaderAt:
      if (const absl::StatusOr<Endpoint> there = ParseEndpoint(fields[0]); there.ok()) leads_at_ = *there;
      leader_.reset();
      return false;
    default:
      return true;
  }
}

void Roster::EndRun(int code, const std::string& text) {
  const std::lock_guard<std::mutex> lock(mutex_);
  turn_.emplace(Turn{.over = true, .code = code, .text = text, .ranks_at = {}, .listener = {}});
  changed_.notify_all();
}

}  // namespace engine::launch
