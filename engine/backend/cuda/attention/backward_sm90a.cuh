// The backward pass on Hopper, in one pass of five products: a block has 128 keys and their gradients in registers, 64 keys a
// warpgroup, and walks along the tiles of queries that see them. What a tile gives to the gradient of its queries goes by
// the TMA unit to fp32 sums in memory, in an order that does not depend on which block is faster: a counter of each tile
// says whose turn it is.
//
// The gradient is three kernels, of which the second one is here; the first makes row sums, and the third rounds the sums of dq
// (rows_sm90a.cuh).
#pragma once

#include "engine/backend/cuda/attention/rows_sm90a.cuh"

namespace engine::backend::cuda::attention_sm90a {

struct BackwardParams {
  Common common;
  int blocks;  // of keys
  int pairs;   // 1: an item is a pair of blocks of unlike lengths, which take turns as RankOf says
  int items, section;
  const float* lse2;  // this and those behind it: Sm90aAttention
  const float* delta;
  float* dq;
  int* turns;
  float scale;
  AttentionView dk, dv;
};

template <typename Element, int kHeadElements, int kTile, bool kIsCapped, bool kHasSlopes, bool kDrops>
struct BackwardForm {
  using T = Element;
  static constexpr int kE = kHeadElements;
  static constexpr int kWorkers = 2;
  static constexpr int kQueries = kTile;
  static constexpr int kKeys = 64 * kWorkers;
  static constexpr bool kCapped = kIsCapped;
  static constexpr bool kSlopes = kHasSlopes;
  static constexpr bool kDropout = kDrops;
  static constexpr int kStages = 2;
  static constexpr int kThreads = (kWorkers + 1) * kWarpgroup;
  static constexpr int kKBytes = kKeys * kE * 2;
  static constexpr int kQBytes = kQueries * kE * 2;
  static constexpr int kSBytes = kKeys * kQueries * 2;
  static constexpr int kDQBytes = kQueries * kE * 4;
  static constexpr int kRowsBytes = kQueries * 4;
  static constexpr int kNoteBytes = 16;
  static constexpr int kBarriers = 2 + 4 * kStages;
  static_assert(kStages == 2);  // as many as there are buffers of ds and dq
  static constexpr int kSharedBytes = 2 * kKBytes + 2 * kStages * (kQBytes + kRowsBytes) + 2 * kSBytes +
                                      2 * kDQBytes + (1 + kStages) * kNoteBytes + kBarriers * 8;
  // The two warpgroups share a tile's dq, which is 128 × 64 or 64 × 128: each has 64 queries, or each has 64 elements of all.
  static constexpr bool kSplitsQueries = kQueries == 128;
  static_assert(kQueries * kE == 128 * 64);
  // With the workers' as many as the block starts with; more would be waited for without end.
  static constexpr int kReaderRegisters = 24;
  static constexpr int kWorkerRegisters = 240;
};

template <typename Form>
struct BackwardMemory {
  std::uint32_t base;
  __device__ explicit BackwardMemory(const char* raw) : base(hopper::SharedAddress(raw)) {}
  __device__ std::uint32_t k() const { return base; }
  __device__ std::uint32_t v() const { return base + Form::kKBytes; }
  __device__ std::uint32_t q(std::uint32_t stage) const {
    return base + 2 * Form::kKBytes + stage * Form::kQBytes;
  }
  __device__ std::uint32_t d_o(std::uint32_t stage) const { return q(Form::kStages) + stage * Form::kQBytes; }
  __device__ std::uint32_t ds(std::uint32_t which) const {
    return d_o(Form::kStages) + which * Form::kSBytes;
  }
  __device__ std::uint32_t dq(std::uint32_t buffer) const { return ds(2) + buffer * Form::kDQBytes; }
  __device__ std::uint32_t lse(std::uint32_t stage) const { return dq(2) + stage * Form::kRowsBytes; }
  __device__ std::uint32_t delta(std::uint32_t stage) const {
    return lse(Form::kStages) + stage * Form::kRowsBytes;
  }
  __device__ std::uint32_t block_note() const { return delta(Form::kStages); }
  __device__ std::uint32_t tile_note(std::uint32_t stage) const {
    return block_note() + (1 + stage) * Form::kNoteBytes;
  }
  __device__ std::uint32_t barrier(int i) const { return tile_note(Form::kStages) + i * 8; }
  __device__ std::uint32_t kv_full() const { return barrier(0); }
  __device__ std::uint32_t kv_empty() const { return barrier(1); }
  __device__ std::uint32_t q_full(std::uint32_t stage) const { return barrier(2) + stage * 8; }
  __device__ std::uint32_t q_empty(std::uint32_t stage) const { return q_full(Form::kStages + stage); }
  __device__ std::uint32_t do_full(std::uint32_t stage) const { return q_full(2 * Form::kStages + stage); }
  __device__ std::uint32_t do_empty(std::uint32_t stage) const { return q_full(3 * Form::kStages + stage); }
};

// The workers put what a step gives to dq into one of two buffers in turn. Each buffer has a warp that adds its content to the
// sums, so that an addition has two steps to arrive in memory. Named barriers of a worker and a buffer's warp: + 2 · buffer + worker.
inline constexpr int kBuffers = 2;
inline constexpr int kSumsEmpty = 1;
inline constexpr int kSumsFull = 5;
inline constexpr int kSumsThreads = kWarpgroup + kWarp;
inline constexpr int kScoresWritten = 9;  // of the workers

struct BackwardItem {
  int sample, kv, pair;
  int phases;
};

// That of this block.
__device__ __forceinline__ BackwardItem ItemOf(const BackwardParams& p) {
  const int index = static_cast<int>(blockIdx.x);
  const int each = p.pairs ? (p.blocks + 1) / 2 : p.blocks;
  const int of_section = p.section * each;
  const int section = index / of_section;
  const int rest = index - section * of_section;
  const int heads = min(p.section, p.items / each - section * p.section);
  const int order = rest / heads;
  const int head = section * p.section + rest - order * heads;
  BackwardItem item;
  item.sample = head / p.common.kv_heads;
  item.kv = head - item.sample * p.common.kv_heads;
  item.pair = each - 1 - order;
  item.phases = p.pairs && 2 * item.pair + 1 != p.blocks ? 2 : 1;
  return item;
}

struct Walk {
  int block, first, last;  // tiles
  bool down;
};
template <typename Form>
__device__ __forceinline__ Walk WalkOf(const BackwardParams& p, const BackwardItem& item, int phase) {
  const Common& c = p.common;
  Walk walk;
  walk.block = phase == 0 ? item.pair : p.blocks - 1 - item.pair;
  walk.down = phase == 1;
  walk.first = 0;
  walk.last = c.tiles - 1;
  if (!c.causal) return walk;
  const int key = walk.block * Form::kKeys;
  walk.first = c.tiles;
  for (int r = c.runs - 1; r >= 0; --r) {
    const Run& run = c.run[r];
    if (run.position + run.count > key)
      walk.first = run.first_tile + max(0, key - run.position) / Form::kQueries;
  }
  if (c.window > 0) {
    const int end = key + Form::kKeys - 1 + c.window - 1;
    walk.last = -1;
    for (int r = 0; r < c.runs; ++r) {
      const Run& run = c.run[r];
      const int tiles = (run.count + Form::kQueries - 1) / Form::kQueries;
      if (run.position <= end)
        walk.last = run.first_tile + min(tiles - 1, (end - run.position) / Form::kQueries);
    }
  }
  return walk;
}

__device__ __forceinline__ int FloorDiv(int a, int b) { return a >= 0 ? a / b : -((b - 1 - a) / b); }

// How many blocks add to a tile before this one.
template <typename Form>
__device__ __forceinline__ int RankOf(const BackwardParams& p, const BackwardItem& item, const Walk& walk,
                                      int g, int tile) {
  const Common& c = p.common;
  if (!p.pairs) {
    int last = p.blocks - 1;
    if (c.causal) {
      const QueryTile t = TileOf<Form::kQueries>(c, tile);
      last = min(last, (t.position + t.rows - 1) / Form::kKeys);
    }
    return last - walk.block;
  }
  // Steps at which blocks reach the tile if none waits: the long ones (first of their pairs) upwards from the diagonal, the
  // short ones downwards.
  constexpr int r = Form::kKeys / Form::kQueries;
  const int n = p.blocks;
  const int nt = c.tiles;
  const int groups = c.group;
  const int pair = item.pair;
  const int longs = (n + 1) / 2;
  const int shorts = n / 2;
  const int step_long = (g + 1) * r;
  const int step_short = (groups - g) * r;
  const int long0 = tile + g * nt;
  const int short0 = groups * nt + g * (nt - r * (n - 1)) + nt - 1 - tile;
  const int most_long = min(tile / r, longs - 1);
  const int least_short = max(0, n - 1 - tile / r);
  if (!walk.down) {
    const int at = long0 - step_long * pair;
    const int from = max(least_short, FloorDiv(short0 - at, step_short) + 1);
    return most_long - pair + max(0, shorts - from);
  }
  const int at = short0 - step_short * pair;
  const int from = max(0, FloorDiv(long0 - at + step_long - 1, step_long));
  return shorts - 1 - pair + max(0, most_long + 1 - from);
}

template <typename Form>
__device__ __forceinline__ std::int64_t RowTile(const BackwardParams& p, const BackwardItem& item, int g,
                                                int tile) {
  const Common& c = p.common;
  return (static_cast<std::int64_t>(item.sample) * c.heads + item.kv * c.group + g) * c.tiles + tile;
}

// The reader leaves notes in shared memory for the workers, which have no registers left to find these things out themselves.
// This note is of a block of keys; its barrier is kv_full.
struct BlockNote {
  int steps;  // tiles of queries that follow; −1: there are no more blocks
  int sample, kv, block;
};
// This note is of a tile of queries; its barrier is q_full.
struct TileNote {
  int position;
  std::uint32_t head, epoch;  // of the draws
  float slope;                // times log2(e)
};
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

template <typename Form>
__device__ __forceinline__ void ReadBackward(const CUtensorMap& q, const CUtensorMap& k, const CUtensorMap& v,
                                             const CUtensorMap& d_o, const BackwardParams& p,
                                             const BackwardMemory<Form>& memory) {
  const Common& c = p.common;
  const auto epoch = Form::kDropout ? static_cast<std::uint32_t>(c.control[plan::kIteration]) : 0U;
  Ring<Form::kStages> ring;
  std::uint32_t kv_parity = 0;
  const BackwardItem item = ItemOf(p);
  for (int phase = 0; phase < item.phases; ++phase) {
    const Walk walk = WalkOf<Form>(p, item, phase);
    hopper::WaitFor(memory.kv_empty(), kv_parity ^ 1U);
    kv_parity ^= 1U;
    PutNote<BlockNote>(memory.block_note(),
                       {max(0, walk.last - walk.first + 1) * c.group, item.sample, item.kv, walk.block});
    hopper::ArriveExpecting(memory.kv_full(), 2 * Form::kKBytes);
#pragma unroll
    for (int e = 0; e < Form::kE; e += kRowElements) {
      const HeadPlace at = {e, walk.block * Form::kKeys, 0, item.kv, item.sample};
      LoadHead(k, at, memory.k() + e * 2 * Form::kKeys, memory.kv_full());
      LoadHead(v, at, memory.v() + e * 2 * Form::kKeys, memory.kv_full());
    }
    for (int g = 0; g < c.group; ++g) {
      const int head = item.kv * c.group + g;
      for (int step = walk.first; step <= walk.last; ++step) {
        const int tile = walk.down ? walk.first + walk.last - step : step;
        const QueryTile t = TileOf<Form::kQueries>(c, tile);
        const std::int64_t rows = RowTile<Form>(p, item, g, tile) * Form::kQueries;
        hopper::WaitFor(memory.q_empty(ring.stage), ring.parity ^ 1U);
        PutNote<TileNote>(memory.tile_note(ring.stage),
                          {t.position, Form::kDropout ? HeadOfDraws(c, item.sample, head) : 0U, epoch,
                           Form::kSlopes ? SlopeOf(c, head) : 0.0F});
        hopper::ArriveExpecting(memory.q_full(ring.stage), Form::kQBytes + Form::kRowsBytes);
#pragma unroll
        for (int e = 0; e < Form::kE; e += kRowElements) {
          LoadHead(q, {e, t.row, g, item.kv, item.sample}, memory.q(ring.stage) + e * 2 * Form::kQueries,
                   memory.q_full(ring.stage));
        }
        LoadBytes(p.lse2 + rows, memory.lse(ring.stage), Form::kRowsBytes, memory.q_full(ring.stage));
        hopper::WaitFor(memory.do_empty(ring.stage), ring.parity ^ 1U);
        hopper::ArriveExpecting(memory.do_full(ring.stage), Form::kQBytes + Form::kRowsBytes);
#pragma unroll
        for (int e = 0; e < Form::kE; e += kRowElements) {
          LoadHead(d_o, {e, t.row, g, item.kv, item.sample}, memory.d_o(ring.stage) + e * 2 * Form::kQueries,
                   memory.do_full(ring.stage));
        }
        LoadBytes(p.delta + rows, memory.delta(ring.stage), Form::kRowsBytes, memory.do_full(ring.stage));
        ring.Next();
      }
    }
  }
  hopper::WaitFor(memory.kv_empty(), kv_parity ^ 1U);
  PutNote<BlockNote>(memory.block_note(), {-1, 0, 0, 0});
  Arrive(memory.kv_full());
}

__device__ __forceinline__ int ReadTurn(const int* turn) {
  int value;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(turn) : "memory");
  return value;
}
__device__ __forceinline__ void EndTurn(int* turn) {
  asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(turn) : "memory");
}

