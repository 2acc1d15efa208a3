#include "engine/executor/exchange_trace.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
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
         std::span<std::byte> got, DType dtype, std::int32_t exchange)
      : LaunchAround(std::move(inner)),
        trace_(*trace),
        given_(given),
        got_(got),
        dtype_(dtype),
        exchange_(exchange) {}

  absl::Status Run(const backend::KernelContext& context) override {
    trace_.Note(given_, exchange_, /*got=*/false);
    RETURN_IF_ERROR(LaunchAround::Run(context));
    trace_.NoteGot(got_, dtype_, exchange_);
    return absl::OkStatus();
  }

 private:
  TracingCommunicator& trace_;
  const std::span<const std::byte> given_;
  const std::span<std::byte> got_;
  const DType dtype_;
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
  const bool in_parts = instruction.IsBucketExchange();
  const bool gathers = in_parts && instruction.collective() == plan::Collective::kAllGather;
  const bool scatters = in_parts && instruction.collective() == plan::Collective::kReduceScatter;
  const std::span<std::byte> given = gathers ? OwnPart(args.input, args) : BytesOf(args.input);
  const std::span<std::byte> got = scatters ? OwnPart(args.output, args) : BytesOf(args.output);
  const DType dtype = args.output.dtype;
  std::string name = fmt::format("{} of ranks {}", instruction.name, fmt::join(args.group, ", "));
  ASSIGN_OR_RETURN(std::unique_ptr<backend::Launch> launch, inner_->Prepare(std::move(args)));
  return std::make_unique<Traced>(std::move(launch), this, given, got, dtype, AddName(std::move(name)));
}

absl::StatusOr<std::int64_t> TracingCommunicator::Send(std::int64_t peer, std::int32_t channel,
                                                       const std::byte* data, std::int64_t bytes,
                                                       std::int32_t stream, std::int64_t there) {
  Note({data, static_cast<std::size_t>(bytes)}, NameOfTransfer(peer, channel, /*got=*/false), /*got=*/false);
  return inner_->Send(peer, channel, data, bytes, stream, there);
}

absl::Status TracingCommunicator::Receive(std::int64_t peer, std::int32_t channel, std::byte* data,
                                          std::int64_t bytes, std::int32_t stream) {
  RETURN_IF_ERROR(inner_->Receive(peer, channel, data, bytes, stream));
  NoteGot({data, static_cast<std::size_t>(bytes)}, DType::kF32, NameOfTransfer(peer, channel, /*got=*/true));
  return absl::OkStatus();
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

void TracingCommunicator::Note(std::span<const std::byte> bytes, std::int32_t exchange, bool got) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  traced_.push_back({.hash = HashOf(text), .exchange = exchange, .got = got});
}

void TracingCommunicator::NoteGot(std::span<std::byte> bytes, DType dtype, std::int32_t exchange) {
  if (spoil_ && !bytes.empty() && spoil_(bytes, dtype)) spoil_ = nullptr;
  Note(bytes, exchange, /*got=*/true);
}

}  // namespace engine::executor
