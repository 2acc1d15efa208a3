#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <deque>
#include <set>
#include <utility>
#include <vector>

#include "engine/base/print.h"
#include "engine/base/status.h"
#include "engine/launch/handshake.h"
#include "engine/launch/rendezvous.h"
#include "engine/launch/rendezvous_times.h"

namespace engine::launch {
namespace {

constexpr auto kHelloTimeout = std::chrono::seconds(5);
constexpr std::size_t kMostHelloBytes = 4096;
// The most connections kept that have not said who they are; the world's size, if that is larger.
constexpr std::size_t kMostStrangers = 128;
constexpr std::size_t kMostAdmitted = 32;  // accepted before the others are read again
constexpr std::size_t kMostNamed = 20;     // ranks in a message

const std::string kMoreAtRank0 = "; rank 0 says what each is at";

struct Connection {
  Connection(Descriptor socket, std::string its_nonce)
      : stream(std::move(socket), kMostHelloBytes), nonce(std::move(its_nonce)) {}
  bool is_stranger() const { return rank < 0 && failing.empty(); }

  FrameStream stream;
  std::string nonce;      // ours
  bool readable = false;  // or closed
  Clock::time_point since = Clock::now();
  std::int64_t rank = -1;  // of a member
  std::string failing;     // name of one that has failed before it joined, and will say why
  bool closing = false;    // when all is sent
  bool gone = false;
};

struct Seat {
  Member facts;
  Connection* connection = nullptr;  // null: has not come
  bool left = false;                 // said goodbye
  std::int64_t silent_ticks = 0;
  std::int64_t counter = -1;
  std::int64_t still_ticks = 0;  // since the counter moved
  std::string at;
  bool may_stand_still = true;
  std::optional<std::int64_t> stop_answer;
};

struct Question {
  std::int64_t rank = 0;
  std::string number;
  bool take = false;
};

class PollServer final : public Server {
 public:
  PollServer(Descriptor listener, std::string token, Member self, const RendezvousOptions& options,
             std::string ended)
      : listener_(std::move(listener)),
        wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        token_(std::move(token)),
        self_(std::move(self)),
        options_(options),
        tick_(TickOf(options)),
        seats_(static_cast<std::size_t>(self_.world)),
        reason_(std::move(ended)),
        told_({self_.rank}),
        thread_([this] { Loop(); }) {}

  ~PollServer() override {
    stopping_ = true;
    const std::uint64_t one = 1;
    (void)!write(wake_.number(), &one, sizeof(one));
    thread_.join();
  }

 private:
  void Loop() {
    Clock::time_point next_tick = Clock::now() + tick_;
    std::optional<Clock::time_point> last_moment;
    while (!(stopping_ && (AllAreGone() || (last_moment && Clock::now() > *last_moment)))) {
      if (stopping_ && !last_moment) last_moment = Clock::now() + options_.linger;
      Poll(last_moment ? std::min(next_tick, *last_moment) : next_tick);
      for (const auto& connection : connections_) {
        if (connection->readable) Serve(*connection);
      }
      Admit();
      if (Clock::now() >= next_tick) {
        Tick();
        next_tick = Clock::now() + tick_;
      }
      for (const auto& connection : connections_) Flush(*connection);
      std::erase_if(connections_, [](const auto& connection) { return connection->gone; });
    }
  }

  // Nobody is left who could still be told of the end.
  bool AllAreGone() const {
    const auto waits = [](const auto& connection) { return connection->rank >= 0 || connection->closing; };
    if (std::any_of(connections_.begin(), connections_.end(), waits)) return false;
    return reason_.empty() || started_ || too_late_ || told_.size() == seats_.size();
  }

