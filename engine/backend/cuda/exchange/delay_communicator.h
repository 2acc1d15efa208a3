// Exchange that begins late, each time by another pseudo-random time, on every rank by another: for tests,
// which find by it what holds only as long as ranks keep step. Changes no bit of a run that is right.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "engine/backend/backend.h"
#include "engine/backend/cuda/device/device.h"

namespace engine::backend::cuda {

class DelayCommunicator final : public Communicator {
 public:
  // `device` must outlive it.
  DelayCommunicator(std::unique_ptr<Communicator> inner, Device* device, std::uint32_t seed,
                    std::int64_t rank);
  ~DelayCommunicator() override;

  absl::StatusOr<std::unique_ptr<Launch>> Prepare(CollectiveArgs args) override;
  absl::Status PrepareTransfer(std::int64_t peer, std::int32_t stream, bool push) override {
    return inner_->PrepareTransfer(peer, stream, push);
  }
  absl::Status Connect() override;
  bool recordable() const override { return inner_->recordable(); }
  std::string At() const override { return inner_->At(); }

  absl::StatusOr<std::int64_t> Send(std::int64_t peer, std::int32_t channel, const std::byte* data,
                                    std::int64_t bytes, std::int32_t stream, std::int64_t there) override;
  absl::Status WaitSent(std::int64_t peer, std::int32_t channel, std::int64_t ticket) override {
    return inner_->WaitSent(peer, channel, ticket);
  }
  absl::Status Receive(std::int64_t peer, std::int32_t channel, std::byte* data, std::int64_t bytes,
                       std::int32_t stream) override;

  // What is enqueued on the stream of the program from now on waits. After Connect.
  absl::Status Delay(std::int32_t stream) const;

 private:
  const std::unique_ptr<Communicator> inner_;
  const Device& device_;
  const std::uint64_t seed_;
  std::uint32_t* count_ = nullptr;  // on the device: delays so far
};

// The number in the environment variable ENGINE_TEST_DELAY.
absl::StatusOr<std::uint32_t> ParseDelaySeed(std::string_view text);

}  // namespace engine::backend::cuda
