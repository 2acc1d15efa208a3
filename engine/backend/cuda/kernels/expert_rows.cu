#include "engine/backend/cuda/kernels/expert_rows.h"

#include <algorithm>

#include "engine/backend/cuda/kernels/elementwise.cuh"
#include "engine/backend/cuda/kernels/expert_rows.cuh"
#include "engine/backend/cuda/profile/scratch_experts.h"

namespace engine::backend::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kTallyThreads = 1024;
constexpr int kGroupThreads = 1024;

// −1 of an expert that is not here.
__device__ __forceinline__ int LocalExpert(std::int32_t expert, const ExpertsHere& experts) {
  const std::int64_t local = expert - experts.first;
  return local >= 0 && local < experts.count ? static_cast<int>(local) : -1;
}

// A block a sample.
__global__ void __launch_bounds__(kTallyThreads)
    TallyKernel(const std::int32_t* __restrict__ choice, std::int64_t choices, const ExpertsHere experts,
                float* __restrict__ count) {
  extern __shared__ int counts[];
  for (int e = threadIdx.x; e < experts.count; e += kTallyThreads) counts[e] = 0;
  __syncthreads();
  const std::int32_t* const of_sample = choice + blockIdx.x * choices;
  for (std::int64_t c = threadIdx.x; c < choices; c += kTallyThreads) {
    const int expert = LocalExpert(of_sample[c], experts);
    if (expert >= 0) atomicAdd(&counts[expert], 1);
  }
  __syncthreads();
  for (int e = threadIdx.x; e < experts.count; e += kTallyThreads)
    count[blockIdx.x * experts.count + e] = static_cast<float>(counts[e]);
}

// ---- place: a stable sort by counting, in chunks ----------------------------------------------------------

// Calls body(choice, its local expert, the place of the choice) for each choice of the warp's chunk, in which `next` [experts]
// in shared memory numbers the choices of each expert in order, from what it holds.
template <typename Body>
__device__ __forceinline__ void NumberChoices(const std::int32_t* choice, std::int64_t choices,
                                              const ExpertsHere& experts, int* next, const Body& body) {
  const int lane = threadIdx.x;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kPlaceChunk;
  for (int from = 0; from < kPlaceChunk; from += kWarp) {
    const std::int64_t c = first + from + lane;
    const int expert = c < choices ? LocalExpert(choice[c], experts) : -1;
    const unsigned same = __match_any_sync(kAllLanes, expert);
    const int before = __popc(same & ((1U << lane) - 1U));
    const int place = expert >= 0 ? next[expert] + before : -1;
    __syncwarp();
    if (expert >= 0 && before == 0) next[expert] += __popc(same);
    __syncwarp();
    if (c < choices) body(c, expert, place);
  }
}

// A warp a chunk: of_chunk[expert, chunk] is how many choices of the chunk fall on the expert.
__global__ void __launch_bounds__(kWarp)
    CountChunksKernel(const std::int32_t* __restrict__ choice, std::int64_t choices,
                      const ExpertsHere experts, std::int32_t* __restrict__ of_chunk) {
  extern __shared__ int next[];
  for (int e = threadIdx.x; e < experts.count; e += kWarp) next[e] = 0;
  __syncwarp();
  NumberChoices(choice, choices, experts, next, [](std::int64_t, int, int) {});
  for (int e = threadIdx.x; e < experts.count; e += kWarp)
    of_chunk[static_cast<std::int64_t>(e) * gridDim.x + blockIdx.x] = next[e];
}

// Of the block's numbers, the sum of those of the threads before; *total: of all.
template <int kCount>
__device__ __forceinline__ int SumBefore(int x, int* shared, int* total) {
  __syncthreads();
  shared[threadIdx.x] = x;
  __syncthreads();
#pragma unroll
  for (int step = 1; step < kCount; step *= 2) {
    const int other = static_cast<int>(threadIdx.x) >= step ? shared[threadIdx.x - step] : 0;
    __syncthreads();
    shared[threadIdx.x] += other;
    __syncthreads();
  }
  *total = shared[kCount - 1];
  return shared[threadIdx.x] - x;
}

