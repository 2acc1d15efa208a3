// Communication of a CPU rank that is a process of its own. The same bits as between threads (world.h):
// members exchange exactly the elements that each needs, then add them up in order of rank.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "engine/backend/backend.h"
#include "engine/backend/cpu/process_world.h"

namespace engine::backend::cpu {

// Used by one thread; ProcessWorld::Abort ends its waits. Outlives what it has prepared.
class ProcessCommunicator final : public Communicator {
 public:
  explicit ProcessCommunicator(ProcessWorld* world) : world_(*world) {}

  // Conversions need member_outputs too.
  absl::StatusOr<std::unique_ptr<Launch>> Prepare(CollectiveArgs args) override;
  absl::StatusOr<std::int64_t> Send(std::int64_t peer, std::int32_t channel, const std::byte* data,
                                    std::int64_t bytes, std::int32_t stream, std::int64_t there) override;
  absl::Status WaitSent(std::int64_t peer, std::int32_t channel, std::int64_t ticket) override;
  absl::Status Receive(std::int64_t peer, std::int32_t channel, std::byte* data, std::int64_t bytes,
                       std::int32_t stream) override;

 private:
  // Bytes on offer. Their number goes ahead of them: Gloo does not tell a receiver how much was sent.
  struct Offer {
    Offer(ProcessWorld* world, std::int64_t peer, const std::byte* data, std::int64_t count);
    std::int64_t bytes;
    Parcel size, content;
  };
  struct Outbox {
    std::deque<std::unique_ptr<Offer>> offers;  // not waited for yet; the last is the one of `last_ticket`
    std::int64_t last_ticket = 0;
  };

  ProcessWorld& world_;
  std::map<std::pair<std::int64_t, std::int32_t>, Outbox> outboxes_;  // by peer and channel
  // Room for what the collective under way sends and gets: they run one at a time.
  std::vector<std::byte> room_;
};

}  // namespace engine::backend::cpu
