// A communicator that says what it waits for, so that a run that hangs can be explained.
#pragma once

#include <memory>

#include "engine/backend/backend.h"
#include "engine/launch/rendezvous.h"

namespace engine::cli {

class WatchedCommunicator final : public backend::Communicator {
 public:
  WatchedCommunicator(std::unique_ptr<backend::Communicator> inner, launch::Client* client)
      : inner_(std::move(inner)), client_(*client) {}
  ~WatchedCommunicator() override { client_.Watch(nullptr); }

  absl::StatusOr<std::unique_ptr<backend::Launch>> Prepare(backend::CollectiveArgs args) override;
  absl::Status PrepareTransfer(std::int64_t peer, std::int32_t stream, bool push) override {
    return inner_->PrepareTransfer(peer, stream, push);
  }
  absl::Status Connect() override;
  bool recordable() const override { return inner_->recordable(); }
  absl::StatusOr<std::int64_t> Send(std::int64_t peer, std::int32_t channel, const std::byte* data,
                                    std::int64_t bytes, std::int32_t stream, std::int64_t there) override;
  absl::Status WaitSent(std::int64_t peer, std::int32_t channel, std::int64_t ticket) override;
  absl::Status Receive(std::int64_t peer, std::int32_t channel, std::byte* data, std::int64_t bytes,
                       std::int32_t stream) override;

 private:
  std::unique_ptr<backend::Communicator> inner_;
  launch::Client& client_;
};

}  // namespace engine::cli