// A warp takes what the workers give to dq in a buffer, of every other step, to where it is summed.
template <typename Form>
__device__ __forceinline__ void WriteSums(const BackwardParams& p, const BackwardMemory<Form>& memory,
                                          int buffer) {
  constexpr int kBytes = Form::kDQBytes / Form::kWorkers;
  const Common& c = p.common;
  const bool first_lane = threadIdx.x % kWarp == 0;
  const int empty = kSumsEmpty + 2 * buffer;
  const int full = kSumsFull + 2 * buffer;
  const BackwardItem item = ItemOf(p);
  int count = buffer;  // 0: the next step is this buffer's
  for (int worker = 0; worker < Form::kWorkers; ++worker) ArriveOnly(empty + worker, kSumsThreads);
  for (int phase = 0; phase < item.phases; ++phase) {
    const Walk walk = WalkOf<Form>(p, item, phase);
    for (int g = 0; g < c.group; ++g) {
      for (int step = walk.first; step <= walk.last; ++step) {
        if (count++ % kBuffers != 0) continue;
        const int tile = walk.down ? walk.first + walk.last - step : step;
        const std::int64_t at = RowTile<Form>(p, item, g, tile);
        const int rank = RankOf<Form>(p, item, walk, g, tile);
        for (int worker = 0; worker < Form::kWorkers; ++worker) {
          Meet(full + worker, kSumsThreads);
          if (first_lane) {
            float* to = p.dq + (at * Form::kWorkers + worker) * (kBytes / 4);
            const std::uint32_t from = memory.dq(buffer) + worker * kBytes;
            if (rank == 0) {
              StoreBytes(to, from, kBytes);
            } else {
              while (ReadTurn(p.turns + at) != rank) {
              }
              AddFloats(to, from, kBytes);
            }
            CommitStores();
          }
          __syncwarp();
        }
        if (first_lane) hopper::WaitForStoresToRead<0>();
        __syncwarp();
        for (int worker = 0; worker < Form::kWorkers; ++worker) ArriveOnly(empty + worker, kSumsThreads);
        if (first_lane) {
          hopper::WaitForStores();  // not .read: the sums have to have arrived before the next block's
          EndTurn(p.turns + at);
        }
        __syncwarp();
      }
    }
  }
}

