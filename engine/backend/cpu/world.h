// Communication between virtual ranks, the threads of one process, through shared memory. Sums are taken in
// order of rank, so every member of a group gets the same bits.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <vector>

#include "engine/backend/backend.h"

namespace engine::backend::cpu {

// A meeting point of the members of one group: everyone shows an address, waits for the others, reads theirs.
class Meeting {
 public:
  explicit Meeting(std::int64_t members) : shown_(static_cast<size_t>(members), nullptr) {}

  void Show(std::int64_t index, const void* data) { shown_[static_cast<size_t>(index)] = data; }
  const void* Shown(std::int64_t index) const { return shown_[static_cast<size_t>(index)]; }
  // Returns when all members have called it, or with an error once the world is aborted.
  absl::Status Wait();
  void Abort();

 private:
  std::vector<const void*> shown_;
  std::mutex mutex_;
  std::condition_variable all_here_;
  size_t waiting_ = 0;
  std::int64_t generation_ = 0;
  bool aborted_ = false;
};

// Bytes offered by one rank to another on one channel.
class Mailbox {
 public:
  std::int64_t Post(const std::byte* data, std::int64_t bytes);
  absl::Status WaitTaken(std::int64_t ticket);
  absl::Status Take(std::byte* data, std::int64_t bytes);
  void Abort();

 private:
  struct Offer {
    const std::byte* data;
    std::int64_t bytes;
  };
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Offer> offers_;
  size_t taken_ = 0;
  std::int64_t forgotten_ = 0;  // offers taken and dropped from the vector
  bool aborted_ = false;
};

class World {
 public:
  // The meeting point of these ranks; made on first use. Thread safe.
  Meeting* MeetingOf(const std::vector<std::int64_t>& ranks);
  Mailbox* MailboxOf(std::int64_t from, std::int64_t to, std::int32_t channel);
  // Every wait, now and later, returns an error: a rank has failed.
  void Abort();

 private:
  std::mutex mutex_;
  std::map<std::vector<std::int64_t>, std::unique_ptr<Meeting>> meetings_;
  std::map<std::tuple<std::int64_t, std::int64_t, std::int32_t>, std::unique_ptr<Mailbox>> mailboxes_;
  bool aborted_ = false;
};

class CpuCommunicator : public Communicator {
 public:
  CpuCommunicator(World* world, std::int64_t rank) : world_(*world), rank_(rank) {}

  absl::StatusOr<std::unique_ptr<Launch>> Prepare(CollectiveArgs args) override;
  absl::StatusOr<std::int64_t> Send(std::int64_t peer, std::int32_t channel, const std::byte* data,
                                    std::int64_t bytes, std::int32_t stream, std::int64_t there) override;
  absl::Status WaitSent(std::int64_t peer, std::int32_t channel, std::int64_t ticket) override;
  absl::Status Receive(std::int64_t peer, std::int32_t channel, std::byte* data, std::int64_t bytes,
                       std::int32_t stream) override;

 private:
  World& world_;
  std::int64_t rank_;
};

}  // namespace engine::backend::cpu
