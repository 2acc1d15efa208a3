// The parts that both forms of attention's backward pass on Hopper, for narrow and for wide heads, are made of. They read tiles and
// blocks into shared memory, in the order of backward_schedule_sm90a.cuh, and compute probabilities and gradients of scores.
#pragma once

#include "engine/backend/cuda/attention/backward_schedule_sm90a.cuh"
#include "engine/backend/cuda/attention/distance_sm90a.cuh"
#include "engine/backend/cuda/attention/rows_sm90a.cuh"
#include "engine/backend/cuda/profile/attention_tiles.h"

namespace engine::backend::cuda::attention_sm90a {

// What both forms of the pass have: heads of kE elements of q and k and of kU of v, tiles of kTile queries, blocks of kBlock
// keys.
template <typename Element, int kHeadElements, int kValueElements, int kTile, int kBlock, bool kIsCapped,
          Biases kBiasesOfScores, bool kDrops>
struct BackwardSizes {
  using T = Element;
  static constexpr int kE = kHeadElements;
  static constexpr int kU = kValueElements;
  static constexpr int kWorkers = 2;
  static constexpr int kQueries = kTile;
  static constexpr int kKeys = kBlock;
  static constexpr bool kCapped = kIsCapped;
  static constexpr Biases kBiases = kBiasesOfScores;
  static constexpr bool kOfPairs = kBiases == Biases::kOfPairs;
  static_assert(!kIsCapped || kBiases == Biases::kNone || kBiases == Biases::kLinear);
  // One in so many exponentials is made by a polynomial: caps of short heads keep the unit for such functions busy.
  static constexpr int kPolynomial = kCapped && kE == 64 ? 4 : 0;
  static constexpr bool kDropout = kDrops;
  // With caps or dropout registers are short in the loop over steps of narrow heads: notes of spans, and dk and dv that are copied out of shared
  // memory, would make it up to a fifth longer.
  static constexpr bool kHasRoom = !kCapped && !kDropout;
  static constexpr int kStages = 2;
  static constexpr int kThreads = (kWorkers + 1) * kWarpgroup;
  static constexpr int kQueryColumns = QueryColumns(kE, kTile);  // of dq that a worker has
  static constexpr int kSumsColumns = SumsColumns(kE, kTile);
  using Q = BoxedMatrix<kQueries, kE>;
  using DO = BoxedMatrix<kQueries, kU>;
  using K = BoxedMatrix<kKeys, kE, WidestPart(kQueryColumns)>;  // a worker multiplies dq from whole parts
  using V = BoxedMatrix<kKeys, kU>;
  using Scores = BoxedMatrix<kKeys, kQueries>;  // probabilities, or gradients of scores
  using PairBiases = BoxedMatrix<kQueries, kKeys>;
  // With the workers' as many as the block starts with; more would be waited for without end.
  static constexpr int kReaderRegisters = 24;
  static constexpr int kWorkerRegisters = 240;
};

template <typename Form>
struct BackwardMemory {
  static constexpr int kRowsBytes = Form::kQueries * 4;
  static constexpr int kNoteBytes = 16;
  static constexpr int kNotes = 2 + 2 * Form::kWorkers + Form::kStages;
  static constexpr int kBarriers = 7 + 2 * (Form::kStages + Form::kDOStages);
  static constexpr int kBytes = Form::K::kBytes + Form::V::kBytes +
                                Form::kStages * (Form::Q::kBytes + kRowsBytes) +
                                Form::kDOStages * (Form::DO::kBytes + kRowsBytes) + Form::kScoreBytes +
                                Form::kSumsBytes + kNotes * kNoteBytes + kBarriers * 8;

