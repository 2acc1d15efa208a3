// How place cuts its choices: the scratch rule and the launcher read the same.
#pragma once

#include <cstdint>

namespace engine::backend::cuda {

// Chunks of so many choices are sorted by themselves, each by one warp.
inline constexpr std::int64_t kPlaceChunk = 512;

}  // namespace engine::backend::cuda
