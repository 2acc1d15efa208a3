// A number whose every bit depends on each bit of another one.
#pragma once

#include <cstdint>

namespace engine::backend::cuda {

// SplitMix64 (Steele, Lea, Flood 2014).
__device__ inline std::uint64_t Mix(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

}  // namespace engine::backend::cuda
