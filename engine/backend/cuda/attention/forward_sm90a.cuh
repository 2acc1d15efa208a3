// The forward pass on Hopper: a persistent grid, whose blocks take one tile of 64 queries a warpgroup after the other. One
// warpgroup only reads; the others multiply: while a warpgroup's softmax of a block of keys is computed, the tensor cores
// make its scores of the next block and sum the values of the last one, or work for the other warpgroup (the schedule of
// FlashAttention-3, arXiv:2407.08608).
#pragma once

#include "engine/backend/cuda/attention/distance_sm90a.cuh"

namespace engine::backend::cuda::attention_sm90a {

// The largest cap under which scores need no largest one: two to the power of a score is at most 2^80 then, which leaves a factor of 2^47 of
// fp32's range to the sum of all of them times values.
inline constexpr float kMostBound = 80.0F / kLog2E;

struct ForwardParams {
  Common common;
  int items, section;
  int* taken;  // items beside the first one of each block that are taken; null: there are no others
  LseView lse;
  const void* sinks;  // [H], of T; null: none
  AttentionView o;
  bool boxes_biases;  // biases of pairs come to shared memory by boxes; else threads read them
};

// kPasses: a warpgroup computes only the blocks of keys that one of its own queries sees. Of tiles of 192 queries it saves up to a
// block at either end; in long causal sequences, which have few such blocks, it costs more than it saves.
// kIsBounded: the cap is at most kMostBound. Then 2 to the power of any score is a number of T and of fp32, as are their sums, so that the
// largest score of a query need neither be found nor subtracted, and sums so far never shrink.
template <typename Element, int kHeadElements, int kValueElements, int kGroups, int kKeyBlock, bool kIsCapped,
          Biases kBiasesOfScores, bool kDrops, bool kPasses = false, bool kIsBounded = false>
struct ForwardForm {
  using T = Element;
  static constexpr int kE = kHeadElements;
  static constexpr int kU = kValueElements;
  static constexpr int kWorkers = kGroups;
  static constexpr int kQueries = 64 * kGroups;
  static constexpr int kKeys = kKeyBlock;
  static constexpr bool kCapped = kIsCapped;
  static constexpr Biases kBiases = kBiasesOfScores;
  static constexpr bool kOfPairs = kBiases == Biases::kOfPairs;
  static_assert(!kIsCapped || kBiases == Biases::kNone || kBiases == Biases::kLinear);
  static constexpr bool kBounded = kIsBounded;
  static_assert(!kBounded || (kCapped && kBiases == Biases::kNone && std::is_same_v<T, __nv_bfloat16>));
  // One in so many exponentials is made by a polynomial: caps of short heads keep the unit for such functions busy.
  static constexpr int kPolynomial = kCapped && kE == 64 ? (kBounded ? 2 : 3) : 0;
  static constexpr bool kDropout = kDrops;
  static constexpr bool kPassesBy = kPasses;
  static_assert(!kPassesBy || !kOfPairs);  // it knows nothing of the biases' stages
  static constexpr int kStages = 2;
  static constexpr int kThreads = (kGroups + 1) * kWarpgroup;
  using Q = BoxedMatrix<kQueries, kE>;
  using K = BoxedMatrix<kKeys, kE>;
  using V = BoxedMatrix<kKeys, kU>;
  using O = BoxedMatrix<kQueries, kU>;
  // Wide heads leave no room for a tile of o beside q, so that o takes q's place in shared memory before it goes out.
  static constexpr bool kReplacesQ = kE > 128;
  // The next tile's queries are read before the last one's are done with, where shared memory and registers have room.
  static constexpr int kQStages = kReplacesQ || kGroups == 3 || kOfPairs ? 1 : 2;
  static constexpr int kOBytes = kReplacesQ ? 0 : O::kBytes;
  static constexpr int kNoteBytes = 32;  // of a ForwardItem
  // Biases of a tile's queries and a block's keys, in as many stages as fit.
  using PairBiases = BoxedMatrix<kQueries, kKeys>;
  static constexpr int kOtherBytes =
      kBoxAlignment + kQStages * (Q::kBytes + kNoteBytes) + kStages * (K::kBytes + V::kBytes) + kOBytes;
  static constexpr int kMostBarrierBytes = 256;
  static constexpr int kMostSharedBytes = 227 * 1024;  // of a block on Hopper
  static constexpr int kBiasStages =
      !kOfPairs                                                                      ? 0
      : kOtherBytes + 2 * PairBiases::kBytes + kMostBarrierBytes <= kMostSharedBytes ? 2
                                                                                     : 1;
  static constexpr int kBarriers = 2 * kQStages + 4 * kStages + 2 * kBiasStages;
  static constexpr int kSharedBytes = kOtherBytes + kBiasStages * PairBiases::kBytes + kBarriers * 8;
  static_assert(kSharedBytes <= kMostSharedBytes && kBarriers * 8 <= kMostBarrierBytes);
  // Together as many as the block starts with.
  static constexpr int kReaderRegisters = kGroups == 3 ? 32 : kReplacesQ ? 24 : 40;
  static constexpr int kWorkerRegisters = kGroups == 3 ? 160 : kReplacesQ ? 240 : 232;
};

template <typename Form>
struct ForwardMemory {
  std::uint32_t base;
  __device__ explicit ForwardMemory(const char* raw) : base(hopper::SharedAddress(raw)) {}
  __device__ std::uint32_t q(std::uint32_t stage) const { return base + stage * Form::Q::kBytes; }
  __device__ std::uint32_t k(std::uint32_t stage) const {
    return q(Form::kQStages) + stage * Form::K::kBytes;
  }
  __device__ std::uint32_t v(std::uint32_t stage) const { return k(Form::kStages) + stage * Form::V::kBytes; }
  __device__ std::uint32_t o() const { return Form::kReplacesQ ? q(0) : v(Form::kStages); }
  __device__ std::uint32_t biases(std::uint32_t stage) const {
    return v(Form::kStages) + Form::kOBytes + stage * Form::PairBiases::kBytes;
  }
  __device__ std::uint32_t note(std::uint32_t stage) const {
    return biases(Form::kBiasStages) + stage * Form::kNoteBytes;
  }
  __device__ std::uint32_t barrier(int i) const { return note(Form::kQStages) + i * 8; }
  __device__ std::uint32_t q_full(std::uint32_t stage) const { return barrier(0) + stage * 8; }
  __device__ std::uint32_t q_empty(std::uint32_t stage) const { return q_full(Form::kQStages + stage); }
  __device__ std::uint32_t k_full(std::uint32_t stage) const {
    return q_full(2 * Form::kQStages) + stage * 8;
  }
  __device__ std::uint32_t k_empty(std::uint32_t stage) const { return k_full(Form::kStages + stage); }
  __device__ std::uint32_t v_full(std::uint32_t stage) const { return k_full(2 * Form::kStages + stage); }
  __device__ std::uint32_t v_empty(std::uint32_t stage) const { return k_full(3 * Form::kStages + stage); }
  __device__ std::uint32_t biases_full(std::uint32_t stage) const {
    return k_full(4 * Form::kStages) + stage * 8;
  }
  __device__ std::uint32_t biases_empty(std::uint32_t stage) const {
    return biases_full(Form::kBiasStages + stage);
  }
};
// Non-empty, so that there is one in the forms without biases of pairs too, which do not use it.
template <typename Form>
using BiasRing = Ring<Form::kBiasStages == 0 ? 1 : Form::kBiasStages>;

// The reader finds out what an item is, and leaves it for the workers in shared memory beside the item's queries.
struct alignas(16) ForwardItem {
  int exists;  // 0: there are no more
  int sample, head;
  QueryTile tile;
  int first, last;  // blocks of keys; none where last < first