  void Poll(Clock::time_point until) {
    std::vector<pollfd> waiting = {{listener_.number(), POLLIN, 0}, {wake_.number(), POLLIN, 0}};
    if (stopping_) waiting[1].fd = -1;
    for (const auto& connection : connections_) {
      const short unsent = connection->stream.has_unsent() ? POLLOUT : 0;
      waiting.push_back({connection->stream.number(), static_cast<short>(POLLIN | unsent), 0});
    }
    const auto left = std::chrono::ceil<Milliseconds>(until - Clock::now()).count();
    poll(waiting.data(), waiting.size(), static_cast<int>(std::max<std::int64_t>(0, left)));
    for (std::size_t i = 0; i < connections_.size(); ++i) {
      connections_[i]->readable = (waiting[i + 2].revents & ~POLLOUT) != 0;
    }
  }

  void Admit() {
    for (std::size_t admitted = 0; admitted < kMostAdmitted; ++admitted) {
      Descriptor socket = Accept(listener_);
      absl::StatusOr<std::string> nonce = RandomBytes(kNonceBytes);
      if (!socket.open() || !nonce.ok()) break;
      connections_.push_back(std::make_unique<Connection>(std::move(socket), *std::move(nonce)));
      Queue(*connections_.back(), MessageKind::kChallenge, {kMagic, connections_.back()->nonce});
    }
    const std::size_t most = std::max(kMostStrangers, seats_.size());  // all ranks may come at once
    std::size_t strangers = 0;                                         // the newest may stay
    for (std::size_t i = connections_.size(); i-- > 0;) {
      Connection& connection = *connections_[i];
      if (!connection.is_stranger() || connection.gone) continue;
      const bool late = Clock::now() - connection.since > kHelloTimeout;
      const bool crowded = ++strangers > most;
      if (!late && !crowded) continue;
      Serve(connection);  // it may have just said who it is
      if (!connection.is_stranger()) continue;
      if (connection.closing) {  // it did, and has an answer
        Flush(connection);
        connection.gone = true;
        continue;
      }
      if (crowded && !connection.gone) ++crowded_out_;
      connection.gone = true;
    }
  }

  void Serve(Connection& connection) {
    if (connection.gone) return;
    const bool open = connection.stream.Fill();
    while (!connection.closing && !connection.gone) {
      const absl::StatusOr<std::optional<std::string>> frame = connection.stream.Next();
      if (frame.ok() && !*frame) break;
      const absl::StatusOr<WireMessage> message = frame.ok() ? Decode(**frame) : frame.status();
      if (!message.ok()) {
        Drop(connection, "sent something that is no message");
      } else if (connection.rank >= 0) {
        TakeIn(connection.rank, *message);
      } else if (!connection.failing.empty()) {
        if (message->kind != MessageKind::kFailed) continue;
        End(connection.failing + " " + message->fields[0]);
        connection.closing = true;
      } else {
        Meet(connection, *message);
      }
    }
    if (!open) Drop(connection, "connection closed");
  }

  void Drop(Connection& connection, const std::string& why) {
    connection.gone = true;
    if (connection.rank < 0) return;
    Seat& seat = SeatOf(connection.rank);
    seat.connection = nullptr;
    if (!seat.left) Lose(connection.rank, why);
  }

  void Lose(std::int64_t rank, const std::string& why) {
    Seat& seat = SeatOf(rank);
    End(fmt::format("{} was lost: {}", seat.facts.Name(), why));
    if (seat.connection != nullptr) seat.connection->closing = true;
  }

  void Flush(Connection& connection) {
    if (connection.gone) return;
    if (!connection.stream.Flush()) Drop(connection, "connection closed");
    if (connection.closing && !connection.stream.has_unsent()) connection.gone = true;
  }

  Seat& SeatOf(std::int64_t rank) { return seats_[static_cast<std::size_t>(rank)]; }

  static void Queue(Connection& connection, MessageKind kind, std::vector<std::string> fields) {
    connection.stream.Queue(Encode({kind, std::move(fields)}));
  }
  void SendTo(std::int64_t rank, MessageKind kind, const std::vector<std::string>& fields) {
    if (Connection* connection = SeatOf(rank).connection) Queue(*connection, kind, fields);
  }
  void SendToAll(MessageKind kind, const std::vector<std::string>& fields) {
    for (std::int64_t rank = 0; rank < self_.world; ++rank) SendTo(rank, kind, fields);
  }

