#include "engine/executor/exchange_trace.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace engine::executor {
namespace {

std::span<std::byte> BytesOf(const backend::TensorView& view) {
  return {view.as<std::byte>(), static_cast<std::size_t>(view.shape.elements() * SizeOf(view.dtype))};
}

// This rank's part of a buffer that is cut into one part for each member. It alone counts in what an all-gather reads and in what a
// reduce-scatter makes.
std::span<std::byte> OwnPart(const backend::TensorView& view, const backend::CollectiveArgs& args) {
  const auto members = static_cast<std::int64_t>(args.group.size());
  const std::int64_t elements = view.shape.elements();
  const std::int64_t begin = elements * args.index / members;
  const std::int64_t end = elements * (args.index + 1) / members;
  const std::int64_t size = SizeOf(view.dtype);
  return BytesOf(view).subspan(static_cast<std::size_t>(begin * size),
                               static_cast<std::size_t>((end - begin) * size));
}

}  // namespace

// Hashes what goes into an exchange and what comes out of it.
class TracingCommunicator::Traced final : public backend::LaunchAround {
 public:
  Traced(std::unique_ptr<backend::Launch> inner, TracingCommunicator* trace, std::span<const std::byte> given,
         std::span<std::byte> got, DType dtype, std::int32_t stream, std::int32_t exchange)
      : LaunchAround(std::move(inner)),
        trace_(*trace),
        given_(given),
        got_(got),
        dtype_(dtype),
        stream_(stream),
        exchange_(exchange) {}

  absl::Status Run(const backend::KernelContext& context) override {
    RETURN_IF_ERROR(trace_.Note(given_, stream_, exchange_, /*got=*/false));
    return LaunchAround::Run(context);
  }
  absl::Status Finish() override {
    RETURN_IF_ERROR(LaunchAround::Finish());
    return trace_.NoteGot(got_, dtype_, plan::kComputeStream, exchange_);
  }

 private:
  TracingCommunicator& trace_;
  const std::span<const std::byte> given_;
  const std::span<std::byte> got_;
  const DType dtype_;
  const std::int32_t stream_;
  const std::int32_t exchange_;
};

absl::StatusOr<std::unique_ptr<backend::Launch>> TracingCommunicator::Prepare(backend::CollectiveArgs args) {
  const auto has_slots = [&](const plan::BufferRef& ref) {
    return ref.value >= 0 && plan_.values[static_cast<std::size_t>(ref.value)].layout.dims().HasSlots();
  };
  const plan::Instruction& instruction = *args.instruction;
  if (!instruction.Exchanges()) return inner_->Prepare(std::move(args));
  if (std::ranges::any_of(instruction.inputs, has_slots) ||
      std::ranges::any_of(instruction.outputs, has_slots)) {
    return FailedPrecondition(
        "{}: rows of experts that ranks exchange cannot be hashed, as behind the last one there is "
        "whatever was there before",
        instruction.name);
  }
  if (instruction.LeavesAddition())
    return FailedPrecondition("{}: a sum that its reader makes cannot be hashed", instruction.name);
  const bool in_parts = instruction.IsBucketExchange();
  const bool gathers = in_parts && instruction.collective() == plan::Collective::kAllGather;
  const bool scatters = in_parts && instruction.collective() == plan::Collective::kReduceScatter;
  const std::span<std::byte> given = gathers ? OwnPart(args.input, args) : BytesOf(args.input);
  const std::span<std::byte> got = scatters ? OwnPart(args.output, args) : BytesOf(args.output);
  const DType dtype = args.output.dtype;
  std::string name = fmt::format("{} of ranks {}", instruction.name, fmt::join(args.group, ", "));
  ASSIGN_OR_RETURN(std::unique_ptr<backend::Launch> launch, inner_->Prepare(std::move(args)));
  return std::make_unique<Traced>(std::move(launch), this, given, got, dtype, instruction.stream,
                                  AddName(std::move(name)));
}