  __device__ __forceinline__ bool has_keys() const { return exists != 0 && last >= first; }
};
__device__ __forceinline__ void PutItem(std::uint32_t note, const ForwardItem& item) {
  const auto* halves = reinterpret_cast<const uint4*>(&item);
  PutNote(note, halves[0]);
  PutNote(note + sizeof(uint4), halves[1]);
}
__device__ __forceinline__ ForwardItem GetItem(std::uint32_t note) {
  const uint4 halves[2] = {GetNote<uint4>(note), GetNote<uint4>(note + sizeof(uint4))};
  return reinterpret_cast<const ForwardItem&>(halves);
}

// Long items come first, of so many heads at a time that their keys and values stay in L2.
template <typename Form>
__device__ __forceinline__ ForwardItem ItemAt(const ForwardParams& p, int index) {
  ForwardItem item = {};
  if (index >= p.items) return item;
  const Common& c = p.common;
  const int of_section = p.section * c.tiles;
  const int section = index / of_section;
  const int rest = index - section * of_section;
  const int all = p.items / c.tiles;
  const int heads = min(p.section, all - section * p.section);
  const int order = rest / heads;
  const int head = section * p.section + rest - order * heads;
  item.exists = 1;
  if constexpr (Form::kOfPairs) {  // samples, which share the biases, beside each other
    const int samples = all / c.heads;
    item.head = head / samples;
    item.sample = head - item.head * samples;
  } else {
    item.sample = head / c.heads;
    item.head = head - item.sample * c.heads;
  }
  item.tile = TileOf<Form::kQueries>(c, c.tiles - 1 - order);
  const Sight sight = SightOfTile(c, item.sample, item.tile);
  item.first = max(0, sight.from) / Form::kKeys;
  item.last = (sight.below + Form::kKeys - 1) / Form::kKeys - 1;
  return item;
}

// The first items go to the blocks in their order, and every other one to the block that asks for it first: no fixed order has
// equal work for all blocks in every shape.
__device__ __forceinline__ int TakeItem(const ForwardParams& p) {
  return p.taken == nullptr ? p.items : static_cast<int>(gridDim.x) + atomicAdd(p.taken, 1);
}

template <typename Form>
__device__ __forceinline__ void ReadBiases(const CUtensorMap& biases, const Common& c,
                                           const ForwardItem& item, int block,
                                           const ForwardMemory<Form>& memory, BiasRing<Form>* ring) {
  using PairBiases = typename Form::PairBiases;
  hopper::WaitFor(memory.biases_empty(ring->stage), ring->parity ^ 1U);
  const std::uint32_t full = memory.biases_full(ring->stage);
  hopper::ArriveExpecting(full, PairBiases::kBytes);
  const int kv = item.head / c.group;
  LoadPairBiases<PairBiases>(biases,
                             {block * Form::kKeys, item.tile.position, item.head - kv * c.group, kv, 0},
                             memory.biases(ring->stage), full);
  ring->Next();
}

template <typename Form>
__device__ __forceinline__ void ReadForward(const CUtensorMap& q, const CUtensorMap& k, const CUtensorMap& v,
                                            const CUtensorMap& biases, const ForwardParams& p,
                                            const ForwardMemory<Form>& memory) {
  Ring<Form::kStages> ring;
  [[maybe_unused]] BiasRing<Form> bias_ring;
  Ring<Form::kQStages> q_ring;
  int index = static_cast<int>(blockIdx.x);
  while (true) {
    const ForwardItem item = ItemAt<Form>(p, index);
    const std::uint32_t q_stage = q_ring.stage;
    const std::uint32_t q_full = memory.q_full(q_stage);
    hopper::WaitFor(memory.q_empty(q_stage), q_ring.parity ^ 1U);
    q_ring.Next();
    PutItem(memory.note(q_stage), item);
    if (!item.has_keys()) {
      Arrive(q_full);
      if (item.exists == 0) return;
      index = TakeItem(p);
      continue;
    }
    const int kv = item.head / p.common.group;
    const int slot = p.common.slot_of != nullptr ? __ldg(p.common.slot_of + item.sample) : item.sample;
    hopper::ArriveExpecting(q_full, Form::Q::kBytes);
    Form::Q::Load(q, {0, item.tile.row, item.head - kv * p.common.group, kv, item.sample}, memory.q(q_stage),
                  q_full);
    for (int block = item.last; block >= item.first; --block) {
      if (block == item.first) index = TakeItem(p);  // as late as its answer is still not waited for
      hopper::WaitFor(memory.k_empty(ring.stage), ring.parity ^ 1U);
      const HeadPlace keys = {0, block * Form::kKeys, 0, kv, slot};
      hopper::ArriveExpecting(memory.k_full(ring.stage), Form::K::kBytes);
      Form::K::Load(k, keys, memory.k(ring.stage), memory.k_full(ring.stage));
      if constexpr (Form::kOfPairs) {
        if (p.boxes_biases) ReadBiases<Form>(biases, p.common, item, block, memory, &bias_ring);
      }
      hopper::WaitFor(memory.v_empty(ring.stage), ring.parity ^ 1U);
      hopper::ArriveExpecting(memory.v_full(ring.stage), Form::V::kBytes);
      Form::V::Load(v, keys, memory.v(ring.stage), memory.v_full(ring.stage));
      ring.Next();
    }
  }
}

template <typename Form>
struct ForwardState {
  static constexpr int kScores = Form::kKeys / 2;
  static constexpr int kValues = Form::kU / 2;
  float o[kValues];
  float scores[kScores];
  std::uint32_t probabilities[kScores / 2];
  float top[2], sum[2];
};

template <typename Form>
__device__ __forceinline__ void IssueValues(const std::uint32_t (&probabilities)[Form::kKeys / 4],
                                            std::uint32_t v, float (&o)[Form::kU / 2], bool add) {
#pragma unroll
  for (int step = 0; step < Form::kKeys / 16; ++step) {
    hopper::Product<typename Form::T, Form::kU>::template Add<true>(
        probabilities[4 * step], probabilities[4 * step + 1], probabilities[4 * step + 2],
        probabilities[4 * step + 3], Form::V::StepOfRows(v, step), o, step > 0 || add);
  }
  hopper::EndProducts();
}

// The softmax takes factor · score + bias for a thread's score, in units of ln 2.
struct ScoreUnit {
  float factor, bias;
};
template <typename Form>
__device__ __forceinline__ float FactorOf(const Common& c) {
  return Form::kCapped ? c.softcap * kLog2E : c.scale_log2;
}

// The 64 queries of a warpgroup.
struct ForwardRows {
  int position;     // of this thread's first query; the other one stands 8 behind it
  Sight sight;      // keys that all queries see
  int first, last;  // with kPassesBy: blocks of keys that one of them sees; none where last < first
  // With linear biases: the head's slope, as it is added to scores before their factor (ScoreUnit). With biases by distance: the bias
  // of all keys that are too far before their query to have one of their own.
  float bias;
};
template <typename Form>
__device__ __forceinline__ ForwardRows RowsOf(const Common& c, const ForwardItem& item) {
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
  const int first = static_cast<int>(threadIdx.x) / kWarpgroup * 64;
  const auto sight = [&](int row) {
    const int at = min(row, item.tile.rows - 1);
    return SightOf(c, item.sample, item.tile.row + at, item.tile.position + at);
  };
  Sight blocks = {0, 0};
  if constexpr (Form::kPassesBy) {
    if (first < item.tile.rows) {
      blocks = {max(0, sight(first).from) / Form::kKeys,
                (sight(first + 63).below + Form::kKeys - 1) / Form::kKeys};
    }
  }
  float bias = 0;
  if constexpr (Form::kBiases == Biases::kLinear) bias = SlopeOf(c, item.head) / FactorOf<Form>(c);
  if constexpr (Form::kBiases == Biases::kByDistance)
    bias = BiasesByDistance<typename Form::T>(c, item.head).At(-c.distance);
  return {item.tile.position + first + thread / kWarp * 16 + thread % kWarp / 4,
          {sight(first + 63).from, sight(first).below},
          blocks.from,
          blocks.below - 1,
          bias};
}

// Scores of products q·k: scale · product + bias of the pair. `boxed`: where the biases of this warpgroup's queries are in shared
// memory; 0: they are read from where they are.
template <typename Form>
__device__ __forceinline__ void AddPairBiases(const Common& c, int head, int position, int block,
                                              std::uint32_t boxed, float (&scores)[Form::kKeys / 2]) {
  using T = typename Form::T;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const float scale = c.scale_log2 * (1.0F / kLog2E);
  const auto add = [&](int at, float2 bias) {
    scores[at] = fmaf(scores[at], scale, bias.x);
    scores[at + 1] = fmaf(scores[at + 1], scale, bias.y);
  };
  if (boxed != 0) {
    const int row = static_cast<int>(threadIdx.x) % kWarpgroup / kWarp * 16 + lane % 16;
#pragma unroll
    for (int step = 0; step < Form::kKeys / 16; ++step) {
      std::uint32_t pairs[4];
      Form::PairBiases::LoadPairs(boxed, row, step, pairs);
#pragma unroll
      for (int i = 0; i < 4; ++i) add(8 * step + 2 * i, PairToFloat(T(), pairs[i]));
    }
    return;
  }
  const BiasesByPair<T> biases(c, head);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const T* row = biases.RowOf(position + 8 * half);
#pragma unroll
    for (int eight = 0; eight < Form::kKeys / 8; ++eight)
      add(4 * eight + 2 * half, biases.TwoAt(row, block * Form::kKeys + lane % 4 * 2 + 8 * eight));
  }
}

