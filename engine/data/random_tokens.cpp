#include "engine/data/random_tokens.h"

#include <fmt/format.h>

#include <array>

#include "engine/base/philox.h"

namespace engine::data {

void RandomSample(std::uint64_t seed, Split split, std::int64_t index, std::int64_t vocab,
                  std::span<std::int32_t> out) {
  const PhiloxKey key = MakePhiloxKey(seed, fmt::format("random tokens, {}", Name(split)));
  std::array<std::uint32_t, 4> words = {};
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::size_t at =
        i % 2;  // two tokens a block: with 32 bits, a large vocabulary would not be uniform
    if (at == 0) words = Philox4x32(key, i / 2, static_cast<std::uint64_t>(index));
    const std::uint64_t bits = (std::uint64_t{words[2 * at]} << 32) | words[2 * at + 1];
    out[i] = static_cast<std::int32_t>(
        (static_cast<unsigned __int128>(bits) * static_cast<unsigned __int128>(vocab)) >> 64);
  }
}

}  // namespace engine::data
