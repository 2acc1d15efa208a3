// A persistent grid: each block, or cluster of two blocks along the rows, works on one tile of 128 (256) × 256 of a result
// after the other. One warpgroup only reads (one thread of it asks the TMA unit for blocks of 128 bytes along what is
// summed, four of them ahead); the two others multiply, 64 rows each, with all sums in registers, and write the tile through
// shared memory. A cluster's blocks read half of b each, for both; where a group has an odd number of tiles along m, they
// work on two tiles side by side of its last ones, and each reads for itself.
//
// In bf16 operands are read as they lie, whichever dim is summed; in FP8 they lie with the summed dim inside, as the
// instruction wants them, and a tile's sums are multiplied by what one stored number of a and one of b stand for.
//
// Which tiles there are follows from the groups, which every thread walks along; so nothing on the host depends on them.
// A group's rows begin at multiples of 128 and are zeros behind its end: no copy and no product needs a mask.
#pragma once

#include "engine/backend/cuda/kernels/grouped_sm90a.h"
#include "engine/backend/cuda/kernels/hopper.cuh"
#include "engine/backend/cuda/kernels/vector.cuh"
#include "engine/graph/rows.h"

#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#pragma nv_diag_suppress 177  // for other GPUs the kernel is empty, and what it is made of unused
#endif

namespace engine::backend::cuda::grouped_sm90a {

inline constexpr int kTileM = 128;  // of a block
inline constexpr int kTileN = 256;
inline constexpr int kStages = 4;
inline constexpr int kWarpgroup = 128;
inline constexpr int kWorkers = 2;  // warpgroups that multiply
inline constexpr int kThreads = kWarpgroup * (kWorkers + 1);
inline constexpr int kRowsOfWorker = kTileM / kWorkers;
inline constexpr int kRowsOfWarp = 16;
static_assert(graph::kRowAlignment == kTileM);  // so a group's last tile ends where its rows do

// Tiles of a group are walked in bands of so many tiles along m, so that what a band reads is still in L2.
inline constexpr int kBand = 8;

// Of a thread: those that only read leave theirs to those that multiply.
inline constexpr int kRegistersOfReader = 40;
inline constexpr int kRegistersOfWorker = 232;

// Shared memory, in bytes. A row of a box has 128 bytes, and boxes stand at multiples of 1024.
inline constexpr int kRowBytes = 128;
inline constexpr int kABytes = kTileM * kRowBytes;
inline constexpr int kBBytes = kTileN * kRowBytes;
inline constexpr int kStageBytes = kABytes + kBBytes;
inline constexpr int kBox64Bytes = 64 * kRowBytes;
inline constexpr int kBox128Bytes = 128 * kRowBytes;
inline constexpr int kStoreBytes = kRowsOfWarp * kRowBytes;
inline constexpr int kStoresOfWarp = 2;  // buffers in turn
inline constexpr int kStoresBytes = kTileM / kRowsOfWarp * kStoresOfWarp * kStoreBytes;
inline constexpr int kBarrierBytes = 8;
inline constexpr int kBoxAlignment = 1024;
inline constexpr int kSharedBytes =
    kBoxAlignment + kStages * kStageBytes + kStoresBytes + 2 * kStages * kBarrierBytes;

// What a and b are: how many elements along what is summed are a block of it, with which 32 bytes of each are one
// instruction, and whether the summed dim is the inner one of both, whatever the kind.
struct Bf16Operands {
  static constexpr int kBlockK = kRowBytes / 2;
  static constexpr bool kFp8 = false;
};
// b is e4m3.
template <bool kAIsE5M2>
struct Fp8Operands {
  static constexpr int kBlockK = kRowBytes;
  static constexpr bool kFp8 = true;
  static constexpr bool kE5M2 = kAIsE5M2;
};
static_assert(graph::kRowAlignment % Fp8Operands<false>::kBlockK == 0);
template <typename Operands, GroupedKind kKind>
inline constexpr bool kAOuter = !Operands::kFp8 && kKind == GroupedKind::kWgrad;
template <typename Operands, GroupedKind kKind>
inline constexpr bool kBOuter = !Operands::kFp8 && kKind != GroupedKind::kForward;

// The product of an expert is d[m, n] = Σ_k a · b; of the rows, m or k counts those of one expert.
struct Sizes {
  int experts = 0;
  int m = 0;  // kWgrad
  int n = 0;
  int k = 0;  // kForward, kDgrad
  bool accumulate = false;
  const int2* groups = nullptr;         // [E]: first row and rows
  const std::int32_t* order = nullptr;  // kWgrad: [E]
  const float* a_unit = nullptr;        // FP8: what a stored 1 of a stands for
  const float* b_unit = nullptr;
};

// What a block works on at a time.
struct Tile {
  int expert;
  int first;     // row of the group, in the tensors of rows
  int rows;      // of the group, without those that fill it up
  int m, n;      // first row, within the group or the matrix, and first column
  int blocks;    // of Operands::kBlockK along what is summed
  bool abreast;  // the tiles of a cluster's blocks are neighbours along m and have b in common
};

// The tiles of all groups, in one order for all threads; those of a cluster's blocks are found by one index. `rank`: of the
// block in its cluster.
template <typename Operands, GroupedKind kKind, int kCluster>
class Walk {
 public:
  __device__ Walk(const Sizes& sizes, int rank)
      : sizes_(sizes), rank_(rank), across_((sizes.n + kTileN - 1) / kTileN) {
    Enter();
  }

