#include "engine/train/fault_acts.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <filesystem>
#include <optional>
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

// The number of a not-a-number with nothing else set, as the type's bits.
std::uint32_t NanBits(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return 0x7FC0;
    case DType::kF16:
      return 0x7E00;
    default:
      return 0x7FC00000;
  }
}

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
  const auto draws = Philox4x32(MakePhiloxKey(static_cast<std::uint64_t>(fault.seed), "fault"), 0, 0);
  const std::uint64_t drawn = (std::uint64_t{draws[0]} << 32) | draws[1];
  const std::int64_t bytes = SizeOf(elements->dtype);
  std::byte* const at =
      elements->data + static_cast<std::int64_t>(drawn % static_cast<std::uint64_t>(elements->count)) * bytes;
  std::uint32_t bits = 0;  // little-endian, as the element's bytes
  RETURN_IF_ERROR(rank.backend().Download(&bits, at, bytes));
  bits = fault.kind == Kind::kNan
             ? NanBits(elements->dtype)
             : bits ^ (std::uint32_t{1} << (draws[2] % (8 * static_cast<std::uint32_t>(bytes))));
  return rank.backend().Upload(at, &bits, bytes);
}

}  // namespace engine::train
