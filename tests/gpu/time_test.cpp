// The GPU's clock: times that an iteration notes, recorded and of two iterations under way, and delays.
#include <doctest/doctest.h>

#include <array>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/backend/cuda/exchange/delay_communicator.h"
#include "engine/backend/cuda/kernels/time.h"
#include "engine/backend/cuda/launch/cuda_backend.h"

namespace engine::gpu_test {
namespace {

using backend::cuda::CudaBackend;
using Times = std::array<std::int64_t, backend::kStamps>;

constexpr double kNsPerMs = 1e6;

std::unique_ptr<CudaBackend> Open() {
  auto backend = CudaBackend::Create({});
  REQUIRE_MESSAGE(backend.ok(), Message(backend.status()));
  return *std::move(backend);
}

Times Wait(CudaBackend& backend, std::int64_t ticket) {
  Times times{};
  REQUIRE(backend.WaitRead(ticket, times.data()).ok());
  return times;
}

// Between the two notes of an iteration.
double Between(const Times& times) {
  return static_cast<double>(times[backend::kUpdateBegins] - times[backend::kIterationBegins]) / kNsPerMs;
}

// Milliseconds that so many delays take, one after the other.
double HeldUp(CudaBackend& backend, std::uint64_t seed, int delays, std::int64_t most_ns) {
  std::uint32_t* count = nullptr;
  REQUIRE(cudaMalloc(reinterpret_cast<void**>(&count), sizeof(*count)) == cudaSuccess);
  REQUIRE(cudaMemset(count, 0, sizeof(*count)) == cudaSuccess);
  const auto once = [&]() -> absl::Status {
    for (int i = 0; i < delays; ++i) backend::cuda::HoldUp(seed, count, most_ns, backend.device().compute());
    return backend.NoteTime(backend::kUpdateBegins);
  };
  REQUIRE(once().ok());  // a kernel is loaded when it is first launched
  auto recorded = backend.Record(once);
  REQUIRE(recorded.ok());
  double all_ms = 0;
  double last_ms = 0;
  for (int i = 0; i < 3; ++i) {
    REQUIRE(backend.NoteTime(backend::kIterationBegins).ok());
    REQUIRE((*recorded)->Run({}).ok());
    const auto ticket = backend.ReadTimes();
    REQUIRE(ticket.ok());
    const double ms = Between(Wait(backend, *ticket));
    CHECK(ms != last_ms);  // each replay draws anew
    last_ms = ms;
    all_ms += ms;
  }
  REQUIRE(cudaFree(count) == cudaSuccess);
  return all_ms / 3;
}

}  // namespace

TEST_CASE("gpu time: what passes on the device between two notes, as the host's clock has it") {
  const auto backend = Open();
  constexpr auto kPause = std::chrono::milliseconds(50);
  const auto start = std::chrono::steady_clock::now();
  REQUIRE(backend->NoteTime(backend::kIterationBegins).ok());
  REQUIRE(backend->Synchronize().ok());
  std::this_thread::sleep_for(kPause);
  REQUIRE(backend->NoteTime(backend::kUpdateBegins).ok());
  const auto ticket = backend->ReadTimes();
  REQUIRE(ticket.ok());
  const Times times = Wait(*backend, *ticket);
  const std::chrono::duration<double, std::milli> all = std::chrono::steady_clock::now() - start;
  constexpr double kStepMs = 2e-3;  // two steps of the GPU's clock
  CHECK(Between(times) >= static_cast<double>(kPause.count()) - kStepMs);
  CHECK(Between(times) <= all.count() + kStepMs);
}

TEST_CASE("gpu time: each of two iterations under way has its own times, recorded or not") {
  const auto backend = Open();
  std::uint32_t* count = nullptr;
  REQUIRE(cudaMalloc(reinterpret_cast<void**>(&count), sizeof(*count)) == cudaSuccess);
  REQUIRE(cudaMemset(count, 0, sizeof(*count)) == cudaSuccess);
  constexpr std::int64_t kMostNs = 4'000'000;
  const auto work = [&]() -> absl::Status {
    backend::cuda::HoldUp(7, count, kMostNs, backend->device().compute());
    RETURN_IF_ERROR(backend->NoteTime(backend::kUpdateBegins));
    backend::cuda::HoldUp(7, count, kMostNs, backend->device().compute());
    return absl::OkStatus();
  };
  REQUIRE(work().ok());
  auto recorded = backend->Record(work);
  REQUIRE(recorded.ok());
  for (const bool replayed : {false, true}) {
    CAPTURE(replayed);
    std::vector<std::int64_t> tickets;
    for (int i = 0; i < 2; ++i) {
      REQUIRE(backend->NoteTime(backend::kIterationBegins).ok());
      REQUIRE((replayed ? (*recorded)->Run({}) : work()).ok());
      const auto ticket = backend->ReadTimes();
      REQUIRE(ticket.ok());
      tickets.push_back(*ticket);
    }
    const Times first = Wait(*backend, tickets[0]);
    const Times second = Wait(*backend, tickets[1]);
    CHECK(first[backend::kIterationBegins] < first[backend::kUpdateBegins]);
    CHECK(first[backend::kUpdateBegins] < second[backend::kIterationBegins]);
    CHECK(second[backend::kIterationBegins] < second[backend::kUpdateBegins]);
    CHECK(Between(first) <= kMostNs / kNsPerMs + 1);  // less than 1 ms for launches
  }
  REQUIRE(cudaFree(count) == cudaSuccess);
}

TEST_CASE("gpu time: delays are drawn anew in each execution, evenly up to the most, by the seed") {
  const auto backend = Open();
  constexpr int kDelays = 300;
  constexpr std::int64_t kMostNs = 300'000;
  constexpr double kMeanMs = kMostNs / kNsPerMs / 2;
  const double one = HeldUp(*backend, 1, kDelays, kMostNs) / kDelays;
  const double other = HeldUp(*backend, 2, kDelays, kMostNs) / kDelays;
  // 900 draws: their mean has a deviation of 0.3 ms / sqrt(12 × 900) = 0.003 ms; a launch takes some μs.
  CHECK(one > kMeanMs - 0.015);
  CHECK(one < kMeanMs + 0.03);
  CHECK(other > kMeanMs - 0.015);
  CHECK(other < kMeanMs + 0.03);
  CHECK(one != other);
}

TEST_CASE("gpu time: a seed of delays is a number") {
  CHECK(backend::cuda::ParseDelaySeed("17").value() == 17);
  for (const char* text : {"", "x", "1x", "-1", "4294967296"}) {
    CAPTURE(text);
    CHECK(Message(backend::cuda::ParseDelaySeed(text).status()) ==
          std::string("ENGINE_TEST_DELAY must be a number from 0 to 4294967295, found '") + text + "'");
  }
}

}  // namespace engine::gpu_test
