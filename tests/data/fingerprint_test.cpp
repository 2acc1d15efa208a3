#include "engine/data/fingerprint.h"

#include <doctest/doctest.h>

#include <vector>

namespace engine::data {

TEST_CASE("a fingerprint of blocks sees size, beginning, end and each of its blocks") {
  constexpr std::size_t kMebibyte = std::size_t{1} << 20;
  std::vector<std::byte> bytes(40 * kMebibyte + 123);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 2654435761U >> 13);
  const std::string before = FingerprintOfBlocks(bytes);
  CHECK(before == FingerprintOfBlocks(bytes));
  CHECK(before.starts_with("41943163 bytes, xxh3_128 of 256 blocks "));
  CHECK(FingerprintOfBlocks(std::span(bytes).first(bytes.size() - 1)) != before);
  const auto sees = [&](std::size_t at) {
    bytes[at] ^= std::byte{1};
    const bool differs = FingerprintOfBlocks(bytes) != before;
    bytes[at] ^= std::byte{1};
    return differs;
  };
  CHECK(sees(0));
  CHECK(sees(bytes.size() - 1));
  // 16 of about 40 MiB are read, in 256 blocks: one at the start of each of 255 equal parts,
  // and one at the end.
  const std::size_t stride = (bytes.size() - (std::size_t{64} << 10)) / 255;
  int seen = 0;
  for (std::size_t i = 0; i < 20; ++i) seen += sees(i * 13 * stride + 1000) ? 1 : 0;
  CHECK(seen == 20);
  CHECK_FALSE(sees(stride - 1000));  // between two blocks
}

TEST_CASE("of a small file all bytes count, and of an empty one too") {
  std::vector<std::byte> bytes(100000);
  const std::string before = FingerprintOfBlocks(bytes);
  CHECK(before == FingerprintOfAll(bytes));
  bytes[77777] = std::byte{1};
  CHECK(FingerprintOfBlocks(bytes) != before);
  CHECK(FingerprintOfBlocks({}).starts_with("0 bytes, xxh3_128 99aa06d3014798d86001c324468d497f"));
}

}  // namespace engine::data