// A block an expert: of_chunk[expert, chunk] becomes the number of the expert's choices in the chunks before; groups[expert,
// 1] their number in all.
__global__ void __launch_bounds__(kThreads)
    ScanChunksKernel(std::int32_t* __restrict__ of_chunk, std::int64_t chunks,
                     std::int32_t* __restrict__ groups) {
  __shared__ int shared[kThreads];
  std::int32_t* const of_expert = of_chunk + blockIdx.x * chunks;
  int before = 0;
  for (std::int64_t from = 0; from < chunks; from += kThreads) {
    const std::int64_t chunk = from + threadIdx.x;
    int total;
    const int here = SumBefore<kThreads>(chunk < chunks ? of_expert[chunk] : 0, shared, &total);
    if (chunk < chunks) of_expert[chunk] = before + here;
    before += total;
  }
  if (threadIdx.x == 0) groups[2 * blockIdx.x + 1] = before;
}

// One block: groups[expert, 0], the first row of each expert, behind those of the experts before.
__global__ void __launch_bounds__(kGroupThreads)
    FirstRowsKernel(std::int64_t experts, std::int32_t* __restrict__ groups) {
  __shared__ int shared[kGroupThreads];
  constexpr int kAlignment = static_cast<int>(graph::kRowAlignment);
  int before = 0;
  for (std::int64_t from = 0; from < experts; from += kGroupThreads) {
    const std::int64_t expert = from + threadIdx.x;
    const int rows = expert < experts ? groups[2 * expert + 1] : 0;
    int total;
    const int here =
        SumBefore<kGroupThreads>((rows + kAlignment - 1) / kAlignment * kAlignment, shared, &total);
    if (expert < experts) groups[2 * expert] = before + here;
    before += total;
  }
}

// A warp a chunk.
__global__ void __launch_bounds__(kWarp)
    PlaceChunksKernel(const std::int32_t* __restrict__ choice, std::int64_t choices,
                      const ExpertsHere experts, const std::int32_t* __restrict__ of_chunk,
                      const std::int32_t* __restrict__ groups, std::int32_t* __restrict__ choice_of,
                      std::int32_t* __restrict__ row_of) {
  extern __shared__ int next[];
  for (int e = threadIdx.x; e < experts.count; e += kWarp)
    next[e] = groups[2 * e] + of_chunk[static_cast<std::int64_t>(e) * gridDim.x + blockIdx.x];
  __syncwarp();
  NumberChoices(choice, choices, experts, next, [&](std::int64_t c, int expert, int row) {
    row_of[c] = row;
    if (expert >= 0) choice_of[row] = static_cast<std::int32_t>(c);
  });
}

// ---- spread and combine -----------------------------------------------------------------------------------

// Kernels on a window of rows (kWindow) have so many blocks at most, which take their tokens in turns: most windows but the first
// have no rows, and blocks that find none cost time too. Kernels on all rows ask none of it.
constexpr std::int64_t kBlocksOfWindow = 1056;

bool IsWindow(const RowPlaces& places) { return places.last_group != nullptr; }

unsigned TokenBlocks(const RowPlaces& places) {
  const std::int64_t blocks = CeilDivide(places.tokens, kThreads / kWarp);
  return static_cast<unsigned>(places.first > 0 ? std::min(blocks, kBlocksOfWindow) : blocks);
}

// Calls body(token) for the token of this warp, or of a window that has rows for each of its tokens.
template <bool kWindow, typename Body>
__device__ __forceinline__ void ForTokens(const RowPlaces& places, const Body& body) {
  std::int64_t token = static_cast<std::int64_t>(blockIdx.x) * (kThreads / kWarp) + threadIdx.x / kWarp;
  if constexpr (kWindow) {
    if (places.first > 0 && EndOfRows(places.last_group) <= places.first) return;
    const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * (kThreads / kWarp);
    for (; token < places.tokens; token += step) body(token);
  } else {
    if (token < places.tokens) body(token);
  }
}