// Applies cap and biases to the products q·k of a block, as far as they differ from score to score of a thread. The rest of them, and
// the scale, is the factor and the bias that are returned: the softmax applies these in an operation that it makes anyway.
// `boxed`: as of AddPairBiases.
template <typename Form>
__device__ __forceinline__ ScoreUnit BendScores(const Common& c, const ForwardItem& item,
                                                const ForwardRows& rows, int block, std::uint32_t boxed,
                                                float (&scores)[Form::kKeys / 2]) {
  constexpr int kScores = Form::kKeys / 2;
  const float factor = FactorOf<Form>(c);
  if constexpr (Form::kCapped) {
#pragma unroll
    for (int i = 0; i < kScores; ++i) scores[i] = Tanh(scores[i] * c.bent_scale);
  }
  [[maybe_unused]] const int lane = static_cast<int>(threadIdx.x) % kWarp;
  [[maybe_unused]] const int first = block * Form::kKeys + lane % 4 * 2;  // key of scores[0]
  // How far scores[i] stands from scores[0] behind its query.
  [[maybe_unused]] const auto behind = [](int i) { return i / 4 * 8 + i % 2 - i / 2 % 2 * 8; };
  if constexpr (Form::kBiases == Biases::kOfPairs) {
    AddPairBiases<Form>(c, item.head, rows.position, block, boxed, scores);
    return {kLog2E, 0};
  } else if constexpr (Form::kBiases == Biases::kLinear) {
#pragma unroll
    for (int i = 0; i < kScores; ++i) scores[i] = fmaf(rows.bias, static_cast<float>(behind(i)), scores[i]);
    return {factor, -rows.bias * factor * static_cast<float>(rows.position - first)};
  } else if constexpr (Form::kBiases == Biases::kByDistance) {
    const int corner = block * Form::kKeys - (rows.position - lane / 4);  // of the warp's first query
    if (corner + Form::kKeys - 1 <= -c.distance) return {factor, rows.bias};
    const BiasesByDistance<typename Form::T> biases(c, item.head);
    if (corner - 15 >= c.distance) return {factor, biases.At(corner)};
    const int distance = first - rows.position;
#pragma unroll
    for (int i = 0; i < kScores; ++i) scores[i] = fmaf(scores[i], factor, biases.At(distance + behind(i)));
    return {1, 0};
  }
  return {factor, 0};
}