  // False: there are not so many. Asked for in ascending order.
  __device__ bool Find(int index, Tile* tile) {
    while (index >= before_ + count_) {
      before_ += count_;
      if (++group_ >= sizes_.experts) return false;
      Enter();
    }
    const int in_group = index - before_;
    const int abreast = down_ / kCluster;  // along m, and kCluster times as many tiles
    const int left = in_group - abreast * across_;
    tile->expert = expert_;
    tile->first = first_;
    tile->rows = rows_;
    tile->abreast = left < 0;
    if (left < 0) {
      const int band = in_group / (kBand * across_);
      const int in_band = in_group - band * kBand * across_;
      const int height = min(kBand, abreast - band * kBand);
      tile->m = ((band * kBand + in_band % height) * kCluster + rank_) * kTileM;
      tile->n = in_band / height * kTileN;
    } else {
      tile->m = abreast * kCluster * kTileM;
      tile->n = (left * kCluster + rank_) * kTileN;
    }
    const int summed = kKind == GroupedKind::kWgrad ? rows_ : sizes_.k;
    tile->blocks = (summed + Operands::kBlockK - 1) / Operands::kBlockK;
    return true;
  }

 private:
  __device__ void Enter() {
    expert_ = kKind == GroupedKind::kWgrad ? __ldg(sizes_.order + group_) : group_;
    const int2 group = __ldg(sizes_.groups + expert_);
    first_ = group.x;
    rows_ = group.y;
    down_ = ((kKind == GroupedKind::kWgrad ? sizes_.m : rows_) + kTileM - 1) / kTileM;
    static_assert(kCluster <= 2, "of the tiles along m at most one is left over");
    count_ = down_ / kCluster * across_;
    if (down_ % kCluster != 0) count_ += (across_ + kCluster - 1) / kCluster;
  }

  const Sizes& sizes_;
  const int rank_;
  const int across_;  // tiles along n
  int down_ = 0;      // tiles of the group along m
  int count_ = 0;     // indices of the group
  int before_ = 0;    // indices of groups before it
  int group_ = 0, expert_ = 0, first_ = 0, rows_ = 0;
};

// Stages are filled and emptied in turn; parity is that of the barriers' phase.
struct Ring {
  std::uint32_t stage = 0, parity = 0;

  __device__ void Next() {
    if (++stage < kStages) return;
    stage = 0;
    parity ^= 1U;
  }
};

// Where what stands in shared memory.
struct Memory {
  std::uint32_t stages, stores, barriers;

  __device__ explicit Memory(const void* shared)
      : stages((hopper::SharedAddress(shared) + kBoxAlignment - 1) / kBoxAlignment * kBoxAlignment),
        stores(stages + kStages * kStageBytes),
        barriers(stores + kStoresBytes) {}