  // The end of the run, early; the first reason is the one that counts. `more` is for rank 0 alone, so that
  // a log has it once.
  void End(const std::string& reason, const std::string& more = "") {
    if (!reason_.empty()) return;
    reason_ = reason;
    for (std::int64_t rank = 0; rank < self_.world; ++rank) {
      const std::string& rest = rank == 0 || more.empty() ? more : kMoreAtRank0;
      SendTo(rank, MessageKind::kAbort, {reason_ + rest});
    }
    for (std::int64_t rank = 0; rank < self_.world; ++rank) {
      if (SeatOf(rank).connection != nullptr) told_.insert(rank);
    }
  }

  // The first message of a connection.
  void Meet(Connection& connection, const WireMessage& message) {
    const std::vector<std::string>& fields = message.fields;
    if (message.kind != MessageKind::kHello || fields[0] != kMagic) {
      connection.gone = true;
      return;
    }
    const auto part = [&](MessageKind kind, const std::string& reason) {
      Queue(connection, kind, {reason});
      connection.closing = true;
    };
    if (!SameProof(fields.back(), ProofOf(MessageKind::kHello, token_, connection.nonce, fields))) {
      return part(MessageKind::kRefused, "token");
    }
    Queue(connection, MessageKind::kWelcome,
          {ProofOf(MessageKind::kWelcome, token_, connection.nonce, fields)});
    const Member member{.rank = NumberOf(fields[2]),
                        .world = NumberOf(fields[3]),
                        .build = fields[4],
                        .plan_hash = fields[5],
                        .device = fields[6],
                        .process = fields[7]};
    if (!reason_.empty()) {
      told_.insert(member.rank);
      return part(MessageKind::kAbort, reason_);
    }
    if (member.plan_hash.empty()) return Expect(connection, member);
    const std::string objection = ObjectionTo(member);
    if (!objection.empty()) {
      part(MessageKind::kRefused, objection);
      if (started_) return;  // a latecomer
      told_.insert(member.rank);
      return End(objection);
    }
    Seat& seat = SeatOf(member.rank);
    seat.facts = member;
    seat.connection = &connection;
    connection.rank = member.rank;
    connection.stream.SetMost(kMostFrameBytes);
    StartIfAllAreHere();
  }

  // One that failed before it could join; of a rank that has joined it is known already, or will be.
  void Expect(Connection& connection, const Member& member) {
    const bool is_rank = member.rank >= 0 && member.rank < self_.world;
    if (started_ || (is_rank && IsTaken(SeatOf(member.rank)))) {
      connection.closing = true;
      return;
    }
    if (is_rank) told_.insert(member.rank);
    connection.failing = member.Name();
    connection.stream.SetMost(kMostFrameBytes);
  }

  static bool IsTaken(const Seat& seat) { return seat.connection != nullptr || seat.left; }

  // Why this member cannot be of this run; empty where it can.
  std::string ObjectionTo(const Member& member) {
    const std::string who = member.Name();
    if (member.world != self_.world) {
      return fmt::format("{} is of a run of {} ranks, but this one has {}", who, member.world, self_.world);
    }
    if (member.rank < 0 || member.rank >= self_.world) {
      return fmt::format("{} is not below the {} ranks of this run", who, self_.world);
    }
    const Seat& seat = SeatOf(member.rank);
    if (IsTaken(seat)) {
      return fmt::format("{} came, but that rank is here already ({})", who, seat.facts.process);
    }
    if (member.build != self_.build) {
      return fmt::format("{} runs another build of the program: {} against {} of rank 0", who, member.build,
                         self_.build);
    }
    if (member.plan_hash != self_.plan_hash) {
      return fmt::format("{} runs another recipe: plan hash {} against {} of rank 0", who, member.plan_hash,
                         self_.plan_hash);
    }
    for (const Seat& other : seats_) {
      if (other.connection != nullptr && other.facts.device == member.device) {
        return fmt::format("{} and {} are on one device: {}", who, other.facts.Name(), member.device);
      }
    }
    return "";
  }