absl::StatusOr<std::int64_t> TracingCommunicator::Send(std::int64_t peer, std::int32_t channel,
                                                       const std::byte* data, std::int64_t bytes,
                                                       std::int32_t stream, std::int64_t there) {
  RETURN_IF_ERROR(Note({data, static_cast<std::size_t>(bytes)}, stream,
                       NameOfTransfer(peer, channel, /*got=*/false), /*got=*/false));
  return inner_->Send(peer, channel, data, bytes, stream, there);
}

absl::Status TracingCommunicator::Receive(std::int64_t peer, std::int32_t channel, std::byte* data,
                                          std::int64_t bytes, std::int32_t stream) {
  RETURN_IF_ERROR(inner_->Receive(peer, channel, data, bytes, stream));
  const plan::Transfer& transfer = plan_.transfers[static_cast<std::size_t>(channel)];
  const DType dtype = plan_.values[static_cast<std::size_t>(transfer.value)].dtype;
  return NoteGot({data, static_cast<std::size_t>(bytes)}, dtype, stream,
                 NameOfTransfer(peer, channel, /*got=*/true));
}

std::int32_t TracingCommunicator::AddName(std::string name) {
  names_.push_back(std::move(name));
  return static_cast<std::int32_t>(names_.size()) - 1;
}

std::int32_t TracingCommunicator::NameOfTransfer(std::int64_t peer, std::int32_t channel, bool got) {
  const auto [found, is_new] = transfers_.try_emplace({peer, channel, got}, 0);
  if (is_new)
    found->second = AddName(fmt::format("transfer {} {} rank {}", channel, got ? "from" : "to", peer));
  return found->second;
}

absl::Status TracingCommunicator::Note(std::span<const std::byte> bytes, std::int32_t stream,
                                       std::int32_t exchange, bool got) {
  const std::int64_t place = std::ssize(traced_);
  ENGINE_CHECK(place < most_, "more than {} exchanges are traced", most_);
  traced_.push_back({.exchange = exchange, .got = got});
  return backend_.Hash(bytes, stream, place);
}

absl::Status TracingCommunicator::NoteGot(std::span<std::byte> bytes, DType dtype, std::int32_t stream,
                                          std::int32_t exchange) {
  if (spoil_ && !bytes.empty()) RETURN_IF_ERROR(OfferToSpoil(bytes, dtype, stream));
  return Note(bytes, stream, exchange, /*got=*/true);
}

absl::Status TracingCommunicator::OfferToSpoil(std::span<std::byte> bytes, DType dtype, std::int32_t stream) {
  if (stream != plan::kComputeStream) {  // that of Download and Upload
    ASSIGN_OR_RETURN(const std::int64_t arrived, backend_.Signal(stream));
    RETURN_IF_ERROR(backend_.Await(plan::kComputeStream, arrived));
  }
  std::vector<std::byte> host(bytes.size());
  RETURN_IF_ERROR(backend_.Download(host.data(), bytes.data(), std::ssize(host)));
  if (!spoil_(host, dtype)) return absl::OkStatus();
  spoil_ = nullptr;
  return backend_.Upload(bytes.data(), host.data(), std::ssize(host));
}

absl::StatusOr<TracingCommunicator::Taken> TracingCommunicator::Take() {
  Taken taken{.traced = std::exchange(traced_, {})};
  if (taken.traced.empty()) return taken;
  ASSIGN_OR_RETURN(taken.ticket, backend_.ReadHashes(std::ssize(taken.traced)));
  return taken;
}

absl::StatusOr<std::vector<TracedBytes>> TracingCommunicator::Wait(Taken taken) const {
  if (taken.traced.empty()) return std::move(taken.traced);
  std::vector<std::uint64_t> hashes(taken.traced.size());
  RETURN_IF_ERROR(backend_.WaitRead(taken.ticket, hashes.data()));
  for (std::size_t i = 0; i < hashes.size(); ++i) taken.traced[i].hash = hashes[i];
  return std::move(taken.traced);
}

}  // namespace engine::executor
