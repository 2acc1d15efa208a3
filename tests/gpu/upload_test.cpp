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

}  // namespace engine::gpu_test
