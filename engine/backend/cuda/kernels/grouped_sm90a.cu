// A persistent grid: each block, or cluster of two blocks along the rows, works on one tile of 128 (256) × 256 of a result
// after the other. One warpgroup only reads (one thread of it asks the TMA unit for blocks of 64 along what is summed,
// four of them ahead); the two others multiply, 64 rows each, with all sums in registers, and write the tile through
// shared memory. A cluster's blocks read half of b each, for both.
//
// Which tiles there are follows from the groups, which every thread walks along; so nothing on the host depends on them.
// A group's rows begin at multiples of 128 and are zeros behind its end: no copy and no product needs a mask.
#include "engine/backend/cuda/kernels/grouped_sm90a.h"

#include "engine/backend/cuda/kernels/hopper.cuh"
#include "engine/backend/cuda/kernels/vector.cuh"
#include "engine/graph/rows.h"

#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#pragma nv_diag_suppress 177  // for other GPUs the kernel is empty, and what it is made of unused
#endif

namespace engine::backend::cuda {
namespace {

constexpr int kTileM = 128;  // of a block
constexpr int kTileN = 256;
constexpr int kBlockK = 64;
constexpr int kStages = 4;
constexpr int kWarpgroup = 128;
constexpr int kWorkers = 2;  // warpgroups that multiply
constexpr int kThreads = kWarpgroup * (kWorkers + 1);
constexpr int kRowsOfWorker = kTileM / kWorkers;
constexpr int kRowsOfWarp = 16;
static_assert(graph::kRowAlignment % kTileM == 0 && graph::kRowAlignment % kBlockK == 0);

// Tiles of a group are walked in bands of so many tiles along m, so that what a band reads is still in L2.
constexpr int kBand = 8;

// Of a thread: those that only read leave theirs to those that multiply.
constexpr int kRegistersOfReader = 40;
constexpr int kRegistersOfWorker = 232;

// Shared memory, in bytes. A row of a box has 128 bytes, and boxes stand at multiples of 1024.
constexpr int kRowBytes = 128;
constexpr int kABytes = kTileM * kBlockK * 2;
constexpr int kBBytes = kTileN * kBlockK * 2;
constexpr int kStageBytes = kABytes + kBBytes;
constexpr int kBox64Bytes = 64 * kRowBytes;
constexpr int kBox128Bytes = 128 * kRowBytes;
constexpr int kStoreBytes = kRowsOfWarp * kRowBytes;
constexpr int kStoresOfWarp = 2;  // buffers in turn
constexpr int kStoresBytes = kTileM / kRowsOfWarp * kStoresOfWarp * kStoreBytes;
constexpr int kBarrierBytes = 8;
constexpr int kBoxAlignment = 1024;
constexpr int kSharedBytes =
    kBoxAlignment + kStages * kStageBytes + kStoresBytes + 2 * kStages * kBarrierBytes;

// The product of an expert is d[m, n] = Σ_k a · b; of the rows, m or k counts those of one expert.
struct Sizes {
  int experts = 0;
  int m = 0;  // kWgrad
  int n = 0;
  int k = 0;  // kForward, kDgrad
  bool accumulate = false;
  const int2* groups = nullptr;         // [E]: first row and rows
  const std::int32_t* order = nullptr;  // kWgrad: [E]
};

// What a cluster works on at a time.
struct Tile {
  int expert;
  int first;   // row of the group, in the tensors of rows
  int rows;    // of the group, with those that fill it up
  int m, n;    // first row, within the group or the matrix, and first column
  int blocks;  // of kBlockK along what is summed
};

// The tiles of all groups, in one order for all threads.
template <GroupedKind kKind, int kCluster>
class Walk {
 public:
  __device__ explicit Walk(const Sizes& sizes) : sizes_(sizes), across_((sizes.n + kTileN - 1) / kTileN) {
    Enter();
  }

  // False: there are not so many. Asked for in ascending order.
  __device__ bool Find(int index, Tile* tile) {
    while (index >= before_ + down_ * across_) {
      before_ += down_ * across_;
      if (++group_ >= sizes_.experts) return false;
      Enter();
    }
    const int in_group = index - before_;
    const int band = in_group / (kBand * across_);
    const int in_band = in_group - band * kBand * across_;
    const int height = min(kBand, down_ - band * kBand);
    tile->expert = expert_;
    tile->first = first_;
    tile->rows = rows_;
    tile->m = (band * kBand + in_band % height) * kTileM * kCluster;
    tile->n = in_band / height * kTileN;
    tile->blocks = ((kKind == GroupedKind::kWgrad ? rows_ : sizes_.k) + kBlockK - 1) / kBlockK;
    return true;
  }

