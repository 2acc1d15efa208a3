// The GPU's clock: read in stream order, or waited for.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace engine::backend::cuda {

// *to = nanoseconds of the GPU's clock (%globaltimer, which moves in steps of a microsecond or less).
void WriteTime(std::int64_t* to, cudaStream_t stream);

// Holds the stream up for less than most_ns: a pseudo-random time, of `seed` and of how often *count was
// passed here, which counts each execution, those of a replayed graph too.
void HoldUp(std::uint64_t seed, std::uint32_t* count, std::int64_t most_ns, cudaStream_t stream);

}  // namespace engine::backend::cuda
