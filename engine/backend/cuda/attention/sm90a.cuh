// What the kernels of attention on Hopper share: sizes, how tiles of queries and blocks of keys are found, masks, draws.
#pragma once

#include <cuda.h>

#include "engine/backend/cuda/attention/sm90a.h"
#include "engine/backend/cuda/kernels/vector.cuh"
#include "engine/backend/cuda/kernels/wgmma.cuh"
#include "engine/base/attention_draws.h"
#include "engine/graph/alibi.h"
#include "engine/plan/control.h"

#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#pragma nv_diag_suppress 177  // for other GPUs the kernels are empty, and what they are made of unused
#endif

namespace engine::backend::cuda::attention_sm90a {

inline constexpr int kWarpgroup = 128;
inline constexpr int kWarpsOfGroup = 4;
inline constexpr int kBoxAlignment = 1024;
inline constexpr float kLog2E = 1.4426950408889634F;

struct Run {
  int row, count, position, first_tile;
};

// Which biases of scores a kernel is compiled for.
enum class Biases : std::uint8_t {
  kNone,
  kLinear,
  // Trained ones, never beside a cap.
  kByDistance,
  kOfPairs
};

// What the kernels read of a problem.
struct Common {
  int heads, kv_heads, group, queries, keys;
  int head,
      value_head;  // elements, up to those that a kernel is made for: the tensor maps fill the rest with zeros
  int runs, tiles;  // tiles of queries, of all runs
  Run run[kMaxQueryRuns];
  int causal, window;
  const int* slot_of;     // [B]: Sm90aAttention; null: none
  const int2* spans;      // [B, queries]: AttentionProblem; null: none
  const int2* key_spans;  // [B, keys]: Sm90aAttention
  float scale_log2;       // scale · log2(e)
  float softcap;          // 0: none
  float bent_scale;       // scale / softcap
  const void* biases;     // AttentionProblem; null: none
  float bias_scale;       // 1 / scale
  int distance, pairs;
  std::uint32_t drop_below_high;  // drop_below · 2¹⁶
  float keep_scale;
  std::uint32_t key_low, key_high;
  int first_sample, first_head, logical_heads;
  const double* control;
};

struct QueryTile {
  int row, position, rows;
};
template <int kTile>
__device__ __forceinline__ QueryTile TileOf(const Common& p, int tile) {
  const Run& run = p.run[p.runs > 1 && tile >= p.run[1].first_tile ? 1 : 0];
  const int first = (tile - run.first_tile) * kTile;
  return {run.row + first, run.position + first, min(kTile, run.count - first)};
}

// The keys, by their positions, that a query sees, or the queries that see a key: [from, below).
struct Sight {
  int from, below;
};
inline constexpr int kFar = 1 << 30;

// Of the query in a row.
__device__ __forceinline__ Sight SightOf(const Common& c, int sample, int row, int position) {
  Sight sight = {0, c.keys};
  if (c.spans != nullptr) {
    const int2 span = __ldg(c.spans + static_cast<std::int64_t>(sample) * c.queries + row);
    sight = {span.x, min(span.y, c.keys)};
  }
  if (c.causal) {
    sight.below = min(sight.below, position + 1);
    if (c.window > 0) sight.from = max(sight.from, position - c.window + 1);
  }
  return sight;
}
// The queries that belong to a key's document, by their positions; where there are no documents, all queries. A causal mask and a window are
// not looked at: WithMask does so. A place behind the last key has no queries.
__device__ __forceinline__ Sight SpanOfKey(const Common& c, int sample, int key) {
  if (key >= c.keys) return {kFar, kFar};
  if (c.key_spans == nullptr) return {-kFar, kFar};
  const int2 span = __ldg(c.key_spans + static_cast<std::int64_t>(sample) * c.keys + key);
  return {span.x, span.y};
}
// The queries that see a key: those of its span (SpanOfKey) that the causal mask and the window leave.
__device__ __forceinline__ Sight WithMask(const Common& c, int key, const Sight& span) {
  if (c.causal == 0 || key >= c.keys) return span;
  return {max(span.from, key), c.window > 0 ? min(span.below, key + c.window) : span.below};
}

// All keys that one of a tile's queries sees are among these: neither bound falls from query to query.
__device__ __forceinline__ Sight SightOfTile(const Common& c, int sample, const QueryTile& t) {
  const int last = t.rows - 1;
  return {SightOf(c, sample, t.row, t.position).from,
          SightOf(c, sample, t.row + last, t.position + last).below};
}

__device__ __forceinline__ float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// 2^x by arithmetic alone, for x ≤ 0 (of what is above, as masked scores may be in the gradient, the result must not be used), with a relative error of up to 1.02e-4, and 0 where x ≤ −127: where the unit for such
// functions is what is short, which makes one in the time of eight multiplications. 2^x = 2^n · 2^f with n = round(x); the
// polynomial in f in [−½, ½] is the one whose largest error is least among those that are 1 at 0. What is no number becomes the
// largest one, so that it is not lost.
__device__ __forceinline__ float Exp2ByPolynomial(float x) {
  constexpr float kRounds = 12582912.0F;  // 1.5 · 2²³: a number of its size has no bits behind the point
  asm("max.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(-127.0F));
  const float rounded = x + kRounds;
  const float f = x - (rounded - kRounds);
  const float power = fmaf(f, fmaf(f, fmaf(f, 0.0550089512F, 0.2422110097F), 0.6932829305F), 1.0F);
  return __uint_as_float(__float_as_uint(power) + (__float_as_uint(rounded) << 23));
}
// 2^(x · factor) by the same polynomial where |x · factor| ≤ 126: two operations fewer.
__device__ __forceinline__ float BoundedExp2ByPolynomial(float x, float factor) {
  constexpr float kRounds = 12582912.0F;
  const float rounded = fmaf(x, factor, kRounds);
  const float f = fmaf(x, factor, kRounds - rounded);
  const float power = fmaf(f, fmaf(f, fmaf(f, 0.0550089512F, 0.2422110097F), 0.6932829305F), 1.0F);
  return __uint_as_float(__float_as_uint(power) + (__float_as_uint(rounded) << 23));
}
// 2^x of the i-th of a thread's numbers, one in kOneIn by the polynomial; 0: none.
template <int kOneIn>
__device__ __forceinline__ float Exp2Of(float x, int i) {
  if constexpr (kOneIn > 0) {
    if (i % kOneIn == 0) return Exp2ByPolynomial(x);
  }
  return Exp2(x);
}
__device__ __forceinline__ float Tanh(float x) {
  float y;
  asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Waits for all warps of an arrival of `threads` at the block's barrier, or only arrives.
__device__ __forceinline__ void Meet(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ __forceinline__ void ArriveOnly(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ __forceinline__ void Arrive(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// A warp gives back what all of its lanes have read and met behind: one lane arrives for all. compute-sanitizer's racecheck knows only
// of the reads of lanes that arrive themselves, so that in a build for it (ENGINE_RACECHECK) all do.
#ifdef ENGINE_RACECHECK
inline constexpr int kArrivalsOfWarp = kWarp;
#else
inline constexpr int kArrivalsOfWarp = 1;
#endif
__device__ __forceinline__ void ArriveAsWarp(std::uint32_t barrier, int lane) {
  if (lane < kArrivalsOfWarp) Arrive(barrier);
}
// The same, of warps that do not keep their lane in a register.
__device__ __forceinline__ void ArriveAsWarp(std::uint32_t barrier) {
  if (threadIdx.x % kWarp < kArrivalsOfWarp) Arrive(barrier);
}

// The first element of a box of tokens of a head.
struct HeadPlace {
  int element, token, head, kv_head, sample;
};
__device__ __forceinline__ void LoadHead(const CUtensorMap& tensor, const HeadPlace& at, std::uint32_t shared,
                                         std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, "
      "%6, %7}], "
      "[%2];" ::"r"(shared),
      "l"(&tensor), "r"(barrier), "r"(at.element), "r"(at.token), "r"(at.head), "r"(at.kv_head),
      "r"(at.sample)
      : "memory");
}
__device__ __forceinline__ void PrefetchHead(const CUtensorMap& tensor, const HeadPlace& at) {
  asm volatile("cp.async.bulk.prefetch.tensor.5d.L2.global.tile [%0, {%1, %2, %3, %4, %5}];" ::"l"(&tensor),
               "r"(at.element), "r"(at.token), "r"(at.head), "r"(at.kv_head), "r"(at.sample)
               : "memory");
}
__device__ __forceinline__ void StoreHead(const CUtensorMap& tensor, const HeadPlace& at,
                                          std::uint32_t shared) {
  asm volatile(
      "cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5, %6}], [%1];" ::"l"(
          &tensor),
      "r"(shared), "r"(at.element), "r"(at.token), "r"(at.head), "r"(at.kv_head), "r"(at.sample)
      : "memory");
}
__device__ __forceinline__ void CommitStores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
__device__ __forceinline__ void LoadBytes(const void* from, std::uint32_t shared, int bytes,
                                          std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}
__device__ __forceinline__ void StoreBytes(void* to, std::uint32_t shared, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(shared),
               "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void AddFloats(void* to, std::uint32_t shared, int bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to),
               "r"(shared), "r"(bytes)
               : "memory");
}

// ------------------------------------------------------------------------------------------------------- matrices

// The widest swizzle's columns of 16 bits that all columns are a multiple of.
constexpr int WidestPart(int columns) { return columns % 64 == 0 ? 64 : columns % 32 == 0 ? 32 : 16; }

// A matrix of elements of 16 bits in shared memory: parts of kPart columns of all rows, one behind the other, each as a box with
// a swizzle of that width brings it. Products take whole parts for their columns.
template <int kRowCount, int kColumnCount, int kPart = WidestPart(kColumnCount)>
struct BoxedMatrix {
  static_assert(kColumnCount % kPart == 0);
  static constexpr int kRows = kRowCount;
  static constexpr int kColumns = kColumnCount;
  static constexpr int kPartColumns = kPart;
  static constexpr int kRowBytes = kPart * 2;
  static constexpr int kPartBytes = kRows * kRowBytes;
  static constexpr int kBytes = kRows * kColumns * 2;

  // How many bytes behind the first part the one begins whose first column it is.
  static constexpr int ColumnAt(int column) { return column * kRows * 2; }

  // Operands of products that sum over columns, or over rows: the step's 16 of these, of what begins at an address.
  static __device__ __forceinline__ std::uint64_t StepOfColumns(std::uint32_t at, int step) {
    constexpr int kSteps = kPart / 16;
    return hopper::MatrixAt<kRowBytes>(at + step / kSteps * kPartBytes, 0) +
           hopper::StepOf16<false>(step % kSteps);
  }
  static __device__ __forceinline__ std::uint64_t StepOfRows(std::uint32_t at, int step) {
    return hopper::MatrixAt<kRowBytes>(at, kPartBytes) + hopper::StepOf16<true, kRowBytes>(step);
  }

  // Reads all columns of a head: at.element is 0.
  static __device__ __forceinline__ void Load(const CUtensorMap& tensor, const HeadPlace& at,
                                              std::uint32_t shared, std::uint32_t barrier) {
#pragma unroll
    for (int column = 0; column < kColumns; column += kPart) {
      LoadHead(tensor, {column, at.token, at.head, at.kv_head, at.sample}, shared + ColumnAt(column),
               barrier);
    }
  }

  // Asks for the same rows to be brought to L2.
  static __device__ __forceinline__ void Prefetch(const CUtensorMap& tensor, const HeadPlace& at) {
#pragma unroll
    for (int column = 0; column < kColumns; column += kPart)
      PrefetchHead(tensor, {column, at.token, at.head, at.kv_head, at.sample});
  }

  // Writes or reads pairs of a step of 16 columns as hopper::StoreFourMatrices does: `row` is the one that this lane gives the address of.
  static __device__ __forceinline__ void StorePairs(std::uint32_t shared, int row, int step,
                                                    const std::uint32_t (&pairs)[4]) {
    hopper::StoreFourMatrices(PairsAt(shared, row, step), pairs);
  }
  static __device__ __forceinline__ void LoadPairs(std::uint32_t shared, int row, int step,
                                                   std::uint32_t (&pairs)[4]) {
    hopper::LoadFourMatrices(PairsAt(shared, row, step), pairs);
  }
  // Reads pairs of the transposed matrix: of its 16 rows from `column` on, and its columns' step of 16.
  static __device__ __forceinline__ void LoadTransposedPairs(std::uint32_t shared, int column, int step,
                                                             std::uint32_t (&pairs)[4]) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const int row = step * 16 + lane / 16 * 8 + lane % 8;
    const int byte = (column % kPart + lane / 8 % 2 * 8) * 2;
    hopper::LoadFourTransposed(
        shared + column / kPart * kPartBytes + row * kRowBytes + hopper::Swizzled<kRowBytes>(row, byte),
        pairs);
  }

 private:
  static __device__ __forceinline__ std::uint32_t PairsAt(std::uint32_t shared, int row, int step) {
    constexpr int kSteps = kPart / 16;
    const int byte = step % kSteps * 32 + static_cast<int>(threadIdx.x) % kWarp / 16 * 16;
    return shared + step / kSteps * kPartBytes + row * kRowBytes + hopper::Swizzled<kRowBytes>(row, byte);
  }
};

// The biases of pairs of a tile's queries and a block's keys: at.element is the first key, at.token the first query.
template <typename PairBiases>
__device__ __forceinline__ void LoadPairBiases(const CUtensorMap& biases, const HeadPlace& at,
                                               std::uint32_t shared, std::uint32_t barrier) {
#pragma unroll
  for (int column = 0; column < PairBiases::kColumns; column += PairBiases::kPartColumns) {
    LoadHead(biases, {at.element + column, at.token, at.head, at.kv_head, 0},
             shared + PairBiases::ColumnAt(column), barrier);
  }
}

// d[64, rows] = a[64, columns] · b[rows, columns]ᵀ, of rows of two matrices: under way when this returns.
template <typename T, typename A, typename B, int kSums>
__device__ __forceinline__ void IssueScores(std::uint32_t a, std::uint32_t b, float (&d)[kSums]) {
  static_assert(A::kColumns == B::kColumns);
#pragma unroll
  for (int step = 0; step < A::kColumns / 16; ++step) {
    hopper::Product<T, 2 * kSums>::template Add<false, false>(A::StepOfColumns(a, step),
                                                              B::StepOfColumns(b, step), d, step > 0);
  }
  hopper::EndProducts();
}

// ---------------------------------------------------------------------------------------------------------- draws

// A block of draws (base/attention_draws.h), whose counter is c0 to c3.
struct Draws {
  std::uint32_t words[4];
};
__device__ __forceinline__ Draws Draw(const Common& p, std::uint32_t c0, std::uint32_t c1, std::uint32_t c2,
                                      std::uint32_t c3) {
  std::uint32_t k0 = p.key_low;
  std::uint32_t k1 = p.key_high;
#pragma unroll
  for (int round = 0; round < kDropoutDrawRounds; ++round) {
    const std::uint64_t product0 = std::uint64_t{0xD2511F53U} * c0;
    const std::uint64_t product1 = std::uint64_t{0xCD9E8D57U} * c2;
    c0 = static_cast<std::uint32_t>(product1 >> 32) ^ c1 ^ k0;
    c2 = static_cast<std::uint32_t>(product0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<std::uint32_t>(product1);
    c3 = static_cast<std::uint32_t>(product0);
    k0 += 0x9E3779B9U;
    k1 += 0xBB67AE85U;
  }
  return {{c0, c1, c2, c3}};
}

// Of a head here, times log2(e).
__device__ __forceinline__ float SlopeOf(const Common& p, int head) {
  return kLog2E * exp2f(static_cast<float>(graph::AlibiExponent(p.first_head + head, p.logical_heads)));
}

__device__ __forceinline__ std::uint32_t HeadOfDraws(const Common& p, int sample, int head) {
  return static_cast<std::uint32_t>(p.first_sample + sample) * static_cast<std::uint32_t>(p.logical_heads) +
         static_cast<std::uint32_t>(p.first_head + head);
}

// A note that one thread leaves in shared memory for others.
template <typename Note>
__device__ __forceinline__ void PutNote(std::uint32_t shared, const Note& note) {
  static_assert(sizeof(Note) == sizeof(uint4));
  const uint4& words = reinterpret_cast<const uint4&>(note);
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(shared), "r"(words.x), "r"(words.y),
               "r"(words.z), "r"(words.w)
               : "memory");
}
template <typename Note>
__device__ __forceinline__ Note GetNote(std::uint32_t shared) {
  uint4 words;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
               : "r"(shared)
               : "memory");
  return reinterpret_cast<const Note&>(words);
}

// A barrier ring's place.
template <int kStages>
struct Ring {
  std::uint32_t stage = 0, parity = 0;
  __device__ __forceinline__ void Next() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1U;
    }
  }
};

}  // namespace engine::backend::cuda::attention_sm90a