 private:
  __device__ void Enter() {
    constexpr int kAlignment = static_cast<int>(graph::kRowAlignment);
    expert_ = kKind == GroupedKind::kWgrad ? __ldg(sizes_.order + group_) : group_;
    const int2 group = __ldg(sizes_.groups + expert_);
    first_ = group.x;
    rows_ = (group.y + kAlignment - 1) / kAlignment * kAlignment;
    const int height = kKind == GroupedKind::kWgrad ? sizes_.m : rows_;
    down_ = (height + kTileM * kCluster - 1) / (kTileM * kCluster);
  }

  const Sizes& sizes_;
  const int across_;  // tiles along n
  int down_ = 0;      // tiles of the group along m
  int before_ = 0;    // tiles of groups before it
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

// Asks for one block along what is summed. `rank`: of the block of threads in its cluster.
template <GroupedKind kKind, int kCluster>
__device__ void ReadBlock(const CUtensorMap& a, const CUtensorMap& b, const Tile& tile, int block, int rank,
                          const Memory& memory, std::uint32_t stage) {
  const std::uint32_t full = memory.full(stage);
  const int m = tile.m + rank * kTileM;
  const int k = block * kBlockK;
  hopper::ArriveExpecting(full, kStageBytes);
  if constexpr (kKind == GroupedKind::kWgrad) {
    for (int i = 0; i < kTileM / 64; ++i) {
      hopper::CopyBox<1>(a, {m + 64 * i, tile.first + k, 0}, memory.a(stage) + i * kBox64Bytes, full,
                         hopper::kEvictLast);
    }
  } else {
    hopper::CopyBox<1>(a, {k, tile.first + m, 0}, memory.a(stage), full, hopper::kEvictLast);
  }
  if constexpr (kKind == GroupedKind::kForward) {
    for (int i = rank; i < kTileN / 128; i += kCluster) {
      hopper::CopyBox<kCluster>(b, {k, tile.n + 128 * i, tile.expert}, memory.b(stage) + i * kBox128Bytes,
                                full, hopper::kEvictNormal);
    }
  } else {
    constexpr bool kOfRows = kKind == GroupedKind::kWgrad;
#pragma unroll 1  // registers are few here
    for (int i = rank; i < kTileN / 64; i += kCluster) {
      const hopper::Place at = {tile.n + 64 * i, kOfRows ? tile.first + k : k, kOfRows ? 0 : tile.expert};
      hopper::CopyBox<kCluster>(b, at, memory.b(stage) + i * kBox64Bytes, full, hopper::kEvictNormal);
    }
  }
}

// The sums of a tile; `ring` stands behind its blocks when this returns.
template <GroupedKind kKind, int kCluster>
__device__ void MultiplyTile(const Tile& tile, int worker, const Memory& memory, Ring* ring,
                             float (&sums)[hopper::kSums]) {
  constexpr bool kAOuter = kKind == GroupedKind::kWgrad;
  constexpr bool kBOuter = kKind != GroupedKind::kForward;
  const std::uint32_t thread = threadIdx.x % kWarpgroup;
  // A thread for each block of the cluster tells it that the worker is done with the stage, into which that one's half of b
  // is read too.
  const auto release = [&](std::uint32_t stage) {
    if (thread < kCluster) hopper::ArriveAt(memory.empty(stage), thread);
  };
#pragma unroll
  for (int i = 0; i < hopper::kSums; ++i) sums[i] = 0;
  std::uint32_t before = 0;  // stage of the block before
  for (int block = 0; block < tile.blocks; ++block) {
    hopper::WaitFor(memory.full(ring->stage), ring->parity);
    const std::uint64_t a =
        hopper::MatrixAt(memory.a(ring->stage) + worker * kRowsOfWorker * kRowBytes, kBox64Bytes);
    const std::uint64_t b = hopper::MatrixAt(memory.b(ring->stage), kBox64Bytes);
    hopper::Pin(sums);
    hopper::BeginProducts();
#pragma unroll
    for (int step = 0; step < kBlockK / 16; ++step) {
      hopper::Multiply<kAOuter, kBOuter>(a + hopper::StepOf16<kAOuter>(step),
                                         b + hopper::StepOf16<kBOuter>(step), sums);
    }
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
                          int rank, int worker, const Sizes& sizes, const Memory& memory) {
  constexpr bool kWeights = kKind == GroupedKind::kWgrad;
  const int row = tile.m + rank * kTileM + worker * kRowsOfWorker;
  if (row >= (kWeights ? sizes.m : tile.rows)) return;
  if (kWeights && sizes.accumulate && tile.blocks == 0) return;
  const int warp = static_cast<int>(threadIdx.x) % kWarpgroup / kWarp;
  const int y = (kWeights ? 0 : tile.first) + row + warp * kRowsOfWarp;
  StoreRows<kWeights, Result>(sums, d, {tile.n, y, kWeights ? tile.expert : 0}, sizes, worker * 4 + warp,
                              memory);
}

template <GroupedKind kKind, int kCluster, typename Result>
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
      Walk<kKind, kCluster> walk(sizes);
      for (int i = first; walk.Find(i, &tile); i += step) {
        for (int block = 0; block < tile.blocks; ++block) {
          hopper::WaitFor(memory.empty(ring.stage), ring.parity ^ 1U);
          ReadBlock<kKind, kCluster>(a, b, tile, block, rank, memory, ring.stage);
          ring.Next();
        }
      }
    }
  } else {
    hopper::TakeRegisters<kRegistersOfWorker>();
    float sums[hopper::kSums];
    Walk<kKind, kCluster> walk(sizes);
    for (int i = first; walk.Find(i, &tile); i += step) {
      MultiplyTile<kKind, kCluster>(tile, worker, memory, &ring, sums);
      StoreTile<kKind, Result>(sums, d, tile, rank, worker, sizes, memory);
    }
    if (threadIdx.x % kWarp == 0) hopper::WaitForStores();
  }
  __syncwarp();
  // The other block may still arrive at barriers here.
  if constexpr (kCluster > 1) hopper::MeetCluster();
#endif
}

using Kernel = void (*)(CUtensorMap, CUtensorMap, CUtensorMap, Sizes);

template <GroupedKind kKind, typename Result>
Kernel KernelOfCluster(int cluster) {
  return cluster == 1 ? GroupedKernel<kKind, 1, Result> : GroupedKernel<kKind, 2, Result>;
}

Kernel KernelOf(const GroupedSm90a& grouped) {
  switch (grouped.product.kind) {
    case GroupedKind::kForward:
      return KernelOfCluster<GroupedKind::kForward, __nv_bfloat16>(grouped.cluster);
    case GroupedKind::kDgrad:
      return KernelOfCluster<GroupedKind::kDgrad, __nv_bfloat16>(grouped.cluster);
    default:
      return grouped.product.result == DType::kF32
                 ? KernelOfCluster<GroupedKind::kWgrad, float>(grouped.cluster)
                 : KernelOfCluster<GroupedKind::kWgrad, __nv_bfloat16>(grouped.cluster);
  }
}

Sizes SizesOf(const GroupedSm90a& grouped) {
  const GroupedProduct& product = grouped.product;
  const bool forward = product.kind == GroupedKind::kForward;
  return {.experts = static_cast<int>(product.experts),
          .m = static_cast<int>(product.out),
          .n = static_cast<int>(product.n()),
          .k = static_cast<int>(forward ? product.in : product.out),
          .accumulate = product.accumulate,
          .groups = reinterpret_cast<const int2*>(product.groups),
          .order = grouped.order};
}

}  // namespace