template <typename Form>
struct BackwardState {
  static constexpr int kScores = Form::kQueries / 2;
  static constexpr int kBends = Form::kCapped ? kScores / 2 : 1;
  float dk[Form::kE / 2], dv[Form::kE / 2];
  float scores[kScores];    // [keys, queries]
  float d_scores[kScores];  // first d(probabilities)
};

// d[64 of a, queries] = a[64, E] · b[queries, E]ᵀ
template <typename Form>
__device__ __forceinline__ void IssueScoresOf(std::uint32_t a, std::uint32_t b,
                                              float (&d)[Form::kQueries / 2]) {
#pragma unroll
  for (int step = 0; step < Form::kE / 16; ++step) {
    const std::uint64_t of_a = hopper::MatrixAt(a + step / 4 * Form::kKeys * kRowBytes, 0);
    const std::uint64_t of_b = hopper::MatrixAt(b + step / 4 * Form::kQueries * kRowBytes, 0);
    hopper::Product<typename Form::T, Form::kQueries>::template Add<false, false>(
        of_a + hopper::StepOf16<false>(step % 4), of_b + hopper::StepOf16<false>(step % 4), d, step > 0);
  }
  hopper::EndProducts();
}

// d[64 keys, E] += packed[64 keys, queries] · b[queries, E]
template <typename Form>
__device__ __forceinline__ void IssueKeySums(const std::uint32_t (&packed)[Form::kQueries / 4],
                                             std::uint32_t b, float (&d)[Form::kE / 2]) {
  const std::uint64_t of_b = hopper::MatrixAt(b, Form::kQueries * kRowBytes);
#pragma unroll
  for (int step = 0; step < Form::kQueries / 16; ++step) {
    hopper::Product<typename Form::T, Form::kE>::template Add<true>(
        packed[4 * step], packed[4 * step + 1], packed[4 * step + 2], packed[4 * step + 3],
        of_b + hopper::StepOf16<true>(step), d, 1);
  }
  hopper::EndProducts();
}

