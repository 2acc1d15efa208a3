// Where the processes of a run find each other, and watch each other until the end. The process of rank 0
// hosts the Server; every rank, rank 0 too, is a Client. The run ends as a whole: what ends one rank early
// ends all, with one reason.
#pragma once

#include <absl/status/statusor.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/store.h"
#include "engine/launch/message.h"
#include "engine/launch/socket.h"
#include "engine/launch/work.h"

namespace engine::launch {

using Milliseconds = std::chrono::milliseconds;

// How much later than others the processes of one run may be started, and still hear of one that has failed.
inline constexpr Milliseconds kStartSkew = std::chrono::seconds(10);

struct RendezvousOptions {
  Milliseconds join_timeout = std::chrono::seconds(120);  // all ranks must have come by then
  // A rank so long unheard of is lost. With its ticks (rendezvous_times.h) it is named within 5 s.
  Milliseconds heartbeat_timeout = std::chrono::seconds(4);
  // So long no rank got on: the run hangs; 0: off. nullopt: it is learned (work.h).
  std::optional<Milliseconds> hang_timeout = std::nullopt;
  // Of a server whose run has ended early, for all to hear why. Its process must be gone when a supervisor
  // ends those that do not go by themselves (supervisor.cpp: 5 s).
  Milliseconds linger = std::chrono::seconds(3);
  int parent = 0;  // of a rank: the process without which it ends; 0: it may go on alone
};

// What a rank says of itself. World, build and plan hash must be the same on all ranks; devices differ.
struct Member {
  std::int64_t rank = 0;  // -1: a host whose ranks have not been started
  std::int64_t world = 1;
  std::string build;      // the program's version and build
  std::string plan_hash;  // empty: not known, as it failed before
  std::string device;     // host and GPU; host and process id of a CPU rank
  std::string process;    // for messages: "host a, pid 77"; of a host whose ranks …: "node 1 (a, pid 77)"

  std::string Name() const;  // "rank 3 (host a, pid 77)"
};

// Refuses whoever is not of this run: a wrong token (handshake.h) with the word "token", of which only a start that fails
// for ranks that are missing speaks. A member (right token) that does not fit, by another world size, build or plan, a rank or a device that
// is taken, ends the run with the reason. Who says nothing or garbage is dropped, and delays nobody.
// Where very many strangers are connected, the server drops the oldest, after it has read what they have
// sent; a start that fails then says so.
class Server {
 public:
  // `self`: what the process of rank 0 will say of itself. `ended`: why the run will not begin, for those
  // that come; empty where it will.
  static std::unique_ptr<Server> Start(Descriptor listener, const std::string& token, const Member& self,
                                       const RendezvousOptions& options, const std::string& ended = "");
  virtual ~Server() = default;  // waits a little for the other ranks to have read why the run ended
};

// Calls are safe from any thread. After the run has ended early, every call returns status().
class Client final : public Store {
 public:
  // Called once, from the client's thread, with the reason, if the run ends early.
  using OnAbort = std::function<void(const absl::Status& why)>;
  // Returns when all ranks are here. One whose connection is closed before the server has heard it tries
  // again until the join timeout.
  static absl::StatusOr<std::unique_ptr<Client>> Join(const Endpoint& server, const std::string& token,
                                                      const Member& self, const RendezvousOptions& options,
                                                      const OnAbort& on_abort);
  // Tells a run that a rank, or a host, has failed before it could join ("failed: no data"), so that nobody
  // waits for it; a server that does not know the token hears no reason. Returns whether the server was
  // reached and knows the token. Waits kStartSkew for somebody who listens, and the join timeout for the
  // answer; ends early, with false, when another thread sets `moot`.
  static bool ReportFailure(const Endpoint& server, const std::string& token, const Member& self,
                            const RendezvousOptions& options, const std::string& what,
                            const std::atomic<bool>* moot = nullptr);
  ~Client() override;  // says goodbye: from then on this rank is not missed

  // This process's own address on the way to the server: one that the other ranks can reach.
  const std::string& address() const { return address_; }

  // Ok, or Aborted with the reason why the run has ended.
  absl::Status status() const;

  absl::Status Set(const std::string& key, std::string value) override;  // at most 1 MiB less some bytes
  absl::StatusOr<std::string> Get(const std::string& key) override;
  absl::StatusOr<std::string> Take(const std::string& key);  // and the key is forgotten
  absl::StatusOr<std::vector<std::string>> TakeAll(const std::vector<std::string>& keys);  // in their order
  absl::Status Barrier(const std::string& name);  // returns when all ranks have called it

