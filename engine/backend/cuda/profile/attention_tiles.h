// Sizes of attention's own kernels (attention/sm90a.h) that plans depend on.
#pragma once

#include <cstdint>

namespace engine::backend::cuda {

// Queries of a tile of the backward pass, of heads of 64 or 128 elements.
constexpr int OwnTileQueries(std::int64_t head) { return head == 64 ? 128 : 64; }

}  // namespace engine::backend::cuda