// A row of all as one of the window; −1: it is in another window, or there is none.
template <bool kWindow>
__device__ __forceinline__ int RowHere(const RowPlaces& places, int row) {
  if constexpr (!kWindow) return row;
  const int here = row - places.first;
  return row >= 0 && here >= 0 && here < places.rows ? here : -1;
}

// A warp a token, which it reads once. Word: a part of a row that one thread copies.
template <typename Word, bool kWindow>
__global__ void __launch_bounds__(kThreads)
    SpreadKernel(const RowPlaces places, int words, const Word* __restrict__ x, Word* __restrict__ out) {
  ForTokens<kWindow>(places, [&](std::int64_t token) {
    const int lane = threadIdx.x % kWarp;
    const Word* const from = x + token * words;
    for (int first = 0; first < places.k; first += kWarp) {
      const int count = min(places.k - first, kWarp);
      const int rows =
          lane < count ? RowHere<kWindow>(places, places.row_of[token * places.k + first + lane]) : -1;
      if (!__any_sync(kAllLanes, rows >= 0)) continue;
      for (int base = 0; base < words; base += 2 * kWarp) {
        const int i = base + lane;
        const bool one = i < words;
        const bool two = i + kWarp < words;
        const Word a = one ? __ldcs(from + i) : Word{};
        const Word b = two ? __ldcs(from + i + kWarp) : Word{};
        for (int j = 0; j < count; ++j) {
          const int row = __shfl_sync(kAllLanes, rows, j);
          if (row < 0) continue;
          Word* const to = out + static_cast<std::int64_t>(row) * words + i;
          if (one) __stcs(to, a);
          if (two) __stcs(to + kWarp, b);
        }
      }
    }
  });
}

// A block for each kRowAlignment rows: zeros where a group's last rows are nobody's.
template <typename Word>
__global__ void __launch_bounds__(kThreads)
    ZeroRowsKernel(const RowPlaces places, int words, Word* __restrict__ out) {
  const std::int64_t first = blockIdx.x * graph::kRowAlignment;
  if (places.choice_of[first] < 0) return;  // behind the last group
  for (std::int64_t row = first + threadIdx.x / kWarp; row < first + graph::kRowAlignment;
       row += kThreads / kWarp) {
    if (places.choice_of[row] >= 0) continue;
    for (int i = threadIdx.x % kWarp; i < words; i += kWarp) __stcs(out + row * words + i, Word{});
  }
}

template <typename Word>
void LaunchSpreadOf(const RowPlaces& places, std::int64_t row_bytes, const void* x, void* out,
                    cudaStream_t stream) {
  const auto words = static_cast<int>(row_bytes / static_cast<std::int64_t>(sizeof(Word)));
  const auto kernel = IsWindow(places) ? SpreadKernel<Word, true> : SpreadKernel<Word, false>;
  kernel<<<TokenBlocks(places), kThreads, 0, stream>>>(places, words, static_cast<const Word*>(x),
                                                       static_cast<Word*>(out));
  const auto row_blocks = static_cast<unsigned>(places.rows / graph::kRowAlignment);
  ZeroRowsKernel<Word><<<row_blocks, kThreads, 0, stream>>>(places, words, static_cast<Word*>(out));
}

template <typename T, int kWidth>
struct RowPart {
  Pack8<T> pack;
  __device__ void Load(const T* from) { pack = LoadPack8Streaming(from); }
  __device__ void AddTo(float (&sum)[kWidth]) const {
    float x[8];
    Unpack8(pack, x);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) sum[i] += x[i];
  }
};
template <typename T>
struct RowPart<T, 1> {
  T value;
  __device__ void Load(const T* from) { value = *from; }
  __device__ void AddTo(float (&sum)[1]) const { sum[0] += ToFloat(value); }
};

