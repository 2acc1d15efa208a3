#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <utility>

#include "engine/base/host_name.h"
#include "engine/base/status.h"
#include "engine/launch/handshake.h"
#include "engine/launch/rendezvous.h"
#include "engine/launch/rendezvous_times.h"

namespace engine::launch {
namespace {

// An error of a call that only waited for another rank is that rank's; so long its own reason is waited for.
constexpr auto kReasonTimeout = std::chrono::seconds(3);
constexpr auto kFlushTimeout = std::chrono::seconds(1);
constexpr auto kAnswerTimeout = std::chrono::seconds(10);  // of a server that should have decided by now
constexpr auto kPause =
    Milliseconds(50);  // between attempts to connect, and between checks whether to give up

}  // namespace

std::string ProcessName() { return fmt::format("{}, pid {}", HostName(), getpid()); }

std::string Member::Name() const { return rank < 0 ? process : fmt::format("rank {} ({})", rank, process); }

absl::StatusOr<std::unique_ptr<Client>> Client::Join(const Endpoint& server, const std::string& token,
                                                     const Member& self, const RendezvousOptions& options,
                                                     const OnAbort& on_abort) {
  const Clock::time_point deadline = Clock::now() + options.join_timeout;
  std::string before;  // what other attempts have come to
  for (int attempt = 1;; ++attempt) {
    absl::StatusOr<Descriptor> socket = Connect(server, deadline);
    if (!socket.ok()) {
      return absl::AbortedError(fmt::format("rank {} waited {} for rank 0: {}{}", self.rank,
                                            Text(options.join_timeout), Message(socket.status()), before));
    }
    std::unique_ptr<Client> client(new Client(*std::move(socket), token, self, options, on_abort));
    const absl::Status status = client->WaitForStart(deadline + kAnswerTimeout);
    if (status.ok()) return client;
    if (!client->MayTryAgain() || Clock::now() + kPause >= deadline) {
      return absl::AbortedError(
          fmt::format("rank {} at {}: {}{}", self.rank, server.ToString(), Message(status), before));
    }
    client.reset();
    before = fmt::format("; {} attempt{} failed before: strangers may crowd the port", attempt,
                         attempt == 1 ? "" : "s");
    std::this_thread::sleep_for(kPause);
  }
}

bool Client::ReportFailure(const Endpoint& server, const std::string& token, const Member& self,
                           const RendezvousOptions& options, const std::string& what,
                           const std::atomic<bool>* moot) {
  constexpr auto kOneAttempt = std::chrono::seconds(1);
  // Rank 0 listens before it opens its data, and answers when it has: that may take as long as joining.
  const Milliseconds answers_within = std::max(kStartSkew, options.join_timeout);
  RendezvousOptions patient = options;
  patient.heartbeat_timeout = std::max(options.heartbeat_timeout, answers_within);
  const Clock::time_point reached_by = Clock::now() + kStartSkew;
  const Clock::time_point answered_by = Clock::now() + answers_within;
  const auto is_moot = [&] { return moot != nullptr && *moot; };
  for (; Clock::now() < reached_by && !is_moot(); std::this_thread::sleep_for(kPause)) {
    absl::StatusOr<Descriptor> socket = Connect(server, std::min(reached_by, Clock::now() + kOneAttempt));
    if (!socket.ok()) continue;
    Client client(*std::move(socket), token, self, patient, [](const absl::Status&) {});
    std::unique_lock<std::mutex> lock(client.mutex_);
    while (!client.welcomed_ && client.end_.ok() && !is_moot() && Clock::now() < answered_by)
      client.changed_.wait_for(lock, kPause);
    if (client.welcomed_ && client.end_.ok()) client.SendFailure(lock, absl::AbortedError(what), what);
    if (client.welcomed_) return true;
    if (!client.end_.ok() && !client.may_try_again_) return false;
  }
  return false;
}

Client::Client(Descriptor socket, const std::string& token, const Member& self,
               const RendezvousOptions& options, OnAbort on_abort)
    : token_(token),
      self_(self),
      options_(options),
      on_abort_(std::move(on_abort)),
      address_(LocalAddress(socket)),
      coordinator_process_("its process"),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      stream_(std::move(socket)),
      progress_("the beginning"),
      limits_(options.hang_timeout) {
  thread_ = std::thread([this] { Loop(); });
}

Client::~Client() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    leaving_ = true;
    if (end_.ok() && welcomed_) Send({MessageKind::kGoodbye, {}});
    Wake();
    changed_.notify_all();
  }
  thread_.join();
}

