// The forms of attention's forward pass on Hopper: their sizes, what a block has in shared memory, and the items of its work.
#pragma once

#include <type_traits>

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

}  // namespace engine::backend::cuda::attention_sm90a