  std::uint32_t base;
  __device__ explicit BackwardMemory(const char* raw) : base(hopper::SharedAddress(raw)) {}
  __device__ std::uint32_t k() const { return base; }
  __device__ std::uint32_t v() const { return base + Form::K::kBytes; }
  __device__ std::uint32_t q(std::uint32_t stage) const {
    return v() + Form::V::kBytes + stage * Form::Q::kBytes;
  }
  __device__ std::uint32_t d_o(std::uint32_t stage) const {
    return q(Form::kStages) + stage * Form::DO::kBytes;
  }
  __device__ std::uint32_t scores() const { return d_o(Form::kDOStages); }
  // The biases of a stage's tile are where the gradients of its scores are put afterwards.
  __device__ std::uint32_t biases(std::uint32_t stage) const {
    return scores() + stage * (Form::kScoreBytes / Form::kStages);
  }
  __device__ std::uint32_t sums() const { return scores() + Form::kScoreBytes; }
  __device__ std::uint32_t lse(std::uint32_t stage) const {
    return sums() + Form::kSumsBytes + stage * kRowsBytes;
  }
  __device__ std::uint32_t delta(std::uint32_t stage) const {
    return lse(Form::kStages) + stage * kRowsBytes;
  }
  __device__ std::uint32_t block_note() const { return delta(Form::kDOStages); }
  __device__ std::uint32_t item_note() const { return block_note() + kNoteBytes; }
  __device__ std::uint32_t tile_note(std::uint32_t stage) const {
    return block_note() + (2 + stage) * kNoteBytes;
  }
  // Blocks use two of them in turn.
  __device__ std::uint32_t sight_note(std::uint32_t which, int worker) const {
    return tile_note(Form::kStages) + (which * Form::kWorkers + worker) * kNoteBytes;
  }
  __device__ std::uint32_t barrier(int i) const { return block_note() + kNotes * kNoteBytes + i * 8; }