  void StartIfAllAreHere() {
    const auto missing = [](const Seat& seat) { return seat.connection == nullptr; };
    if (std::any_of(seats_.begin(), seats_.end(), missing)) return;
    started_ = true;
    SendToAll(MessageKind::kStart, {self_.process});
  }

  void TakeIn(std::int64_t rank, const WireMessage& message) {
    const std::vector<std::string>& fields = message.fields;
    Seat& seat = SeatOf(rank);
    seat.silent_ticks = 0;
    switch (message.kind) {
      case MessageKind::kProgress:
        return TakeProgress(seat, fields);
      case MessageKind::kSet:
        values_[fields[0]] = fields[1];
        return AnswerKey(fields[0]);
      case MessageKind::kGet:
      case MessageKind::kTake:
        questions_[fields[1]].push_back({rank, fields[0], message.kind == MessageKind::kTake});
        return AnswerKey(fields[1]);
      case MessageKind::kBarrier:
        return TakeBarrier({rank, fields[0]}, fields[1]);
      case MessageKind::kStop:
        if (!stopping_all_) SendToAll(MessageKind::kStopQuestion, {});
        stopping_all_ = true;
        return;
      case MessageKind::kStopAnswer:
        seat.stop_answer = NumberOf(fields[0]);
        return AgreeOnStop();
      case MessageKind::kFailed:
        seat.left = true;
        return End(fmt::format("{} {}", seat.facts.Name(), fields[0]));
      case MessageKind::kGoodbye:
        seat.left = true;
        return;
      default:
        if (seat.connection != nullptr) Drop(*seat.connection, "sent a message that is not a rank's");
    }
  }

  static void TakeProgress(Seat& seat, const std::vector<std::string>& fields) {
    const std::int64_t counter = NumberOf(fields[0]);
    if (counter != seat.counter) seat.still_ticks = 0;
    seat.counter = counter;
    seat.at = fields[1];
    seat.may_stand_still = fields[2] == "1";
  }

  void AnswerKey(const std::string& key) {
    const auto value = values_.find(key);
    const auto asked = questions_.find(key);
    if (value == values_.end() || asked == questions_.end()) return;
    bool taken = false;
    for (const Question& question : asked->second) {
      SendTo(question.rank, MessageKind::kAnswer, {question.number, value->second});
      taken = taken || question.take;
    }
    questions_.erase(asked);
    if (taken) values_.erase(value);
  }

  void TakeBarrier(Question question, const std::string& name) {
    std::vector<Question>& here = barriers_[name];
    here.push_back(std::move(question));
    if (here.size() < seats_.size()) return;
    for (const Question& each : here) SendTo(each.rank, MessageKind::kAnswer, {each.number, ""});
    barriers_.erase(name);
  }

  // No rank begins an iteration between its answer and ours, so the furthest one is one that all can reach.
  void AgreeOnStop() {
    std::int64_t last = -1;
    for (const Seat& seat : seats_) {
      if (!seat.stop_answer) return;
      last = std::max(last, *seat.stop_answer);
    }
    SendToAll(MessageKind::kStopAfter, {std::to_string(last)});
  }

  // Silence is counted in ticks of this loop, so a process that was stopped as a whole blames nobody for it.
  void Tick() {
    if (!reason_.empty()) return;
    ++ticks_;
    if (!started_ && ticks_ * tick_ > options_.join_timeout) return EndForMissing();
    for (std::int64_t rank = 0; rank < self_.world; ++rank) {
      Seat& seat = SeatOf(rank);
      if (seat.connection == nullptr || seat.left) continue;
      ++seat.still_ticks;
      if (++seat.silent_ticks * tick_ > options_.heartbeat_timeout) {
        Lose(rank, fmt::format("not heard of for {}", Text(options_.heartbeat_timeout)));
      }
    }
    SendToAll(MessageKind::kAlive, {});
    if (started_ && options_.hang_timeout.count() > 0) EndIfHanging();
  }

