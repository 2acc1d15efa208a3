// The backward pass on Hopper, in one pass of five products: a block has 128 keys and their gradients in registers, of wide
// heads 64, and walks along the tiles of queries that see them. What a tile gives to the gradient of its queries goes by
// the TMA unit to fp32 sums in memory, in an order that does not depend on which block is faster: a counter of each tile
// says whose turn it is.
//
// The gradient is three kernels, of which the second one is here; the first makes row sums, and the third rounds the sums of dq
// (rows_sm90a.cuh). Those behind the first are launched early (early.cuh): a block's work is to end before the next kernel's blocks may
// come, so that these keep no multiprocessors from other streams.
#pragma once

#include "engine/backend/cuda/attention/backward_narrow_sm90a.cuh"
#include "engine/backend/cuda/attention/backward_wide_sm90a.cuh"

namespace engine::backend::cuda::attention_sm90a {

template <typename Form>
__global__ void __launch_bounds__(Form::kThreads, 1)
    BackwardKernel(const __grid_constant__ CUtensorMap q, const __grid_constant__ CUtensorMap k,
                   const __grid_constant__ CUtensorMap v, const __grid_constant__ CUtensorMap d_o,
                   const __grid_constant__ CUtensorMap biases, const __grid_constant__ CUtensorMap dk,
                   const __grid_constant__ CUtensorMap dv, const __grid_constant__ BackwardParams p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(kBoxAlignment) char raw[];
  const BackwardMemory<Form> memory(raw);
  if (threadIdx.x == 0) {
    constexpr int kArrivals = Form::kWorkers * kWarpsOfGroup * kArrivalsOfWarp;
    hopper::InitBarrier(memory.kv_full(), 1);
    hopper::InitBarrier(memory.kv_empty(), kArrivals);
    hopper::InitBarrier(memory.v_full(), 1);
    hopper::InitBarrier(memory.dv_read(), 1);
    hopper::InitBarrier(memory.v_empty(), kArrivals);
    hopper::InitBarrier(memory.item_full(), 1);
    hopper::InitBarrier(memory.item_empty(), kWritingWarps * kArrivalsOfWarp);
    for (int stage = 0; stage < Form::kStages; ++stage) {
      hopper::InitBarrier(memory.q_full(stage), 1);
      hopper::InitBarrier(memory.q_empty(stage), kArrivals);
    }
    for (int stage = 0; stage < Form::kDOStages; ++stage) {
      hopper::InitBarrier(memory.do_full(stage), 1);
      hopper::InitBarrier(memory.do_empty(stage), kArrivals);
    }
    hopper::PublishBarriers();
  }
  __syncthreads();
  AwaitEarlier();
  if (threadIdx.x / kWarpgroup == Form::kWorkers) {
    hopper::GiveRegisters<Form::kReaderRegisters>();
    const int warp = static_cast<int>(threadIdx.x) % kWarpgroup / kWarp;
    if (warp == 0 && threadIdx.x % kWarp == 0) ReadBackward<Form>(q, k, v, d_o, biases, p, memory);
    if (warp >= 1 && warp <= kWritingWarps) {
      if constexpr (Form::kWide) {
        WriteParts<Form>(dk, dv, p, memory, warp - 1);
      } else {
        WriteSums<Form>(dk, dv, p, memory, warp - 1);
      }
    }
  } else {
    hopper::TakeRegisters<Form::kWorkerRegisters>();
    if constexpr (Form::kWide) {
      WorkWide<Form>(p, memory);
    } else {
      WorkBackward<Form>(p, memory);
    }
  }
#endif
}

}  // namespace engine::backend::cuda::attention_sm90a
