// The backward pass on Hopper of heads of up to 128 elements: each of the two warpgroups has 64 keys of a block.
#pragma once

#include "engine/backend/cuda/attention/backward_biases_sm90a.cuh"

namespace engine::backend::cuda::attention_sm90a {

template <typename Element, int kHeadElements, int kTile, bool kIsCapped, Biases kBiasesOfScores, bool kDrops>
struct BackwardForm
    : BackwardSizes<Element, kHeadElements, kHeadElements, kTile, 128, kIsCapped, kBiasesOfScores, kDrops> {
  using Sizes =
      BackwardSizes<Element, kHeadElements, kHeadElements, kTile, 128, kIsCapped, kBiasesOfScores, kDrops>;
  static constexpr bool kWide = false;
  static constexpr int kScoreQueries = kTile;  // of which a worker has scores
  static constexpr int kDOStages = 2;
  static constexpr int kScoreBytes = 2 * Sizes::Scores::kBytes;  // of two steps' ds
  static constexpr int kDQBytes = kTile * kHeadElements * 4;
  static constexpr int kSumsBytes = 2 * kDQBytes;
  static_assert(Sizes::kStages == 2);  // as many as there are buffers of ds and dq
  // The two warpgroups share a tile's dq: each has 64 of 128 queries, or half of the elements of 64.
  static constexpr bool kSplitsQueries = kTile == 128;
  static_assert(Sizes::kQueryColumns == Sizes::kSumsColumns);
  static constexpr int kTurns = 1;        // of a tile
  using DK = BoxedMatrix<64, Sizes::kE>;  // a worker's
  using DV = DK;
  static_assert(DK::kBytes <= kDQBytes / 2 && DV::kBytes <= kScoreBytes / 2);
  // Each block's workers find in a note the span that all of their keys have, and leave dk and dv in shared memory, from where they are
  // copied out while the next block is at work. Otherwise masks look spans up, and workers write dk and dv themselves.
  static constexpr bool kNotesSpans = Sizes::kHasRoom;
  static constexpr bool kCopiesKeys = Sizes::kHasRoom;
  // dv then lies where the gradients of scores were, unless biases of the next tile come to that place: it need not wait until the last
  // step's part of dq is added. Otherwise it lies in the buffer that is empty last.
  static constexpr bool kLeavesInScores = kCopiesKeys && !Sizes::kOfPairs;
  // The next block waits until dv is copied: in its first step, before that makes gradients of scores, or, with biases by distance,
  // whose loop over steps has no register for it, before the step.
  static constexpr bool kAwaitsDVInSteps = kLeavesInScores && Sizes::kBiases != Biases::kByDistance;
};

// The workers put what a step gives to dq into one of two buffers in turn. Each buffer has a warp that adds its content to the
// sums, so that an addition has two steps to arrive in memory. Named barriers of a worker and a buffer's warp: + 2 · buffer + worker.
inline constexpr int kBuffers = 2;
inline constexpr int kSumsEmpty = 1;
inline constexpr int kSumsFull = 5;
inline constexpr int kSumsThreads = kWarpgroup + kWarp;
inline constexpr int kScoresWritten = 9;  // of the workers
inline constexpr int kBiasesRead = 10;    // likewise
inline constexpr int kDVLeft = 11;        // of a worker and the warp that copies dk and dv out: + worker

// A warp takes what the workers give to dq in a buffer, of every other step, to where it is summed. When a block has had its steps, the warp
// whose buffer is empty first copies dk out of it, and dv as kLeavesInScores says.
template <typename Form>
__device__ __forceinline__ void WriteSums(const CUtensorMap& dk, const CUtensorMap& dv,
                                          const BackwardParams& p, const BackwardMemory<Form>& memory,
                                          int buffer) {
  constexpr int kBytes = Form::kDQBytes / Form::kWorkers;
  const bool first_lane = threadIdx.x % kWarp == 0;
  const int empty = kSumsEmpty + 2 * buffer;
  const int full = kSumsFull + 2 * buffer;
  int count = buffer;  // 0: the next step is this buffer's
  for (int worker = 0; worker < Form::kWorkers; ++worker) ArriveOnly(empty + worker, kSumsThreads);
  const auto write_sums = [&](const BackwardItem& item, int tile, int g) {
    if (count++ % kBuffers != 0) return;
    const std::int64_t at = RowTile<Form>(p, item, g, tile);
    const int rank = RankOf<Form>(p, item, tile);
    for (int worker = 0; worker < Form::kWorkers; ++worker) {
      Meet(full + worker, kSumsThreads);
      if (first_lane) {
        float* to = p.dq + (at * Form::kWorkers + worker) * (kBytes / 4);
        const std::uint32_t from = memory.dq(buffer) + worker * kBytes;
        if (rank == 0) {
          StoreBytes(to, from, kBytes);
        } else {
          WaitForTurn(p.turns + at, rank);
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
  };
  const auto copy_keys = [&](const BackwardItem& item, const CUtensorMap& to, int left, std::uint32_t from,
                             int bytes_of_worker) {
    for (int worker = 0; worker < Form::kWorkers; ++worker) {
      Meet(left + worker, kSumsThreads);
      if (first_lane) {
        CopyKeys<typename Form::DK>(to, {0, item.block * Form::kKeys + worker * 64, 0, item.kv, item.sample},
                                    from + worker * bytes_of_worker);
      }
      __syncwarp();
    }
    if (first_lane) CommitStores();
  };
  const auto write_keys = [&](const BackwardItem& item) {
    if constexpr (!Form::kCopiesKeys) return;
    const bool is_first = count % kBuffers == 0;  // the next step is this buffer's
    if constexpr (Form::kLeavesInScores) {
      if (!is_first) return;
      copy_keys(item, dv, kDVLeft, memory.scores(), Form::kScoreBytes / 2);
      if (first_lane) {
        hopper::WaitForStoresToRead<0>();
        Arrive(memory.dv_read());
      }
      __syncwarp();
    }
    copy_keys(item, Form::kLeavesInScores || is_first ? dk : dv, full, memory.dq(buffer), kBytes);
    if (first_lane) hopper::WaitForStoresToRead<0>();
    __syncwarp();
    for (int worker = 0; worker < Form::kWorkers; ++worker) ArriveOnly(empty + worker, kSumsThreads);
  };
  ForEachTile<Form>(p, memory, write_sums, write_keys);
  if (first_lane) hopper::WaitForStores();
}

// d[64 keys, E] += packed[64 keys, queries] · b[queries, E]
template <typename Form, typename B>
__device__ __forceinline__ void IssueKeySums(const std::uint32_t (&packed)[Form::kQueries / 4],
                                             std::uint32_t b, float (&d)[Form::kE / 2]) {
#pragma unroll
  for (int step = 0; step < Form::kQueries / 16; ++step) {
    hopper::Product<typename Form::T, Form::kE>::template Add<true>(
        packed[4 * step], packed[4 * step + 1], packed[4 * step + 2], packed[4 * step + 3],
        B::StepOfRows(b, step), d, 1);
  }
  hopper::EndProducts();
}

// d[64, columns] = ds[keys, queries]ᵀ · k[keys, E], of this warpgroup's queries or elements.
template <typename Form>
__device__ __forceinline__ void IssueQuerySums(const BackwardMemory<Form>& memory, int worker,
                                               std::uint32_t which, float (&d)[Form::kQueryColumns / 2]) {
  using Scores = typename Form::Scores;
  using K = typename Form::K;
  const std::uint32_t a = memory.ds(which) + (Form::kSplitsQueries ? worker * Scores::ColumnAt(64) : 0);
  const std::uint32_t b = memory.k() + (Form::kSplitsQueries ? 0 : worker * K::ColumnAt(Form::kQueryColumns));
#pragma unroll
  for (int step = 0; step < Form::kKeys / 16; ++step) {
    hopper::Product<typename Form::T, Form::kQueryColumns>::template Add<true, true>(
        Scores::StepOfRows(a, step), K::StepOfRows(b, step), d, step > 0);
  }
  hopper::EndProducts();
}

// The work of one thread of the two warpgroups that multiply.
template <typename Form>
struct BackwardWorker {
  // Where registers have room, the gradient of biases is added while products go on: far from the diagonal beside dv, near it beside
  // the next step's scores.
  static constexpr bool kAddsBesideProducts = Form::kE <= 96 || !Form::kDropout;

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
  __device__ std::uint32_t k() const { return memory.k() + worker * 64 * Form::K::kRowBytes; }
  __device__ std::uint32_t v() const { return memory.v() + worker * 64 * Form::V::kRowBytes; }
  __device__ void Release(std::uint32_t barrier) const { ArriveAsWarp(barrier, lane); }

  __device__ __forceinline__ void Begin(const Ring<Form::kStages>& ring, BackwardState<Form>& s) const {
    hopper::WaitFor(memory.q_full(ring.stage), ring.parity);
    hopper::PinAll(s.scores);
    hopper::BeginProducts();
    IssueScores<typename Form::T, typename Form::K, typename Form::Q>(k(), memory.q(ring.stage), s.scores);
    hopper::WaitForProducts<0>();
    hopper::PinAll(s.scores);
  }

  // Keys and values have been read: the next ones may come in their place, and the note of their block.
  __device__ __forceinline__ BlockNote EndBlock() const {
    const BlockNote note = GetNote<BlockNote>(memory.block_note());
    __syncwarp();
    Release(memory.kv_empty());
    return note;
  }

  // Puts what a step gives to dq into shared memory, from where the buffer's warp takes it.
  __device__ __forceinline__ void StoreSums(std::uint32_t buffer,
                                            const float (&dq)[Form::kQueryColumns / 2]) const {
    Meet(kSumsEmpty + 2 * static_cast<int>(buffer) + worker, kSumsThreads);
    StoreSumsOf<Form::kSumsColumns>(memory.dq(buffer) + worker * (Form::kDQBytes / 2), dq, 0);
    hopper::ShowToCopies();
    ArriveOnly(kSumsFull + 2 * static_cast<int>(buffer) + worker, kSumsThreads);
  }

  // On entry there are scores of the step, and with kMore on return those of the next one. No product is under way on entry
  // or return: it would be waited for where a loop begins again.
  template <bool kMore>
  __device__ __forceinline__ void Step(int key, std::uint32_t block_parity, Ring<Form::kStages>* ring,
                                       BackwardState<Form>& s, BiasGradientsOf<Form>& biases,
                                       BlockNote* end) const {
    const Common& c = p.common;
    hopper::WaitFor(memory.do_full(ring->stage), ring->parity);
    hopper::PinAll(s.d_scores);
    hopper::BeginProducts();
    IssueScores<typename Form::T, typename Form::V, typename Form::DO>(v(), memory.d_o(ring->stage),
                                                                       s.d_scores);
    std::uint32_t bend[BackwardState<Form>::kBends];
    Probabilities<Form>(
        c, key, GetNote<TileNote>(memory.tile_note(ring->stage)), memory, block_parity,
        {Form::kOfPairs && p.boxes_biases ? memory.biases(ring->stage) : 0, worker * 64 + warp * 16},
        memory.lse(ring->stage), s, bend);
    if constexpr (Form::kOfPairs) Meet(kBiasesRead, 2 * kWarpgroup);  // gradients take their place
    if constexpr (Form::kAwaitsDVInSteps)
      hopper::WaitFor(memory.dv_read(), block_parity ^ 1U);  // of the block before
    hopper::WaitForProducts<0>();
    hopper::PinAll(s.d_scores);
    if constexpr (!kMore) Release(memory.v_empty());
    const auto locate = [&] {
      biases.Locate(p, memory.block_note(), memory.tile_note(ring->stage), /*first_query=*/0, key);
    };
    std::uint32_t probabilities[BackwardState<Form>::kScores / 2];
    std::uint32_t d_scores[BackwardState<Form>::kScores / 2];
    ScoreGradients<Form>(c, memory.delta(ring->stage), bend, memory.ds(ring->stage),
                         worker * 64 + warp * 16 + lane % 16, /*first_step=*/0, s, probabilities, d_scores);
    hopper::ShowToCopies();
    if constexpr (kAddsBesideProducts) locate();
    hopper::PinAll(probabilities);
    hopper::PinAll(d_scores);
    hopper::PinAll(s.dv);
    hopper::PinAll(s.dk);
    hopper::BeginProducts();
    IssueKeySums<Form, typename Form::DO>(probabilities, memory.d_o(ring->stage), s.dv);
    if constexpr (kAddsBesideProducts) biases.AddFar(p, d_scores);
    IssueKeySums<Form, typename Form::Q>(d_scores, memory.q(ring->stage), s.dk);
    Meet(kScoresWritten, 2 * kWarpgroup);
    float dq[Form::kQueryColumns / 2];
    hopper::PinAll(dq);
    hopper::BeginProducts();
    IssueQuerySums<Form>(memory, worker, ring->stage, dq);
    hopper::WaitForProducts<1>();
    hopper::PinAll(probabilities);
    hopper::PinAll(d_scores);
    hopper::PinAll(s.dv);
    hopper::PinAll(s.dk);
    if constexpr (!kAddsBesideProducts) {
      locate();
      biases.AddFar(p, d_scores);
      biases.Add(p, memory.block_note(), d_scores);
    }
    Release(memory.do_empty(ring->stage));
    const std::uint32_t q_empty = memory.q_empty(ring->stage);
    if constexpr (!Form::kOfPairs) Release(q_empty);
    ring->Next();
    if constexpr (kMore) {
      hopper::WaitFor(memory.q_full(ring->stage), ring->parity);
      hopper::PinAll(s.scores);
      hopper::BeginProducts();
      IssueScores<typename Form::T, typename Form::K, typename Form::Q>(k(), memory.q(ring->stage), s.scores);
      if constexpr (kAddsBesideProducts) biases.Add(p, memory.block_note(), d_scores);
      hopper::WaitForProducts<1>();
    } else {
      if constexpr (kAddsBesideProducts) biases.Add(p, memory.block_note(), d_scores);
      hopper::WaitForProducts<0>();
    }
    hopper::PinAll(dq);
    if constexpr (Form::kOfPairs) Release(q_empty);  // the next biases take the place of gradients
    if constexpr (!kMore) {
      biases.Finish(p, memory.block_note());
      *end = EndBlock();
    }
    StoreSums(ring->stage ^ 1U, dq);
    if constexpr (kMore) {
      hopper::WaitForProducts<0>();
      hopper::PinAll(s.scores);
    }
  }

  // Gives a block's gradients of keys and values to who copies them out, or writes them; `next` is the buffer of the step that follows.
  __device__ __forceinline__ void StoreKeys(const BlockNote& note, std::uint32_t next,
                                            const BackwardState<Form>& s) const {
    const float factor = Form::kDropout ? p.common.keep_scale : 1.0F;
    if constexpr (Form::kLeavesInScores) {
      Meet(kScoresWritten, 2 * kWarpgroup);  // both workers have multiplied dq
      LeaveKeys<typename Form::T, typename Form::DV>(memory.scores() + worker * (Form::kScoreBytes / 2), s.dv,
                                                     factor);
      hopper::ShowToCopies();
      ArriveOnly(kDVLeft + worker, kSumsThreads);
      StoreIn<typename Form::DK>(next, s.dk, p.scale);
    } else if constexpr (Form::kCopiesKeys) {
      StoreIn<typename Form::DK>(next, s.dk, p.scale);
      StoreIn<typename Form::DV>(next ^ 1U, s.dv, factor);
    } else {
      const int first = note.block * Form::kKeys + worker * 64;
      using T = typename Form::T;
      const auto of = [&](const AttentionView& view) {
        return static_cast<T*>(view.data) + note.sample * view.sample + note.kv * view.kv_head +
               first * view.token;
      };
      const int rows = p.common.keys - first;
      StoreRows(s.dk, p.scale, of(p.dk), p.dk.token, rows, p.common.head);
      StoreRows(s.dv, factor, of(p.dv), p.dv.token, rows, p.common.value_head);
    }
  }

 private:
  template <typename Matrix, int kSums>
  __device__ __forceinline__ void StoreIn(std::uint32_t buffer, const float (&d)[kSums], float factor) const {
    Meet(kSumsEmpty + 2 * static_cast<int>(buffer) + worker, kSumsThreads);
    LeaveKeys<typename Form::T, Matrix>(memory.dq(buffer) + worker * (Form::kDQBytes / 2), d, factor);
    hopper::ShowToCopies();
    ArriveOnly(kSumsFull + 2 * static_cast<int>(buffer) + worker, kSumsThreads);
  }
};

template <typename Form>
__device__ __forceinline__ void WorkBackward(const BackwardParams& p, const BackwardMemory<Form>& memory) {
  const BackwardWorker<Form> w(p, memory);
  Ring<Form::kStages> ring;
  std::uint32_t kv_parity = 0;
  BackwardState<Form> s;
  BiasGradientsOf<Form> biases;
  while (true) {
    hopper::WaitFor(memory.kv_full(), kv_parity);
    const BlockNote begin = GetNote<BlockNote>(memory.block_note());
    if (begin.steps < 0) break;
    biases.Begin(p, memory.block_note());
#pragma unroll
    for (int i = 0; i < Form::kE / 2; ++i) s.dk[i] = s.dv[i] = 0;
    BlockNote end;
    if (begin.steps > 0) {
      const int key = begin.block * Form::kKeys + w.worker * 64 + w.warp * 16 + w.lane / 4;
      int more = begin.steps - 1;
      w.Begin(ring, s);
      hopper::WaitFor(memory.v_full(), kv_parity);
      if constexpr (Form::kLeavesInScores && !Form::kAwaitsDVInSteps)
        hopper::WaitFor(memory.dv_read(), kv_parity ^ 1U);
#pragma unroll 1
      for (; more > 0; --more) w.template Step<true>(key, kv_parity, &ring, s, biases, nullptr);
      w.template Step<false>(key, kv_parity, &ring, s, biases, &end);
    } else {
      hopper::WaitFor(memory.v_full(), kv_parity);
      if constexpr (Form::kLeavesInScores) hopper::WaitFor(memory.dv_read(), kv_parity ^ 1U);
      __syncwarp();  // no lane waits any more
      w.Release(memory.v_empty());
      end = w.EndBlock();
    }
    kv_parity ^= 1U;
    w.StoreKeys(end, ring.stage, s);
  }
  // The writers have told that their buffers are empty once more than anyone waited for it.
  for (int buffer = 0; buffer < kBuffers; ++buffer) Meet(kSumsEmpty + 2 * buffer + w.worker, kSumsThreads);
}

}  // namespace engine::backend::cuda::attention_sm90a