  __device__ std::uint32_t a(std::uint32_t stage) const { return stages + stage * kStageBytes; }
  __device__ std::uint32_t b(std::uint32_t stage) const { return a(stage) + kABytes; }
  // All bytes of the stage have come.
  __device__ std::uint32_t full(std::uint32_t stage) const { return barriers + stage * kBarrierBytes; }
  // Nobody reads the stage any more.
  __device__ std::uint32_t empty(std::uint32_t stage) const { return full(kStages + stage); }
  __device__ std::uint32_t store(int warp, int buffer) const {
    return stores + (warp * kStoresOfWarp + buffer) * kStoreBytes;
  }
};

// Asks for a block's share of b, from k on along what is summed: `kReaders` blocks of a cluster read every so many-th part each,
// for all of them.
template <typename Operands, GroupedKind kKind, int kReaders>
__device__ void ReadB(const CUtensorMap& b, const Tile& tile, int k, int reader, std::uint32_t to,
                      std::uint32_t full) {
  constexpr bool kWeights = kKind == GroupedKind::kWgrad;
  if constexpr (kBOuter<Operands, kKind>) {
#pragma unroll 1  // registers are few here
    for (int i = reader; i < kTileN / 64; i += kReaders) {
      const hopper::Place at = {tile.n + 64 * i, kWeights ? tile.first + k : k, kWeights ? 0 : tile.expert};
      hopper::CopyBox<kReaders>(b, at, to + i * kBox64Bytes, full, hopper::kEvictNormal);
    }
  } else {
#pragma unroll 1
    for (int i = reader; i < kTileN / 128; i += kReaders) {
      const int n = tile.n + 128 * i;
      const hopper::Place at = kWeights                       ? hopper::Place{tile.first + k, n, 0}
                               : kKind == GroupedKind::kDgrad ? hopper::Place{k, tile.expert, n}
                                                              : hopper::Place{k, n, tile.expert};
      hopper::CopyBox<kReaders>(b, at, to + i * kBox128Bytes, full, hopper::kEvictNormal);
    }
  }
}

// Asks for one block along what is summed. `rank`: of the block of threads in its cluster.
template <typename Operands, GroupedKind kKind, int kCluster>
__device__ void ReadBlock(const CUtensorMap& a, const CUtensorMap& b, const Tile& tile, int block, int rank,
                          const Memory& memory, std::uint32_t stage) {
  constexpr bool kWeights = kKind == GroupedKind::kWgrad;
  const std::uint32_t full = memory.full(stage);
  const int m = tile.m;
  const int k = block * Operands::kBlockK;
  hopper::ArriveExpecting(full, kStageBytes);
  if constexpr (kAOuter<Operands, kKind>) {
    for (int i = 0; i < kTileM / 64; ++i) {
      hopper::CopyBox<1>(a, {m + 64 * i, tile.first + k, 0}, memory.a(stage) + i * kBox64Bytes, full,
                         hopper::kEvictLast);
    }
  } else {
    const hopper::Place at =
        kWeights ? hopper::Place{tile.first + k, m, 0} : hopper::Place{k, tile.first + m, 0};
    hopper::CopyBox<1>(a, at, memory.a(stage), full, hopper::kEvictLast);
  }
  if (kCluster == 1 || tile.abreast) {
    ReadB<Operands, kKind, kCluster>(b, tile, k, rank, memory.b(stage), full);
  } else {
    ReadB<Operands, kKind, 1>(b, tile, k, 0, memory.b(stage), full);
  }
}

// 32 bytes along what is summed, of both operands.
template <typename Operands, GroupedKind kKind>
__device__ __forceinline__ void MultiplyStep(std::uint64_t a, std::uint64_t b, int step,
                                             float (&sums)[hopper::kSums]) {
  if constexpr (Operands::kFp8) {
    hopper::MultiplyFp8<Operands::kE5M2>(a + hopper::StepOf32Bytes(step), b + hopper::StepOf32Bytes(step),
                                         sums);
  } else {
    constexpr bool kA = kAOuter<Operands, kKind>;
    constexpr bool kB = kBOuter<Operands, kKind>;
    hopper::Multiply<kA, kB>(a + hopper::StepOf16<kA>(step), b + hopper::StepOf16<kB>(step), sums);
  }
}

// The sums of a tile; `ring` stands behind its blocks when this returns.
template <typename Operands, GroupedKind kKind, int kCluster>
__device__ void MultiplyTile(const Tile& tile, int worker, const Memory& memory, Ring* ring,
                             float (&sums)[hopper::kSums]) {
  const std::uint32_t thread = threadIdx.x % kWarpgroup;
  // A thread for each block of the cluster tells it that the worker is done with the stage, into which that one's half of b
  // is read too.
  const auto release = [&](std::uint32_t stage) {
    if (thread < kCluster) hopper::ArriveAt(memory.empty(stage), thread);
  };
#pragma unroll
  for (int i = 0; i < hopper::kSums; ++i) sums[i] = 0;
  if (kKind != GroupedKind::kWgrad && tile.m + worker * kRowsOfWorker >= tile.rows) {
    // Its rows only fill up the group and stay zeros; the other worker has the tensor cores for itself meanwhile.
    for (int block = 0; block < tile.blocks; ++block) {
      hopper::WaitFor(memory.full(ring->stage), ring->parity);
      hopper::MeetWarpgroup(1 + worker);  // a warp that is two phases late would wait for ever
      release(ring->stage);
      ring->Next();
    }
    return;
  }
  std::uint32_t before = 0;  // stage of the block before
  for (int block = 0; block < tile.blocks; ++block) {
    hopper::WaitFor(memory.full(ring->stage), ring->parity);
    const std::uint64_t a =
        hopper::MatrixAt(memory.a(ring->stage) + worker * kRowsOfWorker * kRowBytes, kBox64Bytes);
    const std::uint64_t b = hopper::MatrixAt(memory.b(ring->stage), kBox64Bytes);
    hopper::Pin(sums);
    hopper::BeginProducts();
#pragma unroll
    for (int step = 0; step < kRowBytes / 32; ++step) MultiplyStep<Operands, kKind>(a, b, step, sums);
    hopper::EndProducts();
    hopper::WaitForProducts<1>();  // those of the block before
    if (block > 0) release(before);
    before = ring->stage;
    ring->Next();
  }
  hopper::WaitForProducts<0>();
  hopper::Pin(sums);
  if (tile.blocks > 0) release(before);
}

// Puts 16 rows of 128 bytes of a warp's sums, those of round `round` along n, where StoreBox takes them from: the 16-byte
// pieces of a row stand in the order that 128-byte swizzle gives them.
template <int kRound>
__device__ void PutSums(const float (&sums)[hopper::kSums], std::uint32_t to, float) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int eight = 0; eight < 4; ++eight) {  // columns
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = lane / 4 + half * 8;
      const int byte = eight * 32 + lane % 4 * 8;
      const int i = kRound * 16 + eight * 4 + half * 2;
      asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to + row * kRowBytes + (byte ^ (row & 7) << 4)),
                   "f"(sums[i]), "f"(sums[i + 1])
                   : "memory");
    }
  }
}
template <int kRound>
__device__ void PutSums(const float (&sums)[hopper::kSums], std::uint32_t to, __nv_bfloat16) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int sixteen = 0; sixteen < 4; ++sixteen) {  // columns
    std::uint32_t pairs[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int at = kRound * 32 + sixteen * 8 + i * 2;
      pairs[i] = PairFromFloat(__nv_bfloat16(), sums[at], sums[at + 1]);
    }
    const int row = lane % 16;
    const int byte = sixteen * 32 + lane / 16 * 16;
    hopper::StoreFourMatrices(to + row * kRowBytes + (byte ^ (row & 7) << 4), pairs);
  }
}