// Sets what stands for keys of a block that a query does not see to `hidden`. False: all queries see all of them.
template <typename Form>
__device__ __forceinline__ bool Hide(const Common& c, const ForwardItem& item, const ForwardRows& rows,
                                     int block, float hidden, float (&scores)[Form::kKeys / 2]) {
  const int first = block * Form::kKeys + static_cast<int>(threadIdx.x) % 4 * 2;  // key of scores[0]
  const bool has_below = (block + 1) * Form::kKeys > rows.sight.below;
  const bool has_from = block * Form::kKeys < rows.sight.from;
  if (!has_below && !has_from) return false;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int at = min(rows.position + half * 8 - item.tile.position, item.tile.rows - 1);
    const Sight sight = SightOf(c, item.sample, item.tile.row + at, item.tile.position + at);
    const auto hide = [&](const auto& is_hidden) {
#pragma unroll
      for (int i = 0; i < Form::kKeys / 4; ++i) {
        if (is_hidden(i / 2 * 8 + i % 2)) scores[i / 2 * 4 + half * 2 + i % 2] = hidden;
      }
    };
    // Few blocks have both: a comparison each where there is one.
    if (has_below) hide([below = sight.below - first](int key) { return key >= below; });
    if (has_from) hide([from = sight.from - first](int key) { return key < from; });
  }
  return true;
}