// d[64, 64] = ds[keys, queries]ᵀ · k[keys, E], of this warpgroup's queries or elements.
template <typename Form>
__device__ __forceinline__ void IssueQuerySums(const BackwardMemory<Form>& memory, int worker,
                                               std::uint32_t which, float (&d)[32]) {
  const std::uint32_t own = worker * Form::kKeys * kRowBytes;
  const std::uint64_t a = hopper::MatrixAt(memory.ds(which) + (Form::kSplitsQueries ? own : 0), 0);
  const std::uint64_t b = hopper::MatrixAt(memory.k() + (Form::kSplitsQueries ? 0 : own), 0);
#pragma unroll
  for (int step = 0; step < Form::kKeys / 16; ++step) {
    hopper::Product<typename Form::T, 64>::template Add<true, true>(
        a + hopper::StepOf16<true>(step), b + hopper::StepOf16<true>(step), d, step > 0);
  }
  hopper::EndProducts();
}

__device__ __forceinline__ float2 LoadPair(std::uint32_t shared) {
  float2 pair;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(pair.x), "=f"(pair.y) : "r"(shared));
  return pair;
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

// Probabilities of scores in pairs, negative where dropped; `bend`: pairs of d(score) of d(scaled product).
template <typename Form>
__device__ __forceinline__ void Probabilities(const Common& c, int key, const TileNote& t, std::uint32_t lse,
                                              BackwardState<Form>& s,
                                              std::uint32_t (&bend)[BackwardState<Form>::kBends]) {
  using T = typename Form::T;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int position = t.position + lane % 4 * 2;  // of scores[0]
  const int first_key = key - lane / 4 - static_cast<int>(threadIdx.x) % kWarpgroup / kWarp * 16;
  const bool right = first_key + 64 > (c.causal ? min(c.keys, t.position + 1) : c.keys);
  const bool left = c.window > 0 && first_key < t.position + Form::kQueries - c.window;
  const float distance = static_cast<float>(position - key);
#pragma unroll
  for (int i = 0; i < Form::kQueries / 8; ++i) {
    const float2 pair = LoadPair(lse + i * 32 + lane % 4 * 8);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float derivative[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& score = s.scores[4 * i + 2 * half + e];
        const float of_row = e == 0 ? pair.x : pair.y;
        if constexpr (Form::kCapped) {
          const float share = Tanh(score * c.bent_scale);
          derivative[e] = 1 - share * share;
          score = share * (c.softcap * kLog2E);
        } else if constexpr (Form::kSlopes) {
          score *= c.scale_log2;
        }
        if constexpr (Form::kSlopes)
          score = fmaf(-t.slope, distance + static_cast<float>(8 * i + e - 8 * half), score);
        score =
            Form::kCapped || Form::kSlopes ? Exp2(score - of_row) : Exp2(fmaf(score, c.scale_log2, -of_row));
      }
      if constexpr (Form::kCapped) bend[2 * i + half] = PairFromFloat(T(), derivative[0], derivative[1]);
    }
  }
  if (right || left) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int own = key + 8 * j;
      const int from = own >= c.keys ? 1 << 30 : (c.causal ? own - position : -(1 << 30));
      const int below = c.window > 0 ? own + c.window - position : 1 << 30;