// A warp a token, kWidth columns a lane: 8, or 1 where columns are no multiple of 8. Windows behind the first add to what is there.
template <typename T, int kWidth, bool kWindow>
__global__ void __launch_bounds__(kThreads) CombineKernel(const RowPlaces places, std::int64_t columns,
                                                          const T* __restrict__ rows, T* __restrict__ y) {
  constexpr int kInFlight = sizeof(T) == 2 ? 8 : 4;  // rows that are loaded before the first is added
  ForTokens<kWindow>(places, [&](std::int64_t token) {
    const bool adds = kWindow && places.first > 0;
    const int lane = threadIdx.x % kWarp;
    const std::int32_t* const row_of = places.row_of + token * places.k;
    const int first_rows = lane < places.k ? RowHere<kWindow>(places, row_of[lane]) : -1;
    if (adds && places.k <= kWarp && !__any_sync(kAllLanes, first_rows >= 0)) return;
    for (std::int64_t base = 0; base < columns; base += kWarp * kWidth) {
      const std::int64_t column = base + lane * kWidth;
      float sum[kWidth] = {};
      if (adds && column < columns) LoadElements(y + token * columns + column, sum);
      for (int j = 0; j < places.k; j += kInFlight) {
        RowPart<T, kWidth> parts[kInFlight];
        int row[kInFlight];
#pragma unroll
        for (int i = 0; i < kInFlight; ++i) {
          const int at = j + i;
          row[i] = __shfl_sync(kAllLanes, first_rows, at % kWarp);
          if (at >= kWarp && at < places.k) row[i] = RowHere<kWindow>(places, row_of[at]);
          if (at >= places.k || column >= columns) row[i] = -1;
          if (row[i] >= 0) parts[i].Load(rows + row[i] * columns + column);
        }
#pragma unroll
        for (int i = 0; i < kInFlight; ++i) {
          if (row[i] >= 0) parts[i].AddTo(sum);
        }
      }
      if (column < columns) StoreElements(y + token * columns + column, sum);
    }
  });
}

template <typename T, int kWidth>
void LaunchCombineOf(const RowPlaces& places, std::int64_t columns, const void* rows, void* y,
                     cudaStream_t stream) {
  const auto kernel = IsWindow(places) ? CombineKernel<T, kWidth, true> : CombineKernel<T, kWidth, false>;
  kernel<<<TokenBlocks(places), kThreads, 0, stream>>>(places, columns, static_cast<const T*>(rows),
                                                       static_cast<T*>(y));
}

// A thread an expert and window.
__global__ void __launch_bounds__(kThreads)
    WindowGroupsKernel(const std::int32_t* __restrict__ groups, std::int64_t experts, std::int64_t rows,
                       std::int64_t windows, std::int32_t* __restrict__ out) {
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= windows * experts) return;
  const std::int64_t expert = at % experts;
  const std::int64_t first = at / experts * rows;
  const std::int64_t begin = groups[2 * expert];
  const std::int64_t end = begin + groups[2 * expert + 1];
  const std::int64_t from = min(max(begin, first), first + rows);
  const std::int64_t to = min(max(end, first), first + rows);
  out[2 * at] = static_cast<std::int32_t>(from - first);
  out[2 * at + 1] = static_cast<std::int32_t>(max(to - from, std::int64_t{0}));
}

// One thread: a few experts.
__global__ void ExtraRowsKernel(const std::int32_t* __restrict__ groups, std::int64_t experts,
                                std::int64_t rows, bool accumulate, double* sum) {
  std::int64_t extra = 0;
  for (std::int64_t e = 0; e < experts; ++e) {
    const std::int64_t end = std::int64_t{groups[2 * e]} + groups[2 * e + 1];
    extra += max(end - max(std::int64_t{groups[2 * e]}, rows), std::int64_t{0});
  }
  *sum = (accumulate ? *sum : 0.0) + static_cast<double>(extra);
}