// Probabilities of a block, in place of its products q·k, where there is no largest score to subtract (ForwardForm::kBounded). One loop
// brings each score through all that is done to it, so that the operations of several are under way at once.
template <typename Form>
__device__ __forceinline__ void BoundedSoftmax(const Common& c, const ForwardItem& item,
                                               const ForwardRows& rows, int block, ForwardState<Form>& s) {
  const float factor = FactorOf<Form>(c);
  float sum[2] = {0, 0};
#pragma unroll
  for (int i = 0; i < Form::kKeys / 2; ++i) {
    float& score = s.scores[i];
    const float tanh = Tanh(score * c.bent_scale);
    const bool by_polynomial = Form::kPolynomial > 0 && i % Form::kPolynomial == 0;
    score = by_polynomial ? BoundedExp2ByPolynomial(tanh, factor) : Exp2(tanh * factor);
    sum[i / 2 % 2] += score;
  }
  if (Hide<Form>(c, item, rows, block, /*hidden=*/0, s.scores)) {
    sum[0] = sum[1] = 0;
#pragma unroll
    for (int i = 0; i < Form::kKeys / 2; ++i) sum[i / 2 % 2] += s.scores[i];
  }
  s.sum[0] += sum[0];
  s.sum[1] += sum[1];
}

// Probabilities of a block, in place of its scores; what sums so far are to be multiplied by.
template <typename Form>
__device__ __forceinline__ void Softmax(const ScoreUnit& unit, ForwardState<Form>& s, float (&shrink)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float top = -INFINITY;
#pragma unroll
    for (int i = 0; i < Form::kKeys / 8; ++i)
      top = fmaxf(top, fmaxf(s.scores[4 * i + 2 * half], s.scores[4 * i + 2 * half + 1]));
    top = fmaf(top, unit.factor, unit.bias);
    top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 1));
    top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 2));
    top = fmaxf(top, s.top[half]);
    const float zero = top == -INFINITY ? 0.0F : top;
    shrink[half] = Exp2(s.top[half] - zero);
    s.top[half] = top;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < Form::kKeys / 8; ++i) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& score = s.scores[4 * i + 2 * half + e];
        const float power = fmaf(score, unit.factor, unit.bias - zero);
        score = Exp2Of<Form::kPolynomial>(power, 2 * i + e);
        sum += score;
      }
    }
    s.sum[half] = s.sum[half] * shrink[half] + sum;
  }
}

template <typename Form>
__device__ __forceinline__ void Drop(const Common& c, int position, int block, std::uint32_t head,
                                     std::uint32_t epoch, float (&scores)[Form::kKeys / 2]) {
  const std::uint32_t lane = threadIdx.x % kWarp;
#pragma unroll
  for (int step = 0; step < Form::kKeys / 16; ++step) {
    const Draws draws = Draw(c, static_cast<std::uint32_t>(block * Form::kKeys / 16 + step) * 32 + lane,
                             static_cast<std::uint32_t>(position) / 16, head, epoch);
#pragma unroll
    for (int word = 0; word < 4; ++word) {
      // Word 2·(query/8) + key/8; scores are in the other order.
      float* pair = &scores[8 * step + word % 2 * 4 + word / 2 * 2];
      if (draws.words[word] << 16 < c.drop_below_high) pair[0] = 0;
      if (draws.words[word] < c.drop_below_high) pair[1] = 0;
    }
  }
}