  // The form for narrow heads has two buffers, which its steps use in turn: `ds` are gradients of scores, `dq` what a step adds
  // to the gradient of queries.
  __device__ std::uint32_t ds(std::uint32_t which) const {
    return scores() + which * (Form::kScoreBytes / 2);
  }
  __device__ std::uint32_t dq(std::uint32_t buffer) const { return sums() + buffer * Form::kDQBytes; }
  __device__ std::uint32_t kv_full() const { return barrier(0); }
  __device__ std::uint32_t kv_empty() const { return barrier(1); }
  __device__ std::uint32_t item_full() const { return barrier(2); }
  __device__ std::uint32_t item_empty() const { return barrier(3); }
  __device__ std::uint32_t v_full() const { return barrier(4); }
  __device__ std::uint32_t v_empty() const { return barrier(5); }
  __device__ std::uint32_t dv_read() const { return barrier(6); }
  __device__ std::uint32_t q_full(std::uint32_t stage) const { return barrier(7) + stage * 8; }
  __device__ std::uint32_t q_empty(std::uint32_t stage) const { return q_full(Form::kStages + stage); }
  __device__ std::uint32_t do_full(std::uint32_t stage) const { return q_full(2 * Form::kStages + stage); }
  __device__ std::uint32_t do_empty(std::uint32_t stage) const { return do_full(Form::kDOStages + stage); }
};

inline constexpr int kWritingWarps = 2;  // bring what steps give to dq to where it is summed

// The reader tells the warps that write sums which item comes.
template <typename Form>
__device__ __forceinline__ void GiveItem(const BackwardMemory<Form>& memory, std::uint32_t parity,
                                         int index) {
  hopper::WaitFor(memory.item_empty(), parity ^ 1U);
  PutNote<int4>(memory.item_note(), {index, 0, 0, 0});
  Arrive(memory.item_full());
}
template <typename Form>
__device__ __forceinline__ int GetItem(const BackwardMemory<Form>& memory, std::uint32_t parity) {
  hopper::WaitFor(memory.item_full(), parity);
  const int index = GetNote<int4>(memory.item_note()).x;
  __syncwarp();  // all lanes have read it
  ArriveAsWarp(memory.item_empty());
  return index;
}

// Calls each(item, tile, g) for the tiles and query heads of the items that the reader tells of, in the order of the reader, and
// end(item) behind those of an item. All lanes of a warp that writes sums call it.
template <typename Form, typename Each, typename End>
__device__ __forceinline__ void ForEachTile(const BackwardParams& p, const BackwardMemory<Form>& memory,
                                            const Each& each, const End& end) {
  for (std::uint32_t parity = 0;; parity ^= 1U) {
    const int index = GetItem<Form>(memory, parity);
    if (index >= p.items) return;
    const BackwardItem item = ItemAt(p, index);
    const Walk walk = WalkOf<Form>(p, item);
    for (int step = 0; step < walk.steps(); ++step) {
      const int tile = walk.Tile(step);
      for (int g = 0; g < p.common.group; ++g) each(item, tile, g);
    }
    end(item);
  }
}

// The reader leaves notes in shared memory for the workers, which have no registers left to find these things out themselves.
// This note is of a block of keys; its barrier is kv_full.
struct BlockNote {
  int steps;  // tiles of queries that follow; −1: there are no more blocks
  int sample, kv, block;
};
// This note is of a worker's 64 keys of a block; blocks use two in turn.
struct SightNote {
  Sight all;   // the queries that see all of them
  Sight span;  // that each of them has (SpanOfKey); empty: they have several
};
__device__ __forceinline__ SightNote SightNoteOf(const Common& c, int sample, int key) {
  const Sight first = SpanOfKey(c, sample, key);
  const Sight last = SpanOfKey(c, sample, key + 63);
  const bool is_one = first.from == last.from && first.below == last.below;
  return {{WithMask(c, key + 63, last).from, WithMask(c, key, first).below}, is_one ? first : Sight{0, 0}};
}
// Where Form::kNotesSpans is false this note stands in its place, of all workers and for one block at a time; its barrier is kv_full.
struct SightsNote {
  Sight of_worker[2];  // SightNote::all
};
// This note is of a tile of queries; its barrier is q_full.
struct TileNote {
  int position;
  std::uint32_t head, epoch;  // of the draws
  // Linear biases: the bits of the slope, times log2(e). Trained ones: the head, and by distance, above it, Reach.
  int of_biases;
  __device__ __forceinline__ float slope() const { return __int_as_float(of_biases); }
  __device__ __forceinline__ int head_of_biases() const { return of_biases & 0xFFFF; }
  __device__ __forceinline__ bool is_near() const { return of_biases >> 16 == 0; }
};

// Which biases by distance the pairs of a tile and a block have: several ones, all the first, or all the last. The numbers are those
// of what is subtracted from scores (Sm90aAttention::lse2).
enum Reach : int { kNear, kLow, kHigh };
template <typename Form>
__device__ __forceinline__ Reach ReachOf(const Common& c, int first_key, int first_query) {
  const int corner = first_key - first_query;
  if (corner + Form::kKeys - 1 <= -c.distance) return kLow;
  return c.causal == 0 && corner - (Form::kQueries - 1) >= c.distance ? kHigh : kNear;
}

// TileNote::of_biases of a head.
template <typename Form>
__device__ __forceinline__ int NoteOfBiases(const Common& c, int head, Reach reach) {
  if constexpr (Form::kBiases == Biases::kLinear) return __float_as_int(SlopeOf(c, head));
  return head | reach << 16;
}

template <typename Form>
__device__ __forceinline__ void ReadBackward(const CUtensorMap& q, const CUtensorMap& k, const CUtensorMap& v,
                                             const CUtensorMap& d_o, const CUtensorMap& biases,
                                             const BackwardParams& p, const BackwardMemory<Form>& memory) {
  const Common& c = p.common;
  const auto epoch = Form::kDropout ? static_cast<std::uint32_t>(c.control[plan::kIteration]) : 0U;
  constexpr int kRowsBytes = BackwardMemory<Form>::kRowsBytes;
  Ring<Form::kStages> ring;
  Ring<Form::kDOStages> do_ring;
  std::uint32_t kv_parity = 0;
  std::uint32_t item_parity = 0;
  int index = TakeItem(p, /*first=*/true);
  while (index < p.items) {
    const int given = index;
    const BackwardItem item = ItemAt(p, index);
    index = -1;
    const Walk walk = WalkOf<Form>(p, item);
    const HeadPlace keys = {0, item.block * Form::kKeys, 0, item.kv, item.sample};
    Form::K::Prefetch(k, keys);
    Form::V::Prefetch(v, keys);
    [[maybe_unused]] SightsNote sights;
#pragma unroll
    for (int worker = 0; worker < Form::kWorkers; ++worker) {
      const SightNote note = SightNoteOf(c, item.sample, keys.token + worker * 64 % Form::kKeys);
      if constexpr (Form::kNotesSpans) {
        PutNote<SightNote>(memory.sight_note(kv_parity, worker), note);
      } else {
        sights.of_worker[worker] = note.all;
      }
    }
    // A block's keys and values have to wait until the block before it is done with its own. Its first tile of queries does not, so it is
    // asked for before them.
    const int steps = walk.steps();
    bool has_keys = false;
    for (int step = 0, g = 0; !has_keys || step < steps;) {
      if (steps > 0) {
        const int tile = walk.Tile(step);
        const QueryTile t = TileOf<Form::kQueries>(c, tile);
        const int head = item.kv * c.group + g;
        const std::int64_t rows = RowTile<Form>(p, item, g, tile) * Form::kQueries;
        Reach reach = kNear;
        if constexpr (Form::kBiases == Biases::kByDistance) reach = ReachOf<Form>(c, keys.token, t.position);
        // The next item is taken as late as its answer is still not waited for.
        if (step + 1 == steps && g + 1 == c.group) index = TakeItem(p, /*first=*/false);
        hopper::WaitFor(memory.q_empty(ring.stage), ring.parity ^ 1U);
        PutNote<TileNote>(memory.tile_note(ring.stage),
                          {t.position, Form::kDropout ? HeadOfDraws(c, item.sample, head) : 0U, epoch,
                           NoteOfBiases<Form>(c, head, reach)});
        const HeadPlace queries = {0, t.row, g, item.kv, item.sample};
        std::uint32_t bytes = Form::Q::kBytes + kRowsBytes;
        if constexpr (Form::kOfPairs) {
          if (p.boxes_biases) bytes += Form::PairBiases::kBytes;
        }
        hopper::ArriveExpecting(memory.q_full(ring.stage), bytes);
        Form::Q::Load(q, queries, memory.q(ring.stage), memory.q_full(ring.stage));
        if constexpr (Form::kOfPairs) {
          if (p.boxes_biases) {
            LoadPairBiases<typename Form::PairBiases>(biases, {keys.token, t.position, g, item.kv, 0},
                                                      memory.biases(ring.stage), memory.q_full(ring.stage));
          }
        }
        LoadBytes(p.lse2 + reach * p.lse_plane + rows, memory.lse(ring.stage), kRowsBytes,
                  memory.q_full(ring.stage));
        ring.Next();
        hopper::WaitFor(memory.do_empty(do_ring.stage), do_ring.parity ^ 1U);
        hopper::ArriveExpecting(memory.do_full(do_ring.stage), Form::DO::kBytes + kRowsBytes);
        Form::DO::Load(d_o, queries, memory.d_o(do_ring.stage), memory.do_full(do_ring.stage));
        LoadBytes(p.delta + rows, memory.delta(do_ring.stage), kRowsBytes, memory.do_full(do_ring.stage));
        do_ring.Next();
      }
      if (!has_keys) {
        has_keys = true;
        hopper::WaitFor(memory.v_empty(), kv_parity ^ 1U);
        hopper::ArriveExpecting(memory.v_full(), Form::V::kBytes);
        Form::V::Load(v, keys, memory.v(), memory.v_full());
        hopper::WaitFor(memory.kv_empty(), kv_parity ^ 1U);
        kv_parity ^= 1U;
        if constexpr (!Form::kNotesSpans) PutNote<SightsNote>(memory.sight_note(0, 0), sights);
        PutNote<BlockNote>(memory.block_note(), {steps * c.group, item.sample, item.kv, item.block});
        hopper::ArriveExpecting(memory.kv_full(), Form::K::kBytes);
        Form::K::Load(k, keys, memory.k(), memory.kv_full());
        // Not before: it waits until the writers are done with the item before the last one.
        GiveItem<Form>(memory, item_parity, given);
        item_parity ^= 1U;
      }
      if (++g == c.group) {
        g = 0;
        ++step;
      }
    }
    if (index < 0) index = TakeItem(p, /*first=*/false);
  }
  LetNextBegin();
  GiveItem<Form>(memory, item_parity, p.items);
  hopper::WaitFor(memory.kv_empty(), kv_parity ^ 1U);
  PutNote<BlockNote>(memory.block_note(), {-1, 0, 0, 0});
  Arrive(memory.kv_full());
}

template <typename Form>
struct BackwardState {
  static constexpr int kScores = Form::kScoreQueries / 2;
  static constexpr int kBends = Form::kCapped ? kScores / 2 : 1;
  // [64, E] and [64, U], or half of the columns (WideBackwardForm)
  float dk[Form::kKeys * Form::kE / 256], dv[Form::kKeys * Form::kU / 256];
  float scores[kScores];    // [keys, queries]
  float d_scores[kScores];  // first d(probabilities)
};

// 64 × kColumns of a warpgroup's sums from d[first] on, as RoundSumsKernel reads them.
template <int kColumns, int kSums>
__device__ __forceinline__ void StoreSumsOf(std::uint32_t to, const float (&d)[kSums], int first) {
  to += threadIdx.x % kWarpgroup * 16;
#pragma unroll
  for (int i = 0; i < kColumns / 8; ++i) {
    const float* four = &d[first + 4 * i];
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to + i * kWarpgroup * 16), "f"(four[0]),
                 "f"(four[1]), "f"(four[2]), "f"(four[3])
                 : "memory");
  }
}