#pragma unroll
      for (int i = 0; i < Form::kQueries / 4; ++i) {
        const int query = i / 2 * 8 + i % 2;
        float& score = s.scores[i / 2 * 4 + j * 2 + i % 2];
        if (query < from || query >= below) score = 0;
      }
    }
  }
  if constexpr (Form::kDropout) {
#pragma unroll
    for (int step = 0; step < Form::kQueries / 16; ++step) {
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
    std::uint32_t ds, int row, const BackwardState<Form>& s,
    std::uint32_t (&probabilities)[BackwardState<Form>::kScores / 2],
    std::uint32_t (&d_scores)[BackwardState<Form>::kScores / 2]) {
  using T = typename Form::T;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int step = 0; step < Form::kQueries / 16; ++step) {
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
    const int byte = step % 4 * 32 + lane / 16 * 16;
    hopper::StoreFourMatrices(
        ds + step / 4 * Form::kKeys * kRowBytes + row * kRowBytes + (byte ^ (row & 7) << 4), pairs);
  }
}

// The work of one thread of the two warpgroups that multiply.
template <typename Form>
struct BackwardWorker {
  const BackwardParams& p;
  const BackwardMemory<Form>& memory;
  int worker, thread, lane, warp;
  __device__ BackwardWorker(const BackwardParams& params, const BackwardMemory<Form>& shared)
      : p(params),
        memory(shared),
        worker(static_cast<int>(threadIdx.x) / kWarpgroup),
        thread(static_cast<int>(threadIdx.x) % kWarpgroup),
        lane(thread % kWarp),
        warp(thread / kWarp) {}
  __device__ std::uint32_t k() const { return memory.k() + worker * 64 * kRowBytes; }
  __device__ std::uint32_t v() const { return memory.v() + worker * 64 * kRowBytes; }
  __device__ void Release(std::uint32_t barrier) const {
    if (lane == 0) Arrive(barrier);
  }

