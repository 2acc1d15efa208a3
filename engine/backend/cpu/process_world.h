// The connections of this process, a rank, to those of the other ranks: Gloo over TCP. Gloo moves bytes only;
// its own collectives do not sum in order of rank.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/status.h"
#include "engine/base/store.h"

namespace gloo::transport {
class Context;
class Device;
class UnboundBuffer;
}  // namespace gloo::transport

namespace engine::backend::cpu {

class Parcel;

struct ProcessWorldOptions {
  std::int64_t rank = 0;
  std::int64_t ranks = 1;
  // Host name or IP address of this process that the other ranks can reach; nothing else is listened on.
  std::string address = "127.0.0.1";
  // For each peer, from when its address is known.
  std::chrono::milliseconds connect_timeout = std::chrono::seconds(60);
};

// Before one process destroys its world all must have run their last exchange (a barrier): a peer that is
// gone is taken for lost. Ignores SIGPIPE in the whole process, as Gloo writes to sockets that may be closed.
class ProcessWorld {
 public:
  // Connects to every other rank; all of them call it, with stores that share their keys. Errors: the address
  // cannot be listened on, the store's, a peer that does not answer in time.
  static absl::StatusOr<std::unique_ptr<ProcessWorld>> Connect(const ProcessWorldOptions& options,
                                                               Store* store);
  ~ProcessWorld();
  ProcessWorld(const ProcessWorld&) = delete;
  ProcessWorld& operator=(const ProcessWorld&) = delete;

  std::int64_t rank() const { return rank_; }

  // Every wait, now and later, returns this error. Only the first call counts. From any thread.
  void Abort(absl::Status reason);

 private:
  friend class Parcel;
  ProcessWorld(std::int64_t rank, std::int64_t ranks);

  absl::Status ConnectPeers(const ProcessWorldOptions& options, Store* store);
  void Watch();

  // Why an exchange with the peer cannot come to an end; mutex_ is held.
  absl::Status Failure(std::int64_t peer) const;
  void Lose(std::int64_t peer, const std::string& why);

  const std::int64_t rank_;
  std::shared_ptr<gloo::transport::Device> device_;
  std::shared_ptr<gloo::transport::Context> context_;

  std::mutex mutex_;
  absl::Status aborted_;
  std::vector<absl::Status> lost_;  // by peer
  std::set<Parcel*> waiting_;
  bool closing_ = false;
  std::condition_variable closed_;

  // Gloo does not tell a wait whose bytes were half here when the peer went away. So a receive that never
  // completes is open for each peer; Gloo fails it, the watcher sees that and ends the other waits.
  std::vector<std::unique_ptr<gloo::transport::UnboundBuffer>> watches_;  // by peer; null: this rank
  std::thread watcher_;
};

// Memory whose bytes go to a peer or come from there, one exchange at a time. After an error the exchange may
// still go on; destroying the parcel ends it. Errors: Unavailable, the peer is lost; the reason of an Abort.
class Parcel {
 public:
  Parcel(ProcessWorld* world, std::int64_t peer, void* data, std::int64_t bytes);
  ~Parcel();
  Parcel(const Parcel&) = delete;
  Parcel& operator=(const Parcel&) = delete;

  std::int64_t peer() const { return peer_; }

  // Start the exchange and return at once. Between two ranks, the sends of a tag meet its receives in their
  // order. Their sizes must agree: Gloo ends a process that gets more than it asked for.
  absl::Status Send(std::uint64_t tag);
  absl::Status Receive(std::uint64_t tag);
  // Wait until the bytes may change again, or are here.
  absl::Status WaitSent();
  absl::Status WaitReceived();

 private:
  friend class ProcessWorld;
  template <typename Call>
  absl::Status Start(const Call& call);
  template <typename Call>
  absl::Status Wait(const Call& call);

  ProcessWorld& world_;
  const std::int64_t peer_;
  std::unique_ptr<gloo::transport::UnboundBuffer> buffer_;
};

}  // namespace engine::backend::cpu
