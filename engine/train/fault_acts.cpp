#include "engine/train/fault_acts.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>

#include "engine/base/philox.h"

namespace engine::train {
namespace {

using Kind = Fault::Kind;

// A tensor, or a part of it, as this rank holds it.
struct Elements {
  std::byte* data = nullptr;  // in the arena
  DType dtype = DType::kF32;
  std::int64_t count = 0;
};

std::optional<Elements> WeightsOf(const executor::RankExecutor& rank, std::int32_t parameter) {
  for (const executor::LocalTensor& tensor : rank.Parameters()) {
    if (tensor.parameter != parameter || tensor.view.data == nullptr) continue;
    return Elements{tensor.view.as<std::byte>(), tensor.view.dtype, tensor.view.shape.elements()};
  }
  for (const executor::OptimizerRange& range : rank.OptimizerState()) {
    if (range.parameter != parameter || range.weights == nullptr) continue;
    return Elements{range.weights, range.weight_dtype, range.end - range.begin};
  }
  return std::nullopt;
}

std::optional<Elements> GradientOf(const executor::RankExecutor& rank, std::int32_t parameter) {
  for (const executor::OptimizerRange& range : rank.OptimizerState()) {
    if (range.parameter == parameter)
      return Elements{range.gradient, range.gradient_dtype, range.end - range.begin};
  }
  return std::nullopt;
}

// The bits of a not-a-number with nothing else set.
std::uint64_t NanBits(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return 0x7FC0;
    case DType::kF16:
      return 0x7E00;
    case DType::kF64:
      return 0x7FF8000000000000;
    default:
      return 0x7FC00000;
  }
}

// An element, and how its bits are changed, as the fault's seed draws them.
struct Draw {
  std::int64_t offset_bytes = 0;
  std::uint64_t flipped = 0;  // 0: it becomes a NaN

  Draw(const Fault& fault, std::int64_t count, DType dtype) {
    const auto draws = Philox4x32(MakePhiloxKey(static_cast<std::uint64_t>(fault.seed), "fault"), 0, 0);
    const std::uint64_t drawn = (std::uint64_t{draws[0]} << 32) | draws[1];
    const auto bits = 8 * static_cast<std::uint32_t>(SizeOf(dtype));
    offset_bytes = static_cast<std::int64_t>(drawn % static_cast<std::uint64_t>(count)) * SizeOf(dtype);
    if (fault.kind == Kind::kBitflip) flipped = std::uint64_t{1} << (draws[2] % bits);
  }
  // The element's bytes, little-endian.
  std::uint64_t Apply(std::uint64_t bits, DType dtype) const {
    return flipped == 0 ? NanBits(dtype) : bits ^ flipped;
  }
};

}  // namespace

void DropConnections() {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", error)) {
    const std::string name = entry.path().filename();
    int descriptor = -1;
    std::from_chars(name.data(), name.data() + name.size(), descriptor);
    sockaddr_storage peer{};
    socklen_t size = sizeof(peer);
    if (getpeername(descriptor, reinterpret_cast<sockaddr*>(&peer), &size) != 0) continue;
    if (peer.ss_family == AF_INET || peer.ss_family == AF_INET6) shutdown(descriptor, SHUT_RDWR);
  }
}

void MakeProcessFault(const Fault& fault) {
  switch (fault.kind) {
    case Kind::kKill:
      kill(getpid(), SIGKILL);
      return;
    case Kind::kStop:
      kill(getpid(), SIGSTOP);
      return;
    case Kind::kExit:
      _exit(static_cast<int>(fault.number));
    case Kind::kThrow:
      throw std::runtime_error("--fault " + TextOf(fault));
    case Kind::kHang:
      std::this_thread::sleep_for(std::chrono::duration<double>(fault.number));
      return;
    case Kind::kDropConnection:
      return DropConnections();
    default:
      return;
  }
}

absl::Status SpoilTensor(const Fault& fault, executor::RankExecutor& rank) {
  if (fault.IsOfReceived()) {
    ENGINE_CHECK(rank.trace() != nullptr, "nothing that rank {} gets is traced", fault.rank);
    rank.trace()->SpoilNext([fault](std::span<std::byte> received, DType dtype) {
      if (fault.kind == Kind::kNan && dtype == DType::kI32) return false;  // experts' numbers
      const std::int64_t bytes = SizeOf(dtype);
      const Draw draw(fault, std::ssize(received) / bytes, dtype);
      std::byte* const at = received.data() + draw.offset_bytes;
      std::uint64_t bits = 0;
      std::memcpy(&bits, at, static_cast<std::size_t>(bytes));
      bits = draw.Apply(bits, dtype);
      std::memcpy(at, &bits, static_cast<std::size_t>(bytes));
      return true;
    });
    return absl::OkStatus();
  }
  const bool of_gradient = fault.of_gradient || (fault.tensor.empty() && fault.at == Fault::At::kUpdate);
  std::optional<Elements> elements;
  for (const executor::LocalTensor& tensor : rank.Parameters()) {
    if (!fault.tensor.empty() && rank.NameOf(tensor.parameter) != fault.tensor) continue;
    elements = of_gradient ? GradientOf(rank, tensor.parameter) : WeightsOf(rank, tensor.parameter);
    if (elements) break;
  }
  if (!elements || elements->count == 0) {
    return FailedPrecondition("--fault {}: rank {} holds no element of it", TextOf(fault), fault.rank);
  }
  const Draw draw(fault, elements->count, elements->dtype);
  const std::int64_t bytes = SizeOf(elements->dtype);
  std::byte* const at = elements->data + draw.offset_bytes;
  std::uint64_t bits = 0;
  RETURN_IF_ERROR(rank.backend().Download(&bits, at, bytes));
  bits = draw.Apply(bits, elements->dtype);
  return rank.backend().Upload(at, &bits, bytes);
}

}  // namespace engine::train