template <typename Form>
__device__ __forceinline__ void Pack(const float (&scores)[Form::kKeys / 2],
                                     std::uint32_t (&probabilities)[Form::kKeys / 4]) {
#pragma unroll
  for (int i = 0; i < Form::kKeys / 4; ++i)
    probabilities[i] = PairFromFloat(typename Form::T(), scores[2 * i], scores[2 * i + 1]);
}

template <typename Form>
__device__ __forceinline__ void FinishTile(const CUtensorMap& o_map, const ForwardParams& p,
                                           const ForwardItem& item, const ForwardMemory<Form>& memory,
                                           ForwardState<Form>& s) {
  const Common& c = p.common;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) % kWarpgroup / kWarp;
  const int worker = static_cast<int>(threadIdx.x) / kWarpgroup;
  const int row = worker * 64 + warp * 16 + lane / 4;
  float inverse[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float sum = s.sum[half];
    sum += __shfl_xor_sync(kAllLanes, sum, 1);
    sum += __shfl_xor_sync(kAllLanes, sum, 2);
    float top = !Form::kBounded ? s.top[half] : sum > 0 ? 0.0F : -INFINITY;
    float shrink = 1;
    if (p.sinks != nullptr) {
      const float sink = ToFloat(static_cast<const typename Form::T*>(p.sinks)[item.head]) * kLog2E;
      const float largest = fmaxf(top, sink);
      shrink = Exp2(top - largest);
      sum = sum * shrink + Exp2(sink - largest);
      top = largest;
    }
    inverse[half] = sum > 0 ? shrink * c.keep_scale / sum : 0.0F;
    if (lane % 4 == 0 && row + half * 8 < item.tile.rows) {
      p.lse.data[item.sample * p.lse.sample + (item.tile.row + row + half * 8) * p.lse.token +
                 item.head * p.lse.head] = sum > 0 ? (top + __log2f(sum)) * (1.0F / kLog2E) : -INFINITY;
    }
  }
#pragma unroll
  for (int i = 0; i < Form::kU / 2; ++i) s.o[i] *= inverse[i / 2 % 2];
  const int kv = item.head / c.group;
  if (worker * 64 + 64 <= item.tile.rows) {
    // Into shared memory, where the last tile has been read by now, then out by the TMA unit.
    const bool first = threadIdx.x % kWarpgroup == 0;
    if constexpr (!Form::kReplacesQ) {
      if (first) hopper::WaitForStoresToRead<0>();
      hopper::MeetWarpgroup(4 + worker);
    }
#pragma unroll
    for (int sixteen = 0; sixteen < Form::kU / 16; ++sixteen) {
      std::uint32_t pairs[4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        pairs[i] = PairFromFloat(typename Form::T(), s.o[8 * sixteen + 2 * i], s.o[8 * sixteen + 2 * i + 1]);
      Form::O::StorePairs(memory.o(), worker * 64 + warp * 16 + lane % 16, sixteen, pairs);
    }
    hopper::ShowToCopies();
    hopper::MeetWarpgroup(4 + worker);
    if (first) {
#pragma unroll
      for (int e = 0; e < Form::kU; e += Form::O::kPartColumns) {
        StoreHead(o_map, {e, item.tile.row + worker * 64, item.head - kv * c.group, kv, item.sample},
                  memory.o() + Form::O::ColumnAt(e) + worker * 64 * Form::O::kRowBytes);
      }
      CommitStores();
    }
    return;
  }
  auto* o = static_cast<typename Form::T*>(p.o.data) + item.sample * p.o.sample + kv * p.o.kv_head +
            (item.head - kv * c.group) * p.o.head + lane % 4 * 2;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (row + half * 8 >= item.tile.rows) continue;
    auto* at = o + (item.tile.row + row + half * 8) * p.o.token;
#pragma unroll
    for (int i = 0; i < Form::kU / 8; ++i) {
      if (8 * i < c.value_head) {
        *reinterpret_cast<std::uint32_t*>(at + 8 * i) =
            PairFromFloat(typename Form::T(), s.o[4 * i + 2 * half], s.o[4 * i + 2 * half + 1]);
      }
    }
  }
}

// The warpgroups issue products in turns: barriers 1 to kWorkers.
template <typename Form>
__device__ __forceinline__ void TakeTurn(int worker) {
  Meet(1 + worker, 2 * kWarpgroup);
}
template <typename Form>
__device__ __forceinline__ void PassTurn(int worker) {
  ArriveOnly(1 + (worker + 1) % Form::kWorkers, 2 * kWarpgroup);
}