// Leaves the gradient of a warpgroup's 64 keys or values in shared memory, from where its writer copies it out.
template <typename T, typename Matrix, int kSums>
__device__ __forceinline__ void LeaveKeys(std::uint32_t to, const float (&d)[kSums], float scale) {
  static_assert(Matrix::kColumns == 2 * kSums);
  const int row =
      static_cast<int>(threadIdx.x) % kWarpgroup / kWarp * 16 + static_cast<int>(threadIdx.x) % 16;
#pragma unroll
  for (int step = 0; step < Matrix::kColumns / 16; ++step) {
    std::uint32_t pairs[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      pairs[i] = PairFromFloat(T(), d[8 * step + 2 * i] * scale, d[8 * step + 2 * i + 1] * scale);
    Matrix::StorePairs(to, row, step, pairs);
  }
}
// One thread copies out what LeaveKeys has left. at.element is its first column; what is behind the last key or element is passed over.
template <typename Matrix>
__device__ __forceinline__ void CopyKeys(const CUtensorMap& tensor, const HeadPlace& at, std::uint32_t from) {
#pragma unroll
  for (int column = 0; column < Matrix::kColumns; column += Matrix::kPartColumns) {
    StoreHead(tensor, {at.element + column, at.token, at.head, at.kv_head, at.sample},
              from + Matrix::ColumnAt(column));
  }
}

__device__ __forceinline__ float2 LoadPair(std::uint32_t shared) {
  float2 pair;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(pair.x), "=f"(pair.y) : "r"(shared));
  return pair;
}

