// Hashes of all bytes that a rank gives to other ranks and gets from them, in the order of its program. The same program on the same numbers leaves the
// same hashes, so where two runs of an iteration differ, each rank's first difference says on which side the fault was: a rank that gave
// other bits, though it had got the same till then, computed or stored something wrong.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/backend/backend.h"

namespace engine::executor {

struct TracedBytes {
  std::uint64_t hash = 0;     // Backend::Hash
  std::int32_t exchange = 0;  // TracingCommunicator::NameOf
  bool got = false;           // else they were given
};

// Around a communicator. The backend hashes what an exchange reads before it on its stream, and what it made behind Launch::Finish on the
// computation's stream, so each exchange has to be finished. Prepare's error besides: values with slots, behind whose last row there is whatever
// was there before; sums that their readers make (plan::Addition).
class TracingCommunicator final : public backend::Communicator {
 public:
  // `backend` must outlive it. It hashes up to `most` times between two calls of Take.
  TracingCommunicator(std::unique_ptr<backend::Communicator> inner, const plan::Plan& plan,
                      backend::Backend* backend, std::int64_t most)
      : inner_(std::move(inner)), plan_(plan), backend_(*backend), most_(most) {}

  absl::StatusOr<std::unique_ptr<backend::Launch>> Prepare(backend::CollectiveArgs args) override;
  absl::Status PrepareTransfer(std::int64_t peer, std::int32_t stream, bool push) override {
    return inner_->PrepareTransfer(peer, stream, push);
  }
  absl::Status Connect() override { return inner_->Connect(); }
  std::string At() const override { return inner_->At(); }
  absl::StatusOr<std::int64_t> Send(std::int64_t peer, std::int32_t channel, const std::byte* data,
                                    std::int64_t bytes, std::int32_t stream, std::int64_t there) override;
  absl::Status WaitSent(std::int64_t peer, std::int32_t channel, std::int64_t ticket) override {
    return inner_->WaitSent(peer, channel, ticket);
  }
  absl::Status Receive(std::int64_t peer, std::int32_t channel, std::byte* data, std::int64_t bytes,
                       std::int32_t stream) override;

  // The notes of one iteration, whose hashes are on their way to the host.
  struct Taken {
    std::int64_t ticket = -1;  // Backend::Read
    std::vector<TracedBytes> traced = {};
  };
  // All since the last call, after all other streams have joined that of computation. Wait: with their hashes.
  absl::StatusOr<Taken> Take();
  absl::StatusOr<std::vector<TracedBytes>> Wait(Taken taken) const;
  // Forgets all since the last call.
  void Drop() { traced_.clear(); }
  // In words, with the ranks that take part.
  const std::string& NameOf(std::int32_t exchange) const {
    return names_[static_cast<std::size_t>(exchange)];
  }

  // For faults that are made on purpose: what this rank gets next, as if it had been altered on its way. It is offered in the host's memory. False: it
  // was left as it was, and what comes then is offered.
  using Spoil = std::function<bool(std::span<std::byte> bytes, DType dtype)>;
  void SpoilNext(Spoil spoil) { spoil_ = std::move(spoil); }

 private:
  class Traced;
  std::int32_t AddName(std::string name);
  // The number of a transfer's name, which is made when the transfer is first met.
  std::int32_t NameOfTransfer(std::int64_t peer, std::int32_t channel, bool got);
  // Notes a hash of what the bytes are when all has run that was enqueued on the stream.
  absl::Status Note(std::span<const std::byte> bytes, std::int32_t stream, std::int32_t exchange, bool got);
  absl::Status NoteGot(std::span<std::byte> bytes, DType dtype, std::int32_t stream, std::int32_t exchange);
  absl::Status OfferToSpoil(std::span<std::byte> bytes, DType dtype, std::int32_t stream);

  const std::unique_ptr<backend::Communicator> inner_;
  const plan::Plan& plan_;
  backend::Backend& backend_;
  const std::int64_t most_;
  std::vector<std::string> names_;
  std::map<std::tuple<std::int64_t, std::int32_t, bool>, std::int32_t> transfers_;
  std::vector<TracedBytes> traced_;
  Spoil spoil_;
};

}  // namespace engine::executor