template <typename Form>
__device__ __forceinline__ void WorkForward(const CUtensorMap& o_map, const ForwardParams& p,
                                            const ForwardMemory<Form>& memory) {
  const Common& c = p.common;
  [[maybe_unused]] const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int worker = static_cast<int>(threadIdx.x) / kWarpgroup;
  const auto epoch = Form::kDropout ? static_cast<std::uint32_t>(c.control[plan::kIteration]) : 0U;
  Ring<Form::kStages> ring;
  Ring<Form::kQStages> q_ring;
  ForwardState<Form> s;
  if (worker == Form::kWorkers - 1) PassTurn<Form>(worker);
  // Forms that pass by blocks have registers for other things than the lane.
  const auto release = [&](std::uint32_t barrier) {
    if constexpr (Form::kPassesBy) {
      ArriveAsWarp(barrier);
    } else {
      ArriveAsWarp(barrier, lane);
    }
  };
  [[maybe_unused]] BiasRing<Form> bias_ring;
  const auto bend = [&](const ForwardItem& item, const ForwardRows& rows, int block) {
    if constexpr (Form::kOfPairs) {
      if (p.boxes_biases) {
        hopper::WaitFor(memory.biases_full(bias_ring.stage), bias_ring.parity);
        const std::uint32_t boxed =
            memory.biases(bias_ring.stage) + worker * 64 * Form::PairBiases::kRowBytes;
        const ScoreUnit unit = BendScores<Form>(c, item, rows, block, boxed, s.scores);
        __syncwarp();  // all lanes have read them
        release(memory.biases_empty(bias_ring.stage));
        bias_ring.Next();
        return unit;
      }
    }
    return BendScores<Form>(c, item, rows, block, /*boxed=*/0, s.scores);
  };
  // Probabilities that multiply values, in place of the block's products q·k.
  const auto weigh = [&](const ForwardItem& item, const ForwardRows& rows, int block, std::uint32_t head,
                         float(&shrink)[2]) {
    if constexpr (Form::kBounded) {
      BoundedSoftmax<Form>(c, item, rows, block, s);
    } else {
      const ScoreUnit unit = bend(item, rows, block);
      Hide<Form>(c, item, rows, block, /*hidden=*/-INFINITY, s.scores);
      Softmax<Form>(unit, s, shrink);
    }
    if constexpr (Form::kDropout) Drop<Form>(c, rows.position, block, head, epoch, s.scores);
  };
  const auto finish = [&](const ForwardItem& item, std::uint32_t q_empty) {
    FinishTile<Form>(o_map, p, item, memory, s);
    if constexpr (Form::kReplacesQ) {
      if (threadIdx.x % kWarpgroup == 0) hopper::WaitForStoresToRead<0>();
      hopper::MeetWarpgroup(4 + worker);
      release(q_empty);
    }
  };
  // Gives a block of keys back that none of this warpgroup's queries sees.
  [[maybe_unused]] const auto pass_by = [&] {
    hopper::WaitFor(memory.k_full(ring.stage), ring.parity);
    TakeTurn<Form>(worker);  // all lanes meet
    PassTurn<Form>(worker);
    release(memory.k_empty(ring.stage));
    hopper::WaitFor(memory.v_full(ring.stage), ring.parity);
    __syncwarp();  // no lane waits any more
    release(memory.v_empty(ring.stage));
    ring.Next();
  };
  const auto finish_without_keys = [&](const ForwardItem& item, std::uint32_t q_empty) {
#pragma unroll
    for (int i = 0; i < Form::kU / 2; ++i) s.o[i] = 0;
    if constexpr (!Form::kReplacesQ) {
      __syncwarp();  // all lanes have read the note
      release(q_empty);
    }
    finish(item, q_empty);
  };
  while (true) {
    const std::uint32_t q = memory.q(q_ring.stage) + worker * 64 * Form::Q::kRowBytes;
    const std::uint32_t q_empty = memory.q_empty(q_ring.stage);
    hopper::WaitFor(memory.q_full(q_ring.stage), q_ring.parity);
    const ForwardItem item = GetItem(memory.note(q_ring.stage));
    q_ring.Next();
    if (item.exists == 0) break;
    s.top[0] = s.top[1] = -INFINITY;
    s.sum[0] = s.sum[1] = 0;
    if (!item.has_keys()) {
      finish_without_keys(item, q_empty);
      continue;
    }
    const ForwardRows rows = RowsOf<Form>(c, item);
    int block = item.last;
    if constexpr (Form::kPassesBy) {
      for (; block >= item.first && block > rows.last; --block) pass_by();
      if (block < item.first) {
        finish_without_keys(item, q_empty);
        continue;
      }
    }
    const int first = Form::kPassesBy ? rows.first : item.first;
    const std::uint32_t head = Form::kDropout ? HeadOfDraws(c, item.sample, item.head) : 0U;
    [[maybe_unused]] float shrink[2];
    hopper::WaitFor(memory.k_full(ring.stage), ring.parity);
    TakeTurn<Form>(worker);
    hopper::PinAll(s.scores);
    hopper::BeginProducts();
    IssueScores<typename Form::T, typename Form::Q, typename Form::K>(q, memory.k(ring.stage), s.scores);
    PassTurn<Form>(worker);
    hopper::WaitForProducts<0>();
    hopper::PinAll(s.scores);
    release(memory.k_empty(ring.stage));
    weigh(item, rows, block, head, shrink);
    Pack<Form>(s.scores, s.probabilities);
    bool add = false;
    for (--block; block >= first; --block) {
      Ring<Form::kStages> next = ring;
      next.Next();
      hopper::WaitFor(memory.k_full(next.stage), next.parity);
      TakeTurn<Form>(worker);
      hopper::PinAll(s.scores);
      hopper::BeginProducts();
      IssueScores<typename Form::T, typename Form::Q, typename Form::K>(q, memory.k(next.stage), s.scores);
      hopper::WaitFor(memory.v_full(ring.stage), ring.parity);
      hopper::PinAll(s.o);
      hopper::PinAll(s.probabilities);
      hopper::BeginProducts();
      IssueValues<Form>(s.probabilities, memory.v(ring.stage), s.o, add);
      PassTurn<Form>(worker);
      hopper::WaitForProducts<1>();
      hopper::PinAll(s.scores);
      release(memory.k_empty(next.stage));
      weigh(item, rows, block, head, shrink);
      hopper::WaitForProducts<0>();
      hopper::PinAll(s.o);
      hopper::PinAll(s.probabilities);
      release(memory.v_empty(ring.stage));
      Pack<Form>(s.scores, s.probabilities);
      if constexpr (!Form::kBounded) {
#pragma unroll
        for (int i = 0; i < Form::kU / 2; ++i) s.o[i] *= shrink[i / 2 % 2];
      }
      add = true;
      ring = next;
    }
    if constexpr (!Form::kReplacesQ) release(q_empty);
    hopper::WaitFor(memory.v_full(ring.stage), ring.parity);
    hopper::PinAll(s.o);
    hopper::PinAll(s.probabilities);
    hopper::BeginProducts();
    IssueValues<Form>(s.probabilities, memory.v(ring.stage), s.o, add);
    hopper::WaitForProducts<0>();
    hopper::PinAll(s.o);
    release(memory.v_empty(ring.stage));
    ring.Next();
    if constexpr (Form::kPassesBy) {
      for (; block >= item.first; --block) pass_by();
    }
    finish(item, q_empty);
  }
  if (threadIdx.x % kWarpgroup == 0) hopper::WaitForStores();
}