// Writes the 16 rows of a warp, whose first one is `at`.y.
template <bool kMayAdd, typename Result, int kRound = 0>
__device__ void StoreRows(const float (&sums)[hopper::kSums], const CUtensorMap& d, hopper::Place at,
                          const Sizes& sizes, int warp, const Memory& memory) {
  constexpr int kColumns = kRowBytes / static_cast<int>(sizeof(Result));
  if constexpr (kRound < kTileN / kColumns) {
    if (at.x >= sizes.n) return;
    const bool first_lane = threadIdx.x % kWarp == 0;
    const std::uint32_t buffer = memory.store(warp, kRound % kStoresOfWarp);
    if (first_lane) hopper::WaitForStoresToRead<kStoresOfWarp - 1>();
    __syncwarp();
    PutSums<kRound>(sums, buffer, Result());
    hopper::ShowToCopies();
    __syncwarp();
    if (first_lane) {
      if (kMayAdd && sizes.accumulate) {
        hopper::AddBox(d, at, buffer);
      } else {
        hopper::StoreBox(d, at, buffer, hopper::kEvictFirst);
      }
    }
    at.x += kColumns;
    StoreRows<kMayAdd, Result, kRound + 1>(sums, d, at, sizes, warp, memory);
  }
}

template <GroupedKind kKind, typename Result>
__device__ void StoreTile(const float (&sums)[hopper::kSums], const CUtensorMap& d, const Tile& tile,
                          int worker, const Sizes& sizes, const Memory& memory) {
  constexpr bool kWeights = kKind == GroupedKind::kWgrad;
  const int row = tile.m + worker * kRowsOfWorker;
  if (kWeights && row >= sizes.m) return;
  if (kWeights && sizes.accumulate && tile.blocks == 0) return;
  const int warp = static_cast<int>(threadIdx.x) % kWarpgroup / kWarp;
  const int y = (kWeights ? 0 : tile.first) + row + warp * kRowsOfWarp;
  StoreRows<kWeights, Result>(sums, d, {tile.n, y, kWeights ? tile.expert : 0}, sizes, worker * 4 + warp,
                              memory);
}