  __device__ __forceinline__ void Begin(const Ring<Form::kStages>& ring, BackwardState<Form>& s) const {
    hopper::WaitFor(memory.q_full(ring.stage), ring.parity);
    hopper::PinAll(s.scores);
    hopper::BeginProducts();
    IssueScoresOf<Form>(k(), memory.q(ring.stage), s.scores);
    hopper::WaitForProducts<0>();
    hopper::PinAll(s.scores);
  }

  // Puts what a step gives to dq into shared memory, from where the buffer's warp takes it.
  __device__ __forceinline__ void StoreSums(std::uint32_t buffer, const float (&dq)[32]) const {
    Meet(kSumsEmpty + 2 * static_cast<int>(buffer) + worker, kSumsThreads);
    const std::uint32_t to = memory.dq(buffer) + worker * (Form::kDQBytes / 2) + thread * 16;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to + i * kWarpgroup * 16), "f"(dq[4 * i]),
                   "f"(dq[4 * i + 1]), "f"(dq[4 * i + 2]), "f"(dq[4 * i + 3])
                   : "memory");
    }
    hopper::ShowToCopies();
    ArriveOnly(kSumsFull + 2 * static_cast<int>(buffer) + worker, kSumsThreads);
  }

  // On entry there are scores of the step, and with kMore on return those of the next one. No product is under way on entry
  // or return: it would be waited for where a loop begins again.
  template <bool kMore>
  __device__ __forceinline__ void Step(int key, Ring<Form::kStages>* ring, BackwardState<Form>& s) const {
    const Common& c = p.common;
    hopper::WaitFor(memory.do_full(ring->stage), ring->parity);
    hopper::PinAll(s.d_scores);
    hopper::BeginProducts();
    IssueScoresOf<Form>(v(), memory.d_o(ring->stage), s.d_scores);
    std::uint32_t bend[BackwardState<Form>::kBends];
    Probabilities<Form>(c, key, GetNote<TileNote>(memory.tile_note(ring->stage)), memory.lse(ring->stage), s,
                        bend);
    hopper::WaitForProducts<0>();
    hopper::PinAll(s.d_scores);
    std::uint32_t probabilities[BackwardState<Form>::kScores / 2];
    std::uint32_t d_scores[BackwardState<Form>::kScores / 2];
    ScoreGradients<Form>(c, memory.delta(ring->stage), bend, memory.ds(ring->stage),
                         worker * 64 + warp * 16 + lane % 16, s, probabilities, d_scores);
    hopper::ShowToCopies();
    hopper::PinAll(probabilities);
    hopper::PinAll(d_scores);
    hopper::PinAll(s.dv);
    hopper::PinAll(s.dk);
    hopper::BeginProducts();
    IssueKeySums<Form>(probabilities, memory.d_o(ring->stage), s.dv);
    IssueKeySums<Form>(d_scores, memory.q(ring->stage), s.dk);
    Meet(kScoresWritten, 2 * kWarpgroup);
    float dq[32];
    hopper::PinAll(dq);
    hopper::BeginProducts();
    IssueQuerySums<Form>(memory, worker, ring->stage, dq);
    hopper::WaitForProducts<1>();
    hopper::PinAll(probabilities);
    hopper::PinAll(d_scores);
    hopper::PinAll(s.dv);
    hopper::PinAll(s.dk);
    Release(memory.do_empty(ring->stage));
    Release(memory.q_empty(ring->stage));
    ring->Next();
    if constexpr (kMore) {
      hopper::WaitFor(memory.q_full(ring->stage), ring->parity);
      hopper::PinAll(s.scores);
      hopper::BeginProducts();
      IssueScoresOf<Form>(k(), memory.q(ring->stage), s.scores);
      hopper::WaitForProducts<1>();
    } else {
      hopper::WaitForProducts<0>();
    }
    hopper::PinAll(dq);
    StoreSums(ring->stage ^ 1U, dq);
    if constexpr (kMore) {
      hopper::WaitForProducts<0>();
      hopper::PinAll(s.scores);
    }
  }

  __device__ __forceinline__ void Store(const BlockNote& note, const BackwardState<Form>& s) const {
    const int first = note.block * Form::kKeys + worker * 64;
    using T = typename Form::T;
    const auto of = [&](const AttentionView& view) {
      return static_cast<T*>(view.data) + note.sample * view.sample + note.kv * view.kv_head +
             first * view.token;
    };
    StoreRows(s.dk, p.scale, of(p.dk), p.dk.token, p.common.keys - first);
    StoreRows(s.dv, Form::kDropout ? p.common.keep_scale : 1.0F, of(p.dv), p.dv.token, p.common.keys - first);
  }
};