  // This rank begins a unit of this work. `text` says what it is at, for the message of a run that hangs: one whose ranks all stand
  // still for longer than their work may (work.h). While one of them may still stand, rank 0 says, after a minute, or the hang
  // timeout, who is waited for.
  void Begin(Work work, const std::string& text);
  // It gets on within that. `waits`: for other ranks, so that a run which then hangs is not this one's fault.
  void Progress(const std::string& text, bool waits = false);
  // Other work comes between, until Resume; one at a time.
  void Suspend(Work work, const std::string& text);
  void Resume();
  // `at` says what this rank's device is at, for the same message, and is called from the client's thread; it
  // may not call the client. Null: nobody says. When Watch returns, what was there before is called no more.
  void Watch(std::function<std::string()> at);

  // An agreed end. Any rank asks for it, at any time, also in the handler of a signal; MayBegin(i), called by
  // every rank for each iteration in turn, is then true on all ranks up to the same iteration and false from
  // the next on.
  void RequestStop();
  // `on_stop` is called once with that last iteration, −1 where none has begun, from the client's thread; it
  // may not call the client.
  void OnStop(std::function<void(std::int64_t last)> on_stop);
  absl::StatusOr<bool> MayBegin(std::int64_t iteration);

  // This rank has failed. Returns the reason of the run's end: this one, or one that came before. An Aborted
  // or Unavailable error may be another rank's doing: its reason is waited for, a little.
  absl::Status Fail(const absl::Status& error);

 private:
  Client(Descriptor socket, const std::string& token, const Member& self, const RendezvousOptions& options,
         OnAbort on_abort);
  absl::Status WaitForStart(Clock::time_point deadline);
  bool MayTryAgain() const;
  void Answer(const WireMessage& challenge);
  void Meet(const WireMessage& message);
  // With mutex_ held. Returns what is to be called with stop_after_ when it is not held any more; may be
  // null.
  std::function<void(std::int64_t)> TakeInLocked(const WireMessage& message);
  void EndForSilence();
  absl::StatusOr<std::string> Ask(MessageKind kind, const std::string& text);
  absl::StatusOr<std::vector<std::string>> AskAll(MessageKind kind, const std::vector<std::string>& texts);
  void Loop();
  void TakeIn(const WireMessage& message);
  void Send(const WireMessage& message);  // with the mutex held, as the next two
  void SendProgress();
  template <typename Change>
  void MoveOn(const std::string& text, bool waits, const Change& change);  // which changes limits_
  std::string At() const;
  void Wake() const;
  void End(const std::string& reason, bool may_try_again = false);
  void SendFailure(std::unique_lock<std::mutex>& lock, const absl::Status& error, const std::string& what);

  const std::string token_;
  const Member self_;
  const RendezvousOptions options_;
  const OnAbort on_abort_;
  const std::string address_;
  std::string coordinator_process_;
  Descriptor wake_;
  mutable std::mutex mutex_;  // guards what follows, and the stream's outgoing side
  mutable std::condition_variable changed_;
  FrameStream stream_;
  absl::Status end_;  // Ok while the run goes on
  bool may_try_again_ = false;
  std::string nonce_;               // the server's
  std::vector<std::string> hello_;  // empty: not yet sent
  bool welcomed_ = false;           // the server has shown that it knows the token
  bool started_ = false;
  bool leaving_ = false;
  std::int64_t last_question_ = 0;
  std::map<std::int64_t, std::optional<std::string>> answers_;  // of open questions
  std::int64_t progress_counter_ = 0;
  std::string progress_;
  std::string suspended_progress_;
  bool waits_ = false;  // for other ranks
  std::function<std::string()> at_;
  WorkLimits limits_;
  std::atomic<bool> stop_wanted_ = false;  // by this rank
  bool stop_asked_ = false;                // the server has been told so
  bool stop_question_ = false;             // by the server; no iteration begins until its answer
  std::int64_t begun_ = -1;                // the last iteration begun
  std::optional<std::int64_t> stop_after_;
  std::function<void(std::int64_t)> on_stop_;
  std::thread thread_;
};

// "host a, pid 77" of this process.
std::string ProcessName();

}  // namespace engine::launch