absl::Status Client::WaitForStart(Clock::time_point deadline) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait_until(lock, deadline, [&] { return started_ || !end_.ok(); });
  if (started_) return absl::OkStatus();
  return end_.ok() ? absl::AbortedError("no answer") : end_;
}

bool Client::MayTryAgain() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return may_try_again_;
}

absl::Status Client::status() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return end_;
}

void Client::Wake() const {
  const std::uint64_t one = 1;
  (void)!write(wake_.number(), &one, sizeof(one));
}

void Client::Send(const WireMessage& message) {
  stream_.Queue(Encode(message));
  Wake();
}

absl::StatusOr<std::string> Client::Ask(MessageKind kind, const std::string& text) {
  ASSIGN_OR_RETURN(std::vector<std::string> answers, AskAll(kind, {text}));
  return std::move(answers[0]);
}

// The questions are on their way together, so all take as long as one.
absl::StatusOr<std::vector<std::string>> Client::AskAll(MessageKind kind,
                                                        const std::vector<std::string>& texts) {
  std::unique_lock<std::mutex> lock(mutex_);
  RETURN_IF_ERROR(end_);
  std::vector<std::int64_t> questions;
  for (const std::string& text : texts) {
    questions.push_back(++last_question_);
    answers_[questions.back()] = std::nullopt;
    Send({kind, {std::to_string(questions.back()), text}});
  }
  std::vector<std::string> answers;
  for (const std::int64_t question : questions) {
    changed_.wait(lock, [&] { return answers_[question] || !end_.ok(); });
    if (std::optional<std::string>& answer = answers_[question]) answers.push_back(*std::move(answer));
    answers_.erase(question);
  }
  if (answers.size() < texts.size()) return end_;
  return answers;
}

absl::Status Client::Set(const std::string& key, std::string value) {
  const std::lock_guard<std::mutex> lock(mutex_);
  RETURN_IF_ERROR(end_);
  constexpr std::size_t kOverhead = 16;
  if (key.size() + value.size() + kOverhead > kMostFrameBytes) {
    return InvalidArgument("{}: {} bytes are too many for the rendezvous", key, value.size());
  }
  Send({MessageKind::kSet, {key, std::move(value)}});
  return absl::OkStatus();
}

absl::StatusOr<std::string> Client::Get(const std::string& key) { return Ask(MessageKind::kGet, key); }
absl::StatusOr<std::string> Client::Take(const std::string& key) { return Ask(MessageKind::kTake, key); }
absl::StatusOr<std::vector<std::string>> Client::TakeAll(const std::vector<std::string>& keys) {
  return AskAll(MessageKind::kTake, keys);
}
absl::Status Client::Barrier(const std::string& name) { return Ask(MessageKind::kBarrier, name).status(); }

template <typename Change>
void Client::MoveOn(const std::string& text, bool waits, const Change& change) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const bool was_endless = !limits_.Limit();
  change();
  ++progress_counter_;
  progress_ = text;
  waits_ = waits;
  if (was_endless == !limits_.Limit() || !end_.ok()) return;
  SendProgress();  // not at the next tick: a process that is stopped before would be waited for without end
}

void Client::Begin(Work work, const std::string& text) {
  MoveOn(text, /*waits=*/false, [&] { limits_.Begin(work, Clock::now()); });
}

void Client::Progress(const std::string& text, bool waits) {
  MoveOn(text, waits, [] {});
}

void Client::Suspend(Work work, const std::string& text) {
  MoveOn(text, /*waits=*/false, [&] {
    suspended_progress_ = progress_;
    limits_.Suspend(work);
  });
}

void Client::Resume() {
  MoveOn(suspended_progress_, /*waits=*/false, [&] { limits_.Resume(); });
}

void Client::SendProgress() {
  const std::optional<Milliseconds> limit = limits_.Limit();
  Send({MessageKind::kProgress,
        {std::to_string(progress_counter_), At(), limit ? std::to_string(limit->count()) : "",
         waits_ ? "1" : "0"}});
}