template <typename Form>
__global__ void __launch_bounds__(Form::kThreads, 1)
    ForwardKernel(const __grid_constant__ CUtensorMap q, const __grid_constant__ CUtensorMap k,
                  const __grid_constant__ CUtensorMap v, const __grid_constant__ CUtensorMap o,
                  const __grid_constant__ CUtensorMap biases, const __grid_constant__ ForwardParams p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(kBoxAlignment) char raw[];
  const ForwardMemory<Form> memory(raw);
  if (threadIdx.x == 0) {
    constexpr int kArrivals = Form::kWorkers * kWarpsOfGroup * kArrivalsOfWarp;
    for (int stage = 0; stage < Form::kQStages; ++stage) {
      hopper::InitBarrier(memory.q_full(stage), 1);
      hopper::InitBarrier(memory.q_empty(stage), kArrivals);
    }
    for (int stage = 0; stage < Form::kStages; ++stage) {
      hopper::InitBarrier(memory.k_full(stage), 1);
      hopper::InitBarrier(memory.v_full(stage), 1);
      hopper::InitBarrier(memory.k_empty(stage), kArrivals);
      hopper::InitBarrier(memory.v_empty(stage), kArrivals);
    }
    for (int stage = 0; stage < Form::kBiasStages; ++stage) {
      hopper::InitBarrier(memory.biases_full(stage), 1);
      hopper::InitBarrier(memory.biases_empty(stage), kArrivals);
    }
    hopper::PublishBarriers();
  }
  __syncthreads();
  if (threadIdx.x / kWarpgroup == Form::kWorkers) {
    hopper::GiveRegisters<Form::kReaderRegisters>();
    if (threadIdx.x % kWarpgroup == 0) ReadForward<Form>(q, k, v, biases, p, memory);
  } else {
    hopper::TakeRegisters<Form::kWorkerRegisters>();
    WorkForward<Form>(o, p, memory);
  }
#endif
}

}  // namespace engine::backend::cuda::attention_sm90a
