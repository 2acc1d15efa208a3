#include "engine/cli/watched_communicator.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>
#include <utility>

namespace engine::cli {
namespace {

class WatchedLaunch final : public backend::LaunchAround {
 public:
  WatchedLaunch(std::unique_ptr<backend::Launch> inner, launch::Client* client, const std::string& name,
                const std::string& ranks)
      : LaunchAround(std::move(inner)),
        client_(*client),
        waiting_(fmt::format("{}, with ranks {}", name, ranks)),
        done_("what comes after " + name) {}

  absl::Status Run(const backend::KernelContext& context) override {
    client_.Progress(waiting_, /*waits=*/true);
    absl::Status status = LaunchAround::Run(context);
    if (status.ok()) client_.Progress(done_);
    return status;
  }

 private:
  launch::Client& client_;
  const std::string waiting_, done_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<backend::Launch>> WatchedCommunicator::Prepare(backend::CollectiveArgs args) {
  const std::string name = args.instruction->name;
  const std::string ranks = fmt::format("{}", fmt::join(args.group, ", "));
  ASSIGN_OR_RETURN(std::unique_ptr<backend::Launch> inner, inner_->Prepare(std::move(args)));
  return std::make_unique<WatchedLaunch>(std::move(inner), &client_, name, ranks);
}

absl::Status WatchedCommunicator::Connect() {
  client_.Begin(launch::Work::kConnecting, "connecting to the other ranks");
  RETURN_IF_ERROR(inner_->Connect());
  client_.Watch([this] { return inner_->At(); });
  return absl::OkStatus();
}

absl::StatusOr<std::int64_t> WatchedCommunicator::Send(std::int64_t peer, std::int32_t channel,
                                                       const std::byte* data, std::int64_t bytes,
                                                       std::int32_t stream, std::int64_t there) {
  return inner_->Send(peer, channel, data, bytes, stream, there);
}

absl::Status WatchedCommunicator::WaitSent(std::int64_t peer, std::int32_t channel, std::int64_t ticket) {
  client_.Progress(fmt::format("transfer {}, to rank {}", channel, peer), /*waits=*/true);
  return inner_->WaitSent(peer, channel, ticket);
}

absl::Status WatchedCommunicator::Receive(std::int64_t peer, std::int32_t channel, std::byte* data,
                                          std::int64_t bytes, std::int32_t stream) {
  client_.Progress(fmt::format("transfer {}, from rank {}", channel, peer), /*waits=*/true);
  RETURN_IF_ERROR(inner_->Receive(peer, channel, data, bytes, stream));
  client_.Progress(fmt::format("what comes after transfer {}", channel));
  return absl::OkStatus();
}

}  // namespace engine::cli