bool HasGroupedSm90a() {
#ifdef ENGINE_SM90A
  return true;
#else
  return false;
#endif
}

GroupedBoxes GroupedBoxesOf(const GroupedProduct& product) {
  GroupedBoxes boxes;
  boxes.a = {kBlockK, product.kind == GroupedKind::kWgrad ? 64U : kTileM};
  boxes.b = {64, product.kind == GroupedKind::kForward ? 128U : kBlockK};
  boxes.d = {static_cast<std::uint32_t>(kRowBytes / SizeOf(product.result)), kRowsOfWarp};
  return boxes;
}

int GroupedClusterOf(const GroupedProduct& product) {
  // Measured on an H200: with 8192 rows an expert two blocks are faster by a tenth, with 2048 by nothing, as half of the
  // groups have an odd number of tiles.
  constexpr std::int64_t kRowsForTwo = 2048;
  if (product.kind != GroupedKind::kWgrad) return product.rows / product.experts >= kRowsForTwo ? 2 : 1;
  constexpr std::int64_t kManyTiles = 8;  // of which one that is idle does not matter
  const std::int64_t tiles = (product.out + kTileM - 1) / kTileM;
  return tiles % 2 == 0 || tiles > kManyTiles ? 2 : 1;
}

cudaError_t AllowGroupedSm90a(const GroupedSm90a& grouped) {
  return cudaFuncSetAttribute(KernelOf(grouped), cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
}

cudaError_t LaunchGroupedSm90a(const GroupedSm90a& grouped, cudaStream_t stream) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {static_cast<unsigned>(grouped.cluster), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned>(grouped.multiprocessors / grouped.cluster * grouped.cluster);
  config.blockDim = kThreads;
  config.dynamicSmemBytes = kSharedBytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, KernelOf(grouped), grouped.a, grouped.b, grouped.d, SizesOf(grouped));
}

}  // namespace engine::backend::cuda
