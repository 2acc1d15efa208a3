// Host memory to the arena: what is larger than the pinned buffers goes through them in turn.
#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "engine/backend/cuda/launch/cuda_backend.h"

namespace engine::gpu_test {

TEST_CASE("gpu upload: all bytes arrive, and no others change") {
  constexpr std::int64_t kBuffer = std::int64_t{8} << 20;
  constexpr std::int64_t kArena = 8 * kBuffer;
  auto backend = backend::cuda::CudaBackend::Create({});
  REQUIRE_MESSAGE(backend.ok(), Message(backend.status()));
  const auto arena = (*backend)->AllocateArena(kArena);
  REQUIRE_MESSAGE(arena.ok(), Message(arena.status()));
  std::uint32_t round = 0;
  for (const std::int64_t bytes :
       {std::int64_t{1}, kBuffer - 1, kBuffer, kBuffer + 1, 2 * kBuffer, 5 * kBuffer + 12345}) {
    CAPTURE(bytes);
    ++round;
    REQUIRE((*backend)->ClearArena().ok());
    std::vector<std::byte> host(static_cast<size_t>(bytes));
    for (size_t i = 0; i < host.size(); ++i) {
      host[i] = static_cast<std::byte>((static_cast<std::uint32_t>(i) * 0x9E3779B9U + round) >> 24 | 1U);
    }
    constexpr std::int64_t kAt = 257;
    REQUIRE((*backend)->Upload(*arena + kAt, host.data(), bytes).ok());
    std::vector<std::byte> back(static_cast<size_t>(kArena));
    REQUIRE((*backend)->Download(back.data(), *arena, kArena).ok());
    std::vector<std::byte> expected(back.size());
    std::copy(host.begin(), host.end(), expected.begin() + kAt);
    CHECK((back == expected));
  }
}

// As the metrics of a model with many experts are.
TEST_CASE("gpu upload: reads under way at once each give their bytes, few or many") {
  constexpr std::int64_t kArena = std::int64_t{1} << 20;
  auto backend = backend::cuda::CudaBackend::Create({});
  REQUIRE_MESSAGE(backend.ok(), Message(backend.status()));
  const auto arena = (*backend)->AllocateArena(kArena);
  REQUIRE_MESSAGE(arena.ok(), Message(arena.status()));
  std::vector<std::byte> host(static_cast<size_t>(kArena));
  for (size_t i = 0; i < host.size(); ++i)
    host[i] = static_cast<std::byte>(static_cast<std::uint32_t>(i) * 0x9E3779B9U >> 24);
  REQUIRE((*backend)->Upload(*arena, host.data(), kArena).ok());
  for (int round = 0; round < 3; ++round) {
    std::vector<std::int64_t> tickets;
    const std::vector<std::int64_t> sizes = {8, 6256, 100'000, 256, 257, kArena};
    for (const std::int64_t bytes : sizes) {
      const absl::StatusOr<std::int64_t> ticket = (*backend)->Read(*arena + kArena - bytes, bytes);
      REQUIRE_MESSAGE(ticket.ok(), Message(ticket.status()));
      tickets.push_back(*ticket);
    }
    for (size_t i = 0; i < sizes.size(); ++i) {
      std::vector<std::byte> back(static_cast<size_t>(sizes[i]));
      REQUIRE((*backend)->WaitRead(tickets[i], back.data()).ok());
      CHECK(std::equal(back.begin(), back.end(), host.end() - sizes[i]));
    }
  }
}

}  // namespace engine::gpu_test
