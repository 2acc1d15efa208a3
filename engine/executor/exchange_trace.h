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
#include "engine/base/hash.h"

namespace engine::executor {

struct TracedBytes {
  Hash128 hash;
  std::int32_t exchange = 0;  // TracingCommunicator::NameOf
  bool got = false;           // else they were given
};

// Around a communicator of a backend that runs everything in turn, so that what an exchange reads is there when it is launched, and what it makes
// when that returns. Prepare's error besides: values with slots, behind whose last row there is whatever was there before.
class TracingCommunicator final : public backend::Communicator {
 public:
  TracingCommunicator(std::unique_ptr<backend::Communicator> inner, const plan::Plan& plan)
      : inner_(std::move(inner)), plan_(plan) {}

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

  // All since the last call.
  std::vector<TracedBytes> Take() { return std::exchange(traced_, {}); }
  // In words, with the ranks that take part.
  const std::string& NameOf(std::int32_t exchange) const {
    return names_[static_cast<std::size_t>(exchange)];
  }

  // For faults that are made on purpose: what this rank gets next, as if it had been altered on its way. False: it was left as it was,
  // and what comes then is offered.
  using Spoil = std::function<bool(std::span<std::byte> bytes, DType dtype)>;
  void SpoilNext(Spoil spoil) { spoil_ = std::move(spoil); }

 private:
  class Traced;
  std::int32_t AddName(std::string name);
  // The number of a transfer's name, which is made when the transfer is first met.
  std::int32_t NameOfTransfer(std::int64_t peer, std::int32_t channel, bool got);
  void Note(std::span<const std::byte> bytes, std::int32_t exchange, bool got);
  void NoteGot(std::span<std::byte> bytes, DType dtype, std::int32_t exchange);

  const std::unique_ptr<backend::Communicator> inner_;
  const plan::Plan& plan_;
  std::vector<std::string> names_;
  std::map<std::tuple<std::int64_t, std::int32_t, bool>, std::int32_t> transfers_;
  std::vector<TracedBytes> traced_;
  Spoil spoil_;
};

}  // namespace engine::executor