void Client::Watch(std::function<std::string()> at) {
  const std::lock_guard<std::mutex> lock(mutex_);
  at_ = std::move(at);
}

std::string Client::At() const {
  const std::string device = at_ ? at_() : "";
  return device.empty() ? progress_ : progress_ + "; " + device;
}

void Client::RequestStop() {
  stop_wanted_ = true;  // Loop() tells the server; nothing else is safe in the handler of a signal
  Wake();
}

void Client::OnStop(std::function<void(std::int64_t last)> on_stop) {
  const std::lock_guard<std::mutex> lock(mutex_);
  on_stop_ = std::move(on_stop);
}

absl::StatusOr<bool> Client::MayBegin(std::int64_t iteration) {
  std::unique_lock<std::mutex> lock(mutex_);
  // One's own request holds the next iteration up, too: else a rank alone would never stop.
  changed_.wait(lock, [&] { return !end_.ok() || stop_after_ || !(stop_wanted_ || stop_question_); });
  RETURN_IF_ERROR(end_);
  if (stop_after_ && iteration > *stop_after_) return false;
  begun_ = iteration;
  return true;
}

absl::Status Client::Fail(const absl::Status& error) {
  std::unique_lock<std::mutex> lock(mutex_);
  const bool of_another = absl::IsAborted(error) || absl::IsUnavailable(error);
  if (of_another) changed_.wait_for(lock, kReasonTimeout, [&] { return !end_.ok(); });
  if (!end_.ok()) return end_;
  SendFailure(lock, error, "failed: " + Message(error));
  return error;
}

void Client::SendFailure(std::unique_lock<std::mutex>& lock, const absl::Status& error,
                         const std::string& what) {
  constexpr std::size_t kMostText = 16384;
  end_ = error;
  Send({MessageKind::kFailed, {what.substr(0, kMostText)}});
  changed_.notify_all();
  changed_.wait_for(lock, kFlushTimeout, [&] { return !stream_.has_unsent(); });
}

// Ends the connection. Where the client has not been welcomed yet, Join tells the reason, or tries again.
void Client::End(const std::string& reason, bool may_try_again) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (leaving_ || !end_.ok()) return;
    end_ = absl::AbortedError(reason);
    may_try_again_ = may_try_again;
    changed_.notify_all();
    if (!welcomed_) return;
  }
  on_abort_(absl::AbortedError(reason));
}

void Client::Loop() {
  const Milliseconds tick = TickOf(options_);
  Clock::time_point next_tick = Clock::now();
  std::optional<Clock::time_point> last_moment;
  std::int64_t silent_ticks = 0;
  for (;;) {
    bool unsent = false;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (Clock::now() >= next_tick && end_.ok() && welcomed_) SendProgress();
      if (stop_wanted_ && welcomed_ && !std::exchange(stop_asked_, true)) Send({MessageKind::kStop, {}});
      stream_.Flush();  // where the server has closed, what it said before is read below
      unsent = stream_.has_unsent();
      changed_.notify_all();
      if (leaving_ && !last_moment) last_moment = Clock::now() + kFlushTimeout;
      if (leaving_ && (!unsent || Clock::now() > *last_moment)) return;
    }
    if (Clock::now() >= next_tick) {
      next_tick = Clock::now() + tick;
      // In ticks of this loop: a process that was stopped as a whole blames nobody for the silence.
      if (++silent_ticks * tick > options_.heartbeat_timeout + tick) {
        EndForSilence();
      }
      if (options_.parent != 0 && getppid() != options_.parent) {
        End(fmt::format("the launcher (pid {}), which has started this rank, has ended", options_.parent));
      }
    }
    std::array<pollfd, 2> waiting = {
        {{stream_.number(), static_cast<short>(unsent ? POLLIN | POLLOUT : POLLIN), 0},
         {wake_.number(), POLLIN, 0}}};
    const auto left = std::chrono::ceil<Milliseconds>(next_tick - Clock::now()).count();
    poll(waiting.data(), waiting.size(), static_cast<int>(std::max<std::int64_t>(0, left)));
    std::uint64_t wakes = 0;
    (void)!read(wake_.number(), &wakes, sizeof(wakes));
    if ((waiting[0].revents & ~POLLOUT) == 0) continue;
    silent_ticks = 0;
    const bool open = stream_.Fill();
    for (;;) {
      const absl::StatusOr<std::optional<std::string>> frame = stream_.Next();
      if (frame.ok() && !*frame) break;
      const absl::StatusOr<WireMessage> message = frame.ok() ? Decode(**frame) : frame.status();
      if (!message.ok()) {
        End("what listens there is no run of this program");
        break;
      }
      TakeIn(*message);
    }
    if (!open) {
      End(started_ ? fmt::format("rank 0 ({}) was lost: connection closed", coordinator_process_)
                   : "the connection was closed before the run began",
          /*may_try_again=*/!welcomed_);
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [&] { return leaving_; });
      return;
    }
  }
}