// Bytes of shared memory for a number of each expert.
std::size_t ExpertBytes(const ExpertsHere& experts) {
  return static_cast<std::size_t>(experts.count) * sizeof(int);
}

}  // namespace

void LaunchTally(const std::int32_t* choice, std::int64_t samples, std::int64_t choices,
                 const ExpertsHere& experts, float* count, cudaStream_t stream) {
  if (samples == 0 || experts.count == 0) return;
  TallyKernel<<<static_cast<unsigned>(samples), kTallyThreads, ExpertBytes(experts), stream>>>(
      choice, choices, experts, count);
}

void LaunchPlace(const std::int32_t* choice, std::int64_t choices, const ExpertsHere& experts,
                 std::int32_t* scratch, std::int64_t rows, std::int32_t* choice_of, std::int32_t* row_of,
                 std::int32_t* groups, cudaStream_t stream) {
  constexpr int kNone = 0xFF;  // bytes of −1
  cudaMemsetAsync(choice_of, kNone, static_cast<std::size_t>(rows) * sizeof(std::int32_t), stream);
  if (choices == 0 || experts.count == 0) {
    cudaMemsetAsync(row_of, kNone, static_cast<std::size_t>(choices) * sizeof(std::int32_t), stream);
    cudaMemsetAsync(groups, 0, 2 * ExpertBytes(experts), stream);
    return;
  }
  const std::int64_t chunks = CeilDivide(choices, kPlaceChunk);
  const std::size_t shared = ExpertBytes(experts);
  CountChunksKernel<<<static_cast<unsigned>(chunks), kWarp, shared, stream>>>(choice, choices, experts,
                                                                              scratch);
  ScanChunksKernel<<<static_cast<unsigned>(experts.count), kThreads, 0, stream>>>(scratch, chunks, groups);
  FirstRowsKernel<<<1, kGroupThreads, 0, stream>>>(experts.count, groups);
  PlaceChunksKernel<<<static_cast<unsigned>(chunks), kWarp, shared, stream>>>(
      choice, choices, experts, scratch, groups, choice_of, row_of);
}

void LaunchWindowGroups(const std::int32_t* groups, std::int64_t experts, std::int64_t rows,
                        std::int64_t windows, std::int32_t* out, cudaStream_t stream) {
  if (windows * experts == 0) return;
  WindowGroupsKernel<<<static_cast<unsigned>(CeilDivide(windows * experts, kThreads)), kThreads, 0, stream>>>(
      groups, experts, rows, windows, out);
}

void LaunchExtraRows(const std::int32_t* groups, std::int64_t experts, std::int64_t rows, bool accumulate,
                     double* sum, cudaStream_t stream) {
  ExtraRowsKernel<<<1, 1, 0, stream>>>(groups, experts, rows, accumulate, sum);
}

void LaunchSpread(const RowPlaces& places, std::int64_t row_bytes, const void* x, void* out,
                  cudaStream_t stream) {
  if (places.tokens == 0 || places.rows == 0 || row_bytes == 0) return;
  if (row_bytes % 16 == 0) {
    LaunchSpreadOf<uint4>(places, row_bytes, x, out, stream);
  } else if (row_bytes % 4 == 0) {
    LaunchSpreadOf<std::uint32_t>(places, row_bytes, x, out, stream);
  } else {
    LaunchSpreadOf<std::uint16_t>(places, row_bytes, x, out, stream);
  }
}

void LaunchCombine(const RowPlaces& places, DType dtype, std::int64_t columns, const void* rows, void* y,
                   cudaStream_t stream) {
  if (places.tokens == 0 || columns == 0) return;
  WithElementType(dtype, [&](auto element) {
    using T = decltype(element);
    columns % 8 == 0 ? LaunchCombineOf<T, 8>(places, columns, rows, y, stream)
                     : LaunchCombineOf<T, 1>(places, columns, rows, y, stream);
  });
}

}  // namespace engine::backend::cuda