template <typename Form>
__device__ __forceinline__ void WorkBackward(const BackwardParams& p, const BackwardMemory<Form>& memory) {
  const BackwardWorker<Form> w(p, memory);
  Ring<Form::kStages> ring;
  std::uint32_t kv_parity = 0;
  BackwardState<Form> s;
  while (true) {
    hopper::WaitFor(memory.kv_full(), kv_parity);
    kv_parity ^= 1U;
    const BlockNote begin = GetNote<BlockNote>(memory.block_note());
    if (begin.steps < 0) break;
#pragma unroll
    for (int i = 0; i < Form::kE / 2; ++i) s.dk[i] = s.dv[i] = 0;
    if (begin.steps > 0) {
      const int key = begin.block * Form::kKeys + w.worker * 64 + w.warp * 16 + w.lane / 4;
      int more = begin.steps - 1;
      w.Begin(ring, s);
#pragma unroll 1
      for (; more > 0; --more) w.template Step<true>(key, &ring, s);
      w.template Step<false>(key, &ring, s);
    }
    const BlockNote end = GetNote<BlockNote>(memory.block_note());
    __syncwarp();
    w.Release(memory.kv_empty());
    w.Store(end, s);
  }
  // The writers have told that their buffers are empty once more than anyone waited for it.
  for (int buffer = 0; buffer < kBuffers; ++buffer) Meet(kSumsEmpty + 2 * buffer + w.worker, kSumsThreads);
}