__device__ __forceinline__ Sight LoadSight(std::uint32_t shared) {
  Sight sight;
  asm volatile("ld.shared.v2.s32 {%0, %1}, [%2];" : "=r"(sight.from), "=r"(sight.below) : "r"(shared));
  return sight;
}

// The draws of 16 queries and 16 keys: dropped[2·(2·(query / 8) + key / 8) + query % 2] of this thread's.
__device__ __forceinline__ void DrawTransposed(const Common& c, std::uint32_t key16, std::uint32_t query16,
                                               std::uint32_t head, std::uint32_t epoch, bool (&dropped)[8]) {
  const std::uint32_t lane = threadIdx.x % kWarp;
  const std::uint32_t odd = lane / 4 % 2;  // the key's last bit
  const Draws draws = Draw(c, key16 * 32 + (lane % 4 * 2 + odd) * 4 + lane / 8, query16, head, epoch);
  // This thread has drawn for queries whose last bit is `odd`, its partner for the others; each needs the halves of its key.
  const std::uint32_t keep = odd ? 0x7632U : 0x5410U;
  const std::uint32_t give = odd ? 0x5410U : 0x7632U;
  std::uint32_t own[2], other[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    own[i] = __byte_perm(draws.words[2 * i], draws.words[2 * i + 1], keep);
    other[i] = __shfl_xor_sync(kAllLanes, __byte_perm(draws.words[2 * i], draws.words[2 * i + 1], give), 4);
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const std::uint32_t even_query = odd ? other[i] : own[i];
    const std::uint32_t odd_query = odd ? own[i] : other[i];
    dropped[4 * i] = even_query << 16 < c.drop_below_high;
    dropped[4 * i + 1] = odd_query << 16 < c.drop_below_high;
    dropped[4 * i + 2] = even_query < c.drop_below_high;
    dropped[4 * i + 3] = odd_query < c.drop_below_high;
  }
}

// Where biases of pairs are for a worker, whose `column` is its warp's first key in a block.
struct BoxedBiases {
  std::uint32_t at;  // in shared memory, of the worker's first query; 0: not there, threads read them
  int column;
};

