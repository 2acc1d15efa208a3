// Hosts keep copies of the states of each other's ranks in their memory, so that those of a host that is lost are still somewhere.
#pragma once

#include <absl/status/statusor.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/memory_copies.h"
#include "engine/launch/link.h"
#include "engine/launch/socket.h"

namespace engine::launch {

// Of one host, in the process that starts its ranks. Takes copies of ranks of other hosts, and gives out these and those of its own ranks.
// Each connection has a thread.
class CopyServer {
 public:
  // Listens on every network of this host, on a port that is free. `most_ranks`: of other hosts, whose copies it takes;
  // `most_bytes`: of one copy.
  static absl::StatusOr<std::unique_ptr<CopyServer>> Start(const std::string& token, std::int64_t most_ranks,
                                                           std::int64_t most_bytes);
  ~CopyServer();
  CopyServer(const CopyServer&) = delete;
  CopyServer& operator=(const CopyServer&) = delete;

  int port() const { return PortOf(listener_); }
  // The files of this host's ranks, from that one on; they outlive this.
  void SetOwn(std::int64_t first_rank, std::vector<int> files);
  // The host has had another place, and gives these files up, of its ranks from that one on: they, and what it has of ranks of other hosts, are
  // kept aside, and are given out until they are forgotten.
  void SetAside(std::int64_t first_rank, std::vector<Descriptor> files);
  // Forgets all copies but those of this host's ranks.
  void Forget();

 private:
  struct File {
    Descriptor descriptor;
    std::mutex in_use;  // by one connection at a time
  };
  struct Peer {
    explicit Peer(Descriptor socket) : link(std::move(socket)) {}
    Link link;
    std::atomic<bool> gone = false;
    std::thread thread;
  };

  CopyServer(Descriptor listener, Descriptor wake, std::string token, std::int64_t most_ranks,
             std::int64_t most_bytes);
  void Accept();
  absl::Status Serve(const Link& link);
  absl::Status Answer(const Link& link, const WireMessage& asked);
  absl::Status Take(const Link& link, const WireMessage& asked);
  absl::Status Give(const Link& link, const WireMessage& asked);
  absl::Status GiveBytes(const Link& link, const WireMessage& asked);
  absl::Status ListAll(const Link& link);
  void ForgetOthers(const std::string& tag);
  // Null: it is a rank of this host, or there are files enough.
  std::shared_ptr<File> FileFor(std::int64_t rank);
  // Calls use(descriptor) where there is a file of this rank.
  template <typename Use>
  void WithFile(std::int64_t rank, const Use& use);
  struct RankFile {
    std::int64_t rank = 0;
    std::shared_ptr<File> file;
  };
  // The files of all ranks that this host has copies of, also those that SetAside has taken.
  std::vector<RankFile> AllFiles();
  std::vector<RankFile> OwnFiles() const;  // with the mutex held

  const Descriptor listener_, wake_;
  const std::string token_;
  const std::size_t most_ranks_;
  const std::int64_t most_bytes_;
  std::mutex mutex_;  // guards what follows
  std::int64_t first_own_ = 0;
  std::vector<int> own_;
  std::map<std::int64_t, std::shared_ptr<File>> others_;  // by rank
  std::vector<RankFile> aside_;
  std::list<Peer> peers_;  // of the thread that accepts
  std::thread thread_;
};

// A rank's connection to the server of another host. One thread at a time calls.
class CopyClient {
 public:
  static absl::StatusOr<CopyClient> Connect(const Endpoint& server, const std::string& token,
                                            std::int64_t rank);

  // That host keeps the copy in place of the older one of the rank.
  absl::Status Store(std::int64_t rank, const MemoryCopies& copies, int place);
  // What it has of the rank with this tag, in order of iteration.
  absl::StatusOr<std::vector<MemoryCopies::Kept>> List(std::int64_t rank, const std::string& tag);
  // A copy that a host has, of any rank.
  struct Held {
    std::int64_t rank = 0;
    std::int64_t iteration = 0;
    std::string tag;
    std::string note;
  };
  absl::StatusOr<std::vector<Held>> ListAll();
  // Fills `out` from byte `offset` on of one of these.
  absl::Status Read(const Held& copy, std::int64_t offset, std::span<std::byte> out);
  // Tells the host to forget all copies of other tags, and those that it has set aside.
  absl::Status ForgetOthers(const std::string& tag);
  // Brings a copy of the rank into a file.
  absl::Status Fetch(std::int64_t rank, const std::string& tag, std::int64_t iteration, int file);

 private:
  explicit CopyClient(Link link) : link_(std::move(link)) {}
  absl::StatusOr<WireMessage> Receive(MessageKind expected);
  Link link_;
};

}  // namespace engine::launch
