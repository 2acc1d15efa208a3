#include "engine/base/half.h"

#include "engine/base/clones.h"

namespace engine {

ENGINE_CLONES void BFloat16FromFloats(std::span<const float> from, std::uint16_t* to) {
  for (size_t i = 0; i < from.size(); ++i) to[i] = BFloat16FromFloat(from[i]);
}

ENGINE_CLONES void HalfFromFloats(std::span<const float> from, std::uint16_t* to) {
  for (size_t i = 0; i < from.size(); ++i) to[i] = HalfFromFloat(from[i]);
}

}  // namespace engine
