// The scores that routers make of logits (engine/ops/route.cpp).
#pragma once

#include <cstdint>

namespace engine::backend::cuda {

enum class RouterScore : std::uint8_t { kSoftmax, kSigmoid, kSqrtSoftplus };

}  // namespace engine::backend::cuda
