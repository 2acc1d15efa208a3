// Hashes of a GPU's memory, against the same sum made on the host.
#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "engine/backend/cuda/launch/cuda_backend.h"

namespace engine::gpu_test {
namespace {

using backend::cuda::CudaBackend;

// As hash.h has it, by SplitMix64 as it was published.
std::uint64_t Mixed(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}
std::uint64_t Expected(std::span<const std::byte> bytes) {
  std::uint64_t sum = Mixed(bytes.size());
  for (std::size_t begin = 0, i = 1; begin < bytes.size(); begin += 8, ++i) {
    std::uint64_t word = 0;
    for (std::size_t b = 0; b < 8 && begin + b < bytes.size(); ++b)
      word += static_cast<std::uint64_t>(bytes[begin + b]) << (8 * b);
    sum += Mixed(Mixed(i) ^ word);
  }
  return sum;
}

struct Hashed {
  explicit Hashed(std::size_t bytes) : host(bytes) {
    auto created = CudaBackend::Create({});
    REQUIRE_MESSAGE(created.ok(), Message(created.status()));
    backend = *std::move(created);
    auto allocated = backend->AllocateArena(static_cast<std::int64_t>(bytes));
    REQUIRE(allocated.ok());
    arena = *allocated;
    std::minstd_rand random(7);
    for (std::byte& byte : host) byte = static_cast<std::byte>(random() >> 8);
    Upload();
    REQUIRE(backend->PrepareHashes(kPlaces).ok());
  }
  void Upload() const {
    REQUIRE(backend->Upload(arena, host.data(), static_cast<std::int64_t>(host.size())).ok());
  }
  std::vector<std::uint64_t> Read() const {
    const auto ticket = backend->ReadHashes(kPlaces);
    REQUIRE(ticket.ok());
    std::vector<std::uint64_t> hashes(kPlaces);
    REQUIRE(backend->WaitRead(*ticket, hashes.data()).ok());
    return hashes;
  }

  static constexpr std::int64_t kPlaces = 3;
  std::vector<std::byte> host;
  std::unique_ptr<CudaBackend> backend;
  std::byte* arena = nullptr;
};

}  // namespace

TEST_CASE("gpu hash: of any bytes, however many and wherever they begin") {
  const Hashed hashed(std::size_t{9} << 20);
  for (const std::size_t count : {0UL, 1UL, 7UL, 8UL, 9UL, 255UL, 4096UL, 1234567UL, std::size_t{8} << 20}) {
    for (const std::size_t begin : {0UL, 1UL, 2UL, 8UL, 260UL}) {
      CAPTURE(count);
      CAPTURE(begin);
      REQUIRE(hashed.backend->Hash({hashed.arena + begin, count}, plan::kComputeStream, 1).ok());
      CHECK(hashed.Read()[1] == Expected(std::span(hashed.host).subspan(begin, count)));
    }
  }
}

TEST_CASE("gpu hash: one bit makes another one, and so do two words that change places") {
  Hashed hashed(4096);
  const auto hash = [&] {
    hashed.Upload();
    REQUIRE(hashed.backend->Hash({hashed.arena, 4096}, plan::kExchangeStream, 2).ok());
    const auto done = hashed.backend->Signal(plan::kExchangeStream);
    REQUIRE(done.ok());
    REQUIRE(hashed.backend->Await(plan::kComputeStream, *done).ok());
    return hashed.Read()[2];
  };
  const std::uint64_t before = hash();
  CHECK(hash() == before);
  for (const std::size_t at : {0UL, 5UL, 2048UL, 4095UL}) {
    hashed.host[at] ^= std::byte{16};
    CHECK(hash() != before);
    hashed.host[at] ^= std::byte{16};
  }
  std::swap_ranges(hashed.host.begin(), hashed.host.begin() + 8, hashed.host.begin() + 8);
  CHECK(hash() != before);
}

}  // namespace engine::gpu_test
