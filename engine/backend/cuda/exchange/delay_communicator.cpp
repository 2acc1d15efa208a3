#include "engine/backend/cuda/exchange/delay_communicator.h"

#include <charconv>
#include <utility>

#include "engine/backend/cuda/kernels/time.h"

namespace engine::backend::cuda {
namespace {

constexpr std::int64_t kMostNs = 300'000;

class DelayedLaunch final : public LaunchAround {
 public:
  DelayedLaunch(std::unique_ptr<Launch> inner, const DelayCommunicator* communicator,
                const plan::Instruction& instruction)
      : LaunchAround(std::move(inner)),
        communicator_(*communicator),
        stream_(instruction.stream),
        direct_(instruction.direct()) {}

  absl::Status Run(const KernelContext& context) override {
    RETURN_IF_ERROR(communicator_.Delay(stream_));
    RETURN_IF_ERROR(LaunchAround::Run(context));
    // A direct sum's reader may begin when the other rank's has long ended, and that rank is further.
    return direct_ ? communicator_.Delay(stream_) : absl::OkStatus();
  }
  absl::Status Release() override {
    RETURN_IF_ERROR(communicator_.Delay(stream_));
    return LaunchAround::Release();
  }

 private:
  const DelayCommunicator& communicator_;
  const std::int32_t stream_;
  const bool direct_;
};

}  // namespace

DelayCommunicator::DelayCommunicator(std::unique_ptr<Communicator> inner, Device* device, std::uint32_t seed,
                                     std::int64_t rank)
    : inner_(std::move(inner)),
      device_(*device),
      seed_((std::uint64_t{seed} << 32) + static_cast<std::uint64_t>(rank)) {}

DelayCommunicator::~DelayCommunicator() { cudaFree(count_); }

absl::StatusOr<std::unique_ptr<Launch>> DelayCommunicator::Prepare(CollectiveArgs args) {
  const plan::Instruction& instruction = *args.instruction;
  ASSIGN_OR_RETURN(std::unique_ptr<Launch> inner, inner_->Prepare(std::move(args)));
  return std::make_unique<DelayedLaunch>(std::move(inner), this, instruction);
}

absl::Status DelayCommunicator::Connect() {
  RETURN_IF_CUDA_ERROR(cudaMalloc(reinterpret_cast<void**>(&count_), sizeof(*count_)));
  RETURN_IF_CUDA_ERROR(cudaMemset(count_, 0, sizeof(*count_)));
  RETURN_IF_CUDA_ERROR(cudaDeviceSynchronize());
  return inner_->Connect();
}

absl::StatusOr<std::int64_t> DelayCommunicator::Send(std::int64_t peer, std::int32_t channel,
                                                     const std::byte* data, std::int64_t bytes,
                                                     std::int32_t stream, std::int64_t there) {
  RETURN_IF_ERROR(Delay(stream));
  return inner_->Send(peer, channel, data, bytes, stream, there);
}

absl::Status DelayCommunicator::Receive(std::int64_t peer, std::int32_t channel, std::byte* data,
                                        std::int64_t bytes, std::int32_t stream) {
  RETURN_IF_ERROR(Delay(stream));
  return inner_->Receive(peer, channel, data, bytes, stream);
}

absl::Status DelayCommunicator::Delay(std::int32_t stream) const {
  HoldUp(seed_, count_, kMostNs, device_.stream(stream));
  return ToStatus(cudaGetLastError(), "delay");
}

absl::StatusOr<std::uint32_t> ParseDelaySeed(std::string_view text) {
  std::uint32_t seed = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seed);
  if (error == std::errc() && end == text.data() + text.size()) return seed;
  return InvalidArgument("ENGINE_TEST_DELAY must be a number from 0 to 4294967295, found '{}'", text);
}

}  // namespace engine::backend::cuda
