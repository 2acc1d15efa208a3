#include "engine/backend/cuda/profile/scratch.h"

namespace engine::backend::cuda {

// One f64 for each block of the first phase. A number of its own, not the device's: the blocks' sums are
// added in order, so it decides the result's last bits. 8 blocks on each of an H200's 132 multiprocessors.
std::int64_t SumSquaresScratch(Types, Types, const graph::Attributes&, const CudaTarget&) {
  constexpr std::int64_t kBlocks = 1056;
  return kBlocks * static_cast<std::int64_t>(sizeof(double));
}

}  // namespace engine::backend::cuda