template <typename Operands, GroupedKind kKind, int kCluster, typename Result>
__global__ void __launch_bounds__(kThreads, 1)
    GroupedKernel(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b,
                  const __grid_constant__ CUtensorMap d, const __grid_constant__ Sizes sizes) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ char shared[];
  const Memory memory(shared);
  const int rank = kCluster == 1 ? 0 : static_cast<int>(hopper::BlockInCluster());
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      hopper::InitBarrier(memory.full(stage), 1);
      hopper::InitBarrier(memory.empty(stage), kWorkers * kCluster);
    }
    hopper::PublishBarriers();
  }
  __syncthreads();
  if constexpr (kCluster > 1) hopper::MeetCluster();

  const int worker = static_cast<int>(threadIdx.x) / kWarpgroup;
  const int first = static_cast<int>(blockIdx.x) / kCluster;
  const int step = static_cast<int>(gridDim.x) / kCluster;
  Ring ring;
  Tile tile;
  if (worker == kWorkers) {
    hopper::GiveRegisters<kRegistersOfReader>();
    if (threadIdx.x % kWarpgroup == 0) {
      Walk<Operands, kKind, kCluster> walk(sizes, rank);
      for (int i = first; walk.Find(i, &tile); i += step) {
        for (int block = 0; block < tile.blocks; ++block) {
          hopper::WaitFor(memory.empty(ring.stage), ring.parity ^ 1U);
          ReadBlock<Operands, kKind, kCluster>(a, b, tile, block, rank, memory, ring.stage);
          ring.Next();
        }
      }
    }
  } else {
    hopper::TakeRegisters<kRegistersOfWorker>();
    float sums[hopper::kSums];
    const float unit = Operands::kFp8 ? __ldg(sizes.a_unit) * __ldg(sizes.b_unit) : 1.0F;
    Walk<Operands, kKind, kCluster> walk(sizes, rank);
    for (int i = first; walk.Find(i, &tile); i += step) {
      MultiplyTile<Operands, kKind, kCluster>(tile, worker, memory, &ring, sums);
      if constexpr (Operands::kFp8) {
#pragma unroll
        for (int j = 0; j < hopper::kSums; ++j) sums[j] *= unit;
      }
      StoreTile<kKind, Result>(sums, d, tile, worker, sizes, memory);
    }
    if (threadIdx.x % kWarp == 0) hopper::WaitForStores();
  }
  __syncwarp();
  // The other block may still arrive at barriers here.
  if constexpr (kCluster > 1) hopper::MeetCluster();
#endif
}

using Kernel = void (*)(CUtensorMap, CUtensorMap, CUtensorMap, Sizes);

template <typename Operands, GroupedKind kKind, typename Result>
Kernel KernelOfCluster(int cluster) {
  return cluster == 1 ? GroupedKernel<Operands, kKind, 1, Result> : GroupedKernel<Operands, kKind, 2, Result>;
}

// Of products in FP8 (grouped_fp8_sm90a.cu).
Kernel Fp8KernelOf(const GroupedSm90a& grouped);

}  // namespace engine::backend::cuda::grouped_sm90a
