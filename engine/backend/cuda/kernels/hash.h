// Hashes by which two runs of one program are compared. They detect faults, not forgers.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace engine::backend::cuda {

// *hash += Σ_i Mix(Mix(i + 1) ^ word_i) mod 2^64 + Mix(the number of bytes): words of 8 bytes, little-endian, the last one filled up with zeros. A sum
// has the same bits in whatever order it is made. `bytes` and `hash` are on the device; no alignment is asked for.
void AddHash(std::span<const std::byte> bytes, std::uint64_t* hash, cudaStream_t stream);

}  // namespace engine::backend::cuda
