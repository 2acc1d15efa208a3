// The sizes that kernels of attention over latents in tiles are made for.
#pragma once

#include <cstdint>

namespace engine::backend::cuda {

// The widths of latents and of shared parts that tiles of tensor cores are made for: DeepSeek-V2's and V3's.
inline constexpr std::int64_t kLatentTile = 512, kSharedTile = 64;

// Heads of one block: it reads the latents once for all of them.
inline std::int64_t LatentTileHeads(std::int64_t heads) { return heads <= 16 ? 16 : heads <= 32 ? 32 : 64; }

}  // namespace engine::backend::cuda