  void EndForMissing() {
    std::string ranks;
    std::size_t count = 0;
    for (std::int64_t rank = 0; rank < self_.world; ++rank) {
      if (SeatOf(rank).connection != nullptr || ++count > kMostNamed) continue;
      ranks += (count == 1 ? "" : ", ") + std::to_string(rank);
    }
    if (count > kMostNamed) ranks += fmt::format(" and {} others", count - kMostNamed);
    too_late_ = true;
    std::string crowd;
    if (crowded_out_ > 0) {
      crowd = fmt::format(
          "; strangers crowd the port: {} connections that had not said who they are were dropped to make "
          "room for "
          "newer ones",
          crowded_out_);
    }
    End(fmt::format("rank{} {} did not come within {}{}", count == 1 ? "" : "s", ranks,
                    Text(options_.join_timeout), crowd));
  }

  // Where one rank stands still, the others soon wait for it; so the run hangs when nobody gets on. Of a rank
  // at work of its own nobody knows how long that takes: then it is only said, once, whom all wait for.
  void EndIfHanging() {
    const auto stands = [&](const Seat& seat) {
      return !seat.left && seat.still_ticks * tick_ > options_.hang_timeout;
    };
    if (!std::all_of(seats_.begin(), seats_.end(), stands)) {
      told_of_waiting_ = false;
      return;
    }
    std::vector<const Seat*> alone;
    std::vector<const Seat*> all;
    for (const Seat& seat : seats_) {
      if (seat.may_stand_still) alone.push_back(&seat);
      all.push_back(&seat);
    }
    if (alone.empty()) {
      return End(fmt::format("the run hangs: no rank got on for {}", Text(options_.hang_timeout)),
                 Table(all));
    }
    if (!std::exchange(told_of_waiting_, true)) {
      Print(stderr, "note: no rank got on for {}; waited for without end:{}\n", Text(options_.hang_timeout),
            Table(alone));
    }
  }

  // What each of these is at; of very many, those that have stood still longest.
  std::string Table(std::vector<const Seat*> seats) const {
    const auto longest = [](const Seat* a, const Seat* b) { return a->still_ticks > b->still_ticks; };
    const std::size_t count = seats.size();
    if (count > kMostNamed) {
      std::stable_sort(seats.begin(), seats.end(), longest);
      seats.resize(kMostNamed);
    }
    std::string table;
    for (const Seat* seat : seats) {
      const auto since = std::chrono::duration_cast<Milliseconds>(seat->still_ticks * tick_);
      table += fmt::format("\n    {}: for {} at {}", seat->facts.Name(), Text(since), seat->at);
    }
    if (count > kMostNamed) table += fmt::format("\n    and {} others, for less long", count - kMostNamed);
    return table;
  }

  const Descriptor listener_;
  const Descriptor wake_;
  const std::string token_;
  const Member self_;
  const RendezvousOptions options_;
  const Milliseconds tick_;
  std::vector<Seat> seats_;  // by rank
  std::deque<std::unique_ptr<Connection>> connections_;
  std::map<std::string, std::string> values_;
  std::map<std::string, std::vector<Question>> questions_;  // by key
  std::map<std::string, std::vector<Question>> barriers_;   // by name
  bool started_ = false;
  std::int64_t crowded_out_ = 0;
  bool too_late_ = false;  // for those that have not come
  bool stopping_all_ = false;
  bool told_of_waiting_ = false;  // for ranks at work of their own, since somebody got on
  std::int64_t ticks_ = 0;
  std::string reason_;           // why the run has ended; empty while it goes on
  std::set<std::int64_t> told_;  // ranks that have been sent the reason
  std::atomic<bool> stopping_ = false;
  std::thread thread_;  // the last member: it uses all others
};

}  // namespace

std::unique_ptr<Server> Server::Start(Descriptor listener, const std::string& token, const Member& self,
                                      const RendezvousOptions& options, const std::string& ended) {
  return std::make_unique<PollServer>(std::move(listener), token, self, options, ended);
}

}  // namespace engine::launch
