#include <fmt/format.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <utility>

#include "engine/launch/connections.h"
#include "engine/launch/join_check.h"
#include "engine/launch/members.h"
#include "engine/launch/rank_watch.h"
#include "engine/launch/rendezvous.h"
#include "engine/launch/shared_store.h"
#include "engine/launch/stop_agreement.h"

namespace engine::launch {
namespace {

// A thread of its own waits for messages and ticks, and leads each message to the part that it is for.
class PollServer final : public Server {
 public:
  PollServer(Descriptor listener, const std::string& token, const Member& self,
             const RendezvousOptions& options, const std::string& ended)
      : linger_(options.linger),
        wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        members_(self, ended),
        join_check_(token, members_),
        store_(members_.seats().size(),
               [this](const SharedStore::Question& question, const std::string& value) {
                 members_.SendTo(question.rank, MessageKind::kAnswer, {question.number, value});
               }),
        stop_(members_.seats().size()),
        watch_(options, members_),
        connections_(
            std::move(listener), members_.seats().size(),
            [this](Connection& from, const WireMessage& message) { TakeIn(from, message); },
            [this](const Connection& dropped, const std::string& why) { members_.Forget(dropped, why); }),
        thread_([this] { Loop(); }) {}

  ~PollServer() override {
    stopping_ = true;
    const std::uint64_t one = 1;
    (void)!write(wake_.number(), &one, sizeof(one));
    thread_.join();
  }

 private:
  void Loop() {
    Clock::time_point next_tick = Clock::now() + watch_.tick();
    std::optional<Clock::time_point> last_moment;
    while (!(stopping_ && (AllAreGone() || (last_moment && Clock::now() > *last_moment)))) {
      if (stopping_ && !last_moment) last_moment = Clock::now() + linger_;
      connections_.Poll(last_moment ? std::min(next_tick, *last_moment) : next_tick,
                        stopping_ ? -1 : wake_.number());
      connections_.ServeReadable();
      connections_.Admit();
      if (Clock::now() >= next_tick) {
        watch_.Tick(connections_.crowded_out(), join_check_.has_refused_token());
        next_tick = Clock::now() + watch_.tick();
      }
      connections_.Flush();
    }
  }

  // Nobody is left who could still be told of the end.
  bool AllAreGone() const {
    if (connections_.AnyIsAwaited()) return false;
    return members_.reason().empty() || members_.has_started() || watch_.too_late() ||
           members_.all_are_told();
  }

  void TakeIn(Connection& from, const WireMessage& message) {
    if (from.rank >= 0) return TakeInOfRank(from, message);
    if (from.failing.empty()) return join_check_.TakeHello(from, message);
    if (message.kind != MessageKind::kFailed) return;
    members_.End(from.failing + " " + message.fields[0]);
    from.closing = true;
  }

  void TakeInOfRank(Connection& from, const WireMessage& message) {
    const std::vector<std::string>& fields = message.fields;
    const std::int64_t rank = from.rank;
    watch_.Hear(rank);
    switch (message.kind) {
      case MessageKind::kProgress:
        return watch_.TakeProgress(rank, fields);
      case MessageKind::kSet:
        return store_.Set(fields[0], fields[1]);
      case MessageKind::kGet:
        return store_.Ask({rank, fields[0]}, fields[1]);
      case MessageKind::kTake:
        return store_.Ask({rank, fields[0], true}, fields[1]);
      case MessageKind::kBarrier:
        return store_.Barrier({rank, fields[0]}, fields[1]);
      case MessageKind::kStop:
        if (stop_.Ask()) members_.SendToAll(MessageKind::kStopQuestion, {});
        return;
      case MessageKind::kStopAnswer:
        return AgreeOnStop(rank, NumberOf(fields[0]));
      case MessageKind::kFailed:
        members_.Leave(rank);
        return members_.End(fmt::format("{} {}", members_.seat(rank).facts.Name(), fields[0]));
      case MessageKind::kGoodbye:
        return members_.Leave(rank);
      default:
        connections_.Drop(from, "sent a message that is not a rank's");
    }
  }

  void AgreeOnStop(std::int64_t rank, std::int64_t begun) {
    const std::optional<std::int64_t> last = stop_.TakeAnswer(rank, begun);
    if (last) members_.SendToAll(MessageKind::kStopAfter, {std::to_string(*last)});
  }

  const Milliseconds linger_;
  const Descriptor wake_;
  Members members_;
  JoinCheck join_check_;
  SharedStore store_;
  StopAgreement stop_;
  RankWatch watch_;
  Connections connections_;
  std::atomic<bool> stopping_ = false;
  std::thread thread_;  // the last member: it uses all others
};

}  // namespace

std::unique_ptr<Server> Server::Start(Descriptor listener, const std::string& token, const Member& self,
                                      const RendezvousOptions& options, const std::string& ended) {
  return std::make_unique<PollServer>(std::move(listener), token, self, options, ended);
}

}  // namespace engine::launch