// exp2 of scores with biases of pairs.
template <typename Form>
__device__ __forceinline__ void WeighWithPairBiases(const Common& c, int key, const TileNote& t,
                                                    const BoxedBiases& boxed, std::uint32_t lse,
                                                    BackwardState<Form>& s) {
  using T = typename Form::T;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const auto weigh = [&](int at, float bias, float of_row) {
    s.scores[at] = Exp2(fmaf(bias, kLog2E, fmaf(s.scores[at], c.scale_log2, -of_row)));
  };
  if (boxed.at != 0) {
#pragma unroll
    for (int step = 0; step < Form::kScoreQueries / 16; ++step) {
      std::uint32_t pairs[4];
      Form::PairBiases::LoadTransposedPairs(boxed.at, boxed.column, step, pairs);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 of_rows = LoadPair(lse + (2 * step + i / 2) * 32 + lane % 4 * 8);
        const float2 bias = PairToFloat(T(), pairs[i]);
        weigh(8 * step + 2 * i, bias.x, of_rows.x);
        weigh(8 * step + 2 * i + 1, bias.y, of_rows.y);
      }
    }
    return;
  }
  const BiasesByPair<T> biases(c, t.head_of_biases());
  const int position = t.position + lane % 4 * 2;
#pragma unroll
  for (int i = 0; i < Form::kScoreQueries / 8; ++i) {
    const float2 of_rows = LoadPair(lse + i * 32 + lane % 4 * 8);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        weigh(4 * i + 2 * half + e, biases.At(biases.RowOf(position + 8 * i + e), key + 8 * half),
              e == 0 ? of_rows.x : of_rows.y);
      }
    }
  }
}

// Adds to scores the bias of each one's distance, that of scores[0] being `distance`. Eight keys further on distances are those of
// eight queries before: each bias is looked up once.
template <typename Form>
__device__ __forceinline__ void AddNearBiases(const BiasesByDistance<typename Form::T>& biases, int distance,
                                              float bias_scale, BackwardState<Form>& s) {
  float of_next_keys[2] = {biases.At(distance + 8), biases.At(distance + 7)};
#pragma unroll
  for (int i = 0; i < Form::kScoreQueries / 8; ++i) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const float bias = biases.At(distance - 8 * i - e);
      float& score = s.scores[4 * i + e];
      float& of_next = s.scores[4 * i + 2 + e];
      score = fmaf(bias, bias_scale, score);
      of_next = fmaf(of_next_keys[e], bias_scale, of_next);
      of_next_keys[e] = bias;
    }
  }
}

// Probabilities of scores in pairs, negative where dropped; `bend`: pairs of d(score) of d(scaled product).
template <typename Form>
__device__ __forceinline__ void Probabilities(const Common& c, int key, const TileNote& t,
                                              const BackwardMemory<Form>& memory, std::uint32_t which_block,
                                              const BoxedBiases& boxed, std::uint32_t lse,
                                              BackwardState<Form>& s,
                                              std::uint32_t (&bend)[BackwardState<Form>::kBends]) {
  using T = typename Form::T;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int position = t.position + lane % 4 * 2;  // of scores[0]
  // Exp2 of scores, to which the bias of queries so far behind the first one, of keys so far behind the first one, is added.
  const auto weigh = [&](const auto& add_bias) {
#pragma unroll
    for (int i = 0; i < Form::kScoreQueries / 8; ++i) {
      const float2 pair = LoadPair(lse + i * 32 + lane % 4 * 8);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        [[maybe_unused]] float derivative[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& score = s.scores[4 * i + 2 * half + e];
          float factor = c.scale_log2;
          if constexpr (Form::kCapped) {
            score = Tanh(score * c.bent_scale);
            derivative[e] = 1 - score * score;
            factor = c.softcap * kLog2E;
          }
          const float power = add_bias(score, factor, e == 0 ? pair.x : pair.y, 8 * i + e, 8 * half);
          score = Exp2Of<Form::kPolynomial>(power, 2 * i + e);
        }
        if constexpr (Form::kCapped) bend[2 * i + half] = PairFromFloat(T(), derivative[0], derivative[1]);
      }
    }
  };
  if constexpr (Form::kBiases == Biases::kNone || Form::kBiases == Biases::kByDistance) {
    if constexpr (Form::kBiases == Biases::kByDistance) {
      if (t.is_near())
        AddNearBiases<Form>(BiasesByDistance<T>(c, t.head_of_biases()), key - position, c.bias_scale, s);
    }
    weigh([](float x, float factor, float of_row, int, int) { return fmaf(x, factor, -of_row); });
  } else if constexpr (Form::kOfPairs) {
    WeighWithPairBiases<Form>(c, key, t, boxed, lse, s);
  } else {
    const float slope = t.slope();
    const float at_first = -slope * static_cast<float>(position - key);
    weigh([&](float x, float factor, float of_row, int of_query, int of_key) {
      return fmaf(-slope, static_cast<float>(of_query - of_key), fmaf(x, factor, at_first - of_row));
    });
  }
  // Scores of pairs outside of what the mask leaves of each key's span, span_of(key), are 0.
  const auto hide = [&](const auto& span_of) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const Sight sight = WithMask(c, key + 8 * j, span_of(key + 8 * j));
      const int from = sight.from - position;
      const int below = sight.below - position;