template <typename Form>
__global__ void __launch_bounds__(Form::kThreads, 1)
    BackwardKernel(const __grid_constant__ CUtensorMap q, const __grid_constant__ CUtensorMap k,
                   const __grid_constant__ CUtensorMap v, const __grid_constant__ CUtensorMap d_o,
                   const __grid_constant__ BackwardParams p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(kBoxAlignment) char raw[];
  const BackwardMemory<Form> memory(raw);
  if (threadIdx.x == 0) {
    hopper::InitBarrier(memory.kv_full(), 1);
    hopper::InitBarrier(memory.kv_empty(), Form::kWorkers * kWarpsOfGroup);
    for (int stage = 0; stage < Form::kStages; ++stage) {
      hopper::InitBarrier(memory.q_full(stage), 1);
      hopper::InitBarrier(memory.do_full(stage), 1);
      hopper::InitBarrier(memory.q_empty(stage), Form::kWorkers * kWarpsOfGroup);
      hopper::InitBarrier(memory.do_empty(stage), Form::kWorkers * kWarpsOfGroup);
    }
    hopper::PublishBarriers();
  }
  __syncthreads();
  if (threadIdx.x / kWarpgroup == Form::kWorkers) {
    hopper::GiveRegisters<Form::kReaderRegisters>();
    const int warp = static_cast<int>(threadIdx.x) % kWarpgroup / kWarp;
    if (warp == 0 && threadIdx.x % kWarp == 0) ReadBackward<Form>(q, k, v, d_o, p, memory);
    if (warp == 1 || warp == 2) WriteSums<Form>(p, memory, warp - 1);
  } else {
    hopper::TakeRegisters<Form::kWorkerRegisters>();
    WorkBackward<Form>(p, memory);
  }
#endif
}

}  // namespace engine::backend::cuda::attention_sm90a
