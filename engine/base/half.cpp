#include "engine/base/half.h"

#include <cstring>

#include "engine/base/clones.h"

namespace engine {

ENGINE_CLONES void BFloat16FromFloats(std::span<const float> from, std::uint16_t* to) {
  for (size_t i = 0; i < from.size(); ++i) to[i] = BFloat16FromFloat(from[i]);
}

ENGINE_CLONES void HalfFromFloats(std::span<const float> from, std::uint16_t* to) {
  for (size_t i = 0; i < from.size(); ++i) to[i] = HalfFromFloat(from[i]);
}

ENGINE_CLONES void FloatsFromBFloat16(const std::byte* from, std::span<float> to) {
  for (size_t i = 0; i < to.size(); ++i) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, from + 2 * i, sizeof bits);
    to[i] = FloatFromBFloat16(bits);
  }
}

ENGINE_CLONES void FloatsFromHalf(const std::byte* from, std::span<float> to) {
  for (size_t i = 0; i < to.size(); ++i) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, from + 2 * i, sizeof bits);
    to[i] = FloatFromHalf(bits);
  }
}

}  // namespace engine