#pragma unroll
      for (int i = 0; i < Form::kScoreQueries / 4; ++i) {
        const int query = i / 2 * 8 + i % 2;
        float& score = s.scores[i / 2 * 4 + j * 2 + i % 2];
        if (query < from || query >= below) score = 0;
      }
    }
  };
  if constexpr (Form::kNotesSpans) {
    const SightNote note =
        GetNote<SightNote>(memory.sight_note(which_block, static_cast<int>(threadIdx.x) / kWarpgroup));
    if (t.position < note.all.from || t.position + Form::kScoreQueries > note.all.below) {
      const bool is_one = note.span.from < note.span.below;
      hide([&](int of_key) {
        return is_one ? note.span : SpanOfKey(c, GetNote<BlockNote>(memory.block_note()).sample, of_key);
      });
    }
  } else {
    const Sight all = LoadSight(memory.sight_note(0, 0) +
                                static_cast<int>(threadIdx.x) / kWarpgroup * static_cast<int>(sizeof(Sight)));
    if (t.position < all.from || t.position + Form::kScoreQueries > all.below) {
      const int sample = GetNote<BlockNote>(memory.block_note()).sample;
      hide([&](int of_key) { return SpanOfKey(c, sample, of_key); });
    }
  }
  if constexpr (Form::kDropout) {
#pragma unroll
    for (int step = 0; step < Form::kScoreQueries / 16; ++step) {
      bool dropped[8];
      DrawTransposed(c, static_cast<std::uint32_t>(key) / 16,
                     static_cast<std::uint32_t>(t.position) / 16 + step, t.head, t.epoch, dropped);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        if (dropped[i]) s.scores[8 * step + i] = -s.scores[8 * step + i];
      }
    }
  }
}

// d(scores) of d(probabilities), in pairs and in shared memory, and the probabilities that multiply values, in pairs.
template <typename Form>
__device__ __forceinline__ void ScoreGradients(
    const Common& c, std::uint32_t delta, const std::uint32_t (&bend)[BackwardState<Form>::kBends],
    std::uint32_t ds, int row, int first_step, const BackwardState<Form>& s,
    std::uint32_t (&probabilities)[BackwardState<Form>::kScores / 2],
    std::uint32_t (&d_scores)[BackwardState<Form>::kScores / 2]) {
  using T = typename Form::T;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int step = 0; step < Form::kScoreQueries / 16; ++step) {
    std::uint32_t pairs[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 sums = LoadPair(delta + (2 * step + i / 2) * 32 + lane % 4 * 8);
      const int at = 4 * step + i;
      float2 p = {s.scores[2 * at], s.scores[2 * at + 1]};
      float2 d = {s.d_scores[2 * at], s.d_scores[2 * at + 1]};
      if constexpr (Form::kDropout) {
        d.x = __float_as_uint(p.x) >> 31 != 0 ? -sums.x : fmaf(d.x, c.keep_scale, -sums.x);
        d.y = __float_as_uint(p.y) >> 31 != 0 ? -sums.y : fmaf(d.y, c.keep_scale, -sums.y);
        probabilities[at] = PairFromFloat(T(), fmaxf(p.x, 0.0F), fmaxf(p.y, 0.0F));
        p = {fabsf(p.x), fabsf(p.y)};
      } else {
        d.x -= sums.x;
        d.y -= sums.y;
        probabilities[at] = PairFromFloat(T(), p.x, p.y);
      }
      d.x *= p.x;
      d.y *= p.y;
      if constexpr (Form::kCapped) {
        const float2 derivative = PairToFloat(T(), bend[at]);
        d.x *= derivative.x;
        d.y *= derivative.y;
      }
      pairs[i] = d_scores[at] = PairFromFloat(T(), d.x, d.y);
    }
    Form::Scores::StorePairs(ds, row, first_step + step, pairs);
  }
}

}  // namespace engine::backend::cuda::attention_sm90a