void Client::EndForSilence() {
  if (!welcomed_) {
    // A server that is only late still takes the seat for a hello that is on its way.
    return End(fmt::format("what listens there said nothing for {}", Text(options_.heartbeat_timeout)),
               /*may_try_again=*/hello_.empty());
  }
  End(fmt::format("rank 0 ({}) was lost: not heard of for {}", coordinator_process_,
                  Text(options_.heartbeat_timeout)));
}

// Proves to the server that this rank knows the token.
void Client::Answer(const WireMessage& challenge) {
  if (challenge.fields[0] != kMagic) {
    return End("what listens there is another version of this program, or none");
  }
  const absl::StatusOr<std::string> nonce = RandomBytes(kNonceBytes);
  if (!nonce.ok()) return End(Message(nonce.status()));
  nonce_ = challenge.fields[1];
  hello_ = {kMagic,
            *nonce,
            std::to_string(self_.rank),
            std::to_string(self_.world),
            self_.build,
            self_.plan_hash,
            self_.device,
            self_.process,
            ""};
  hello_.back() = ProofOf(MessageKind::kHello, token_, nonce_, hello_);
  const std::lock_guard<std::mutex> lock(mutex_);
  Send({MessageKind::kHello, hello_});
}

// Handles messages before this rank is welcome. Anybody may have sent them: their words are not repeated, and
// only Join fails.
void Client::Meet(const WireMessage& message) {
  if (message.kind == MessageKind::kChallenge && hello_.empty()) return Answer(message);
  if (message.kind == MessageKind::kRefused && !hello_.empty()) {
    return End(fmt::format("refused: token: {}", kTokenRule));
  }
  if (message.kind != MessageKind::kWelcome || hello_.empty()) {
    return End("what listens there is no run of this program");
  }
  if (!SameProof(message.fields[0], ProofOf(MessageKind::kWelcome, token_, nonce_, hello_))) {
    return End("what listens there does not know the token of this run");
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  welcomed_ = true;
  SendProgress();
  changed_.notify_all();
}

void Client::TakeIn(const WireMessage& message) {
  if (!welcomed_) return Meet(message);
  switch (message.kind) {
    case MessageKind::kAbort:
      return End(message.fields[0]);
    case MessageKind::kRefused:
      return End("refused: " + message.fields[0]);
    default:
      break;
  }
  std::function<void(std::int64_t)> tell;  // outside of the lock: it writes, and whoever reads may be slow
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    tell = TakeInLocked(message);
  }
  changed_.notify_all();
  if (tell) tell(*stop_after_);
}

std::function<void(std::int64_t)> Client::TakeInLocked(const WireMessage& message) {
  switch (message.kind) {
    case MessageKind::kStart:
      started_ = true;
      coordinator_process_ = message.fields[0];
      break;
    case MessageKind::kAnswer:
      if (const auto it = answers_.find(NumberOf(message.fields[0])); it != answers_.end()) {
        it->second = message.fields[1];
      }
      break;
    case MessageKind::kStopQuestion:
      stop_question_ = true;
      Send({MessageKind::kStopAnswer, {std::to_string(begun_)}});
      break;
    case MessageKind::kStopAfter:
      stop_after_ = NumberOf(message.fields[0]);
      return on_stop_;
    default:
      break;
  }
  return nullptr;
}

}  // namespace engine::launch
