// The backward pass on Hopper of heads of up to 256 elements: the two warpgroups share a block of 64 keys. Each makes the scores
// of half of a tile's queries, and of all of them sums half of the columns of dk, dv and dq, so that these fit its registers.
#pragma once

#include "engine/backend/cuda/attention/backward_biases_sm90a.cuh"

namespace engine::backend::cuda::attention_sm90a {

template <typename Element, int kHeadElements, int kValueElements, bool kIsCapped, Biases kBiasesOfScores,
          bool kDrops>
struct WideBackwardForm
    : BackwardSizes<Element, kHeadElements, kValueElements, 64, 64, kIsCapped, kBiasesOfScores, kDrops> {
  using Sizes =
      BackwardSizes<Element, kHeadElements, kValueElements, 64, 64, kIsCapped, kBiasesOfScores, kDrops>;
  static constexpr bool kWide = true;
  static constexpr bool kNotesSpans = true;
  static constexpr int kScoreQueries = Sizes::kQueries / Sizes::kWorkers;  // of which a worker has scores
  static constexpr int kDOStages = kValueElements > 128 ? 1 : 2;           // two do not fit
  static constexpr int kMatrixBytes = Sizes::Scores::kBytes;
  static constexpr int kScoreBytes = 2 * 2 * kMatrixBytes;  // of two steps, probabilities and ds
  static constexpr int kSumsOfWorker = Sizes::kQueries * Sizes::kSumsColumns * 4;  // a part
  static constexpr int kParts = Sizes::kQueryColumns / Sizes::kSumsColumns;        // of a worker's columns
  static constexpr int kSumsBytes = Sizes::kWorkers * kSumsOfWorker;
  static constexpr int kTurns = Sizes::kWorkers;  // of a tile: each worker's columns have their own
  using DK = BoxedMatrix<64, Sizes::kE / 2>;      // a worker's
  using DV = BoxedMatrix<64, Sizes::kU / 2>;
  static_assert(DK::kBytes <= kSumsOfWorker && DV::kBytes <= kSumsOfWorker);
};

// Named barriers of a worker and the warp that takes its sums: + worker.
inline constexpr int kPartEmpty = 1;
inline constexpr int kPartFull = 3;
inline constexpr int kPartThreads = kWarpgroup + kWarp;
inline constexpr int kMatricesWritten = 5;  // of the workers
inline constexpr int kWideBiasesRead = 6;

// A warp takes what a worker gives to dq, part by part, to where it is summed, and behind a block's steps its columns of dk and dv.
template <typename Form>
__device__ __forceinline__ void WriteParts(const CUtensorMap& dk, const CUtensorMap& dv,
                                           const BackwardParams& p, const BackwardMemory<Form>& memory,
                                           int worker) {
  constexpr int kBytes = Form::kSumsOfWorker;
  const bool first_lane = threadIdx.x % kWarp == 0;
  const std::uint32_t from = memory.sums() + worker * kBytes;
  ArriveOnly(kPartEmpty + worker, kPartThreads);
  const auto write_sums = [&](const BackwardItem& item, int tile, int g) {
    const std::int64_t at = RowTile<Form>(p, item, g, tile) * Form::kTurns + worker;
    const int rank = RankOf<Form>(p, item, tile);
    if (first_lane && rank > 0) WaitForTurn(p.turns + at, rank);  // while the worker is still at the step
    __syncwarp();
    for (int part = 0; part < Form::kParts; ++part) {
      Meet(kPartFull + worker, kPartThreads);
      if (first_lane) {
        float* to = p.dq + (at * Form::kParts + part) * (kBytes / 4);
        if (rank == 0) {
          StoreBytes(to, from, kBytes);
        } else {
          AddFloats(to, from, kBytes);
        }
        CommitStores();
        hopper::WaitForStoresToRead<0>();
      }
      __syncwarp();
      ArriveOnly(kPartEmpty + worker, kPartThreads);
    }
    if (first_lane) {
      hopper::WaitForStores();  // not .read: the sums have to have arrived before the next block's
      EndTurn(p.turns + at);
    }
    __syncwarp();
  };
  const auto write_keys = [&](const BackwardItem& item) {
    HeadPlace place = {worker * Form::DK::kColumns, item.block * Form::kKeys, 0, item.kv, item.sample};
    for (const bool is_dk : {true, false}) {
      Meet(kPartFull + worker, kPartThreads);
      if (first_lane) {
        if (is_dk) {
          CopyKeys<typename Form::DK>(dk, place, from);
        } else {
          place.element = worker * Form::DV::kColumns;
          CopyKeys<typename Form::DV>(dv, place, from);
        }
        CommitStores();
        hopper::WaitForStoresToRead<0>();
      }
      __syncwarp();
      ArriveOnly(kPartEmpty + worker, kPartThreads);
    }
  };
  ForEachTile<Form>(p, memory, write_sums, write_keys);
  if (first_lane) hopper::WaitForStores();
}

// d[64, columns] of a[64, 64], or its transpose where kTransposed, · b[64, columns], this worker's columns: the summed dim
// is queries, or keys.
template <typename Form, bool kTransposed, typename B, int kSums>
__device__ __forceinline__ void IssueColumns(std::uint32_t a, std::uint32_t b, float (&d)[kSums], bool add) {
  using A = typename Form::Scores;
#pragma unroll
  for (int step = 0; step < 64 / 16; ++step) {
    const std::uint64_t of_a = kTransposed ? A::StepOfRows(a, step) : A::StepOfColumns(a, step);
    hopper::Product<typename Form::T, 2 * kSums>::template Add<kTransposed, true>(
        of_a, B::StepOfRows(b, step), d, step > 0 || add);
  }
  hopper::EndProducts();
}

// The work of one thread of the two warpgroups that multiply.
template <typename Form>
struct WideWorker {
  using State = BackwardState<Form>;
  static_assert(Form::kKeys == 64 && Form::kQueries == 64);
  using T = typename Form::T;
  using K = typename Form::K;
  using V = typename Form::V;
  using Q = typename Form::Q;
  using DO = typename Form::DO;

  const BackwardParams& p;
  const BackwardMemory<Form>& memory;
  int worker, lane, warp;
  __device__ WideWorker(const BackwardParams& params, const BackwardMemory<Form>& shared)
      : p(params),
        memory(shared),
        worker(static_cast<int>(threadIdx.x) / kWarpgroup),
        lane(static_cast<int>(threadIdx.x) % kWarp),
        warp(static_cast<int>(threadIdx.x) % kWarpgroup / kWarp) {}
  __device__ void Release(std::uint32_t barrier) const { ArriveAsWarp(barrier, lane); }
  // How many bytes behind a tile's first row this worker's queries begin.
  template <typename Tile>
  __device__ std::uint32_t rows() const {
    return worker * Form::kScoreQueries * Tile::kRowBytes;
  }
  __device__ std::uint32_t probabilities(std::uint32_t which) const {
    return memory.scores() + which * 2 * Form::kMatrixBytes;
  }
  __device__ std::uint32_t ds(std::uint32_t which) const { return probabilities(which) + Form::kMatrixBytes; }

  __device__ __forceinline__ void Begin(const Ring<Form::kStages>& ring, State& s) const {
    hopper::WaitFor(memory.q_full(ring.stage), ring.parity);
    hopper::PinAll(s.scores);
    hopper::BeginProducts();
    IssueScores<T, K, Q>(memory.k(), memory.q(ring.stage) + rows<Q>(), s.scores);
    hopper::WaitForProducts<0>();
    hopper::PinAll(s.scores);
  }

  __device__ __forceinline__ void StoreSums(const float (&dq)[Form::kE / 4]) const {
#pragma unroll
    for (int part = 0; part < Form::kParts; ++part) {
      Meet(kPartEmpty + worker, kPartThreads);
      StoreSumsOf<Form::kSumsColumns>(memory.sums() + worker * Form::kSumsOfWorker, dq,
                                      part * Form::kSumsColumns / 2);
      hopper::ShowToCopies();
      ArriveOnly(kPartFull + worker, kPartThreads);
    }
  }

  // As BackwardWorker::Step. `which` is the step's matrices of probabilities and ds.
  template <bool kMore>
  __device__ __forceinline__ void Step(int key, std::uint32_t block_parity, std::uint32_t which,
                                       Ring<Form::kStages>* ring, Ring<Form::kDOStages>* do_ring, State& s,
                                       BiasGradientsOf<Form>& biases) const {
    const Common& c = p.common;
    TileNote note = GetNote<TileNote>(memory.tile_note(ring->stage));
    note.position += worker * Form::kScoreQueries;
    hopper::WaitFor(memory.do_full(do_ring->stage), do_ring->parity);
    hopper::PinAll(s.d_scores);
    hopper::BeginProducts();
    IssueScores<T, V, DO>(memory.v(), memory.d_o(do_ring->stage) + rows<DO>(), s.d_scores);
    std::uint32_t bend[State::kBends];
    const std::uint32_t numbers = worker * Form::kScoreQueries * 4;
    const std::uint32_t boxed = memory.biases(ring->stage) + rows<typename Form::PairBiases>();
    Probabilities<Form>(c, key, note, memory, block_parity,
                        {Form::kOfPairs && p.boxes_biases ? boxed : 0, warp * 16},
                        memory.lse(ring->stage) + numbers, s, bend);
    if constexpr (Form::kOfPairs) Meet(kWideBiasesRead, 2 * kWarpgroup);  // gradients take their place
    hopper::WaitForProducts<0>();
    hopper::PinAll(s.d_scores);
    if constexpr (!kMore) Release(memory.v_empty());
    std::uint32_t packed[State::kScores / 2];
    std::uint32_t d_scores[State::kScores / 2];
    const int row = warp * 16 + lane % 16;
    constexpr int kSteps = Form::kScoreQueries / 16;
    ScoreGradients<Form>(c, memory.delta(do_ring->stage) + numbers, bend, ds(which), row, worker * kSteps, s,
                         packed, d_scores);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const std::uint32_t pairs[4] = {packed[4 * step], packed[4 * step + 1], packed[4 * step + 2],
                                      packed[4 * step + 3]};
      Form::Scores::StorePairs(probabilities(which), row, worker * kSteps + step, pairs);
    }
    hopper::ShowToCopies();
    biases.Locate(p, memory.block_note(), memory.tile_note(ring->stage), worker * Form::kScoreQueries, key);
    Meet(kMatricesWritten, 2 * kWarpgroup);
    float dq[Form::kE / 4];
    hopper::PinAll(s.dv);
    hopper::PinAll(s.dk);
    hopper::PinAll(dq);
    hopper::BeginProducts();
    IssueColumns<Form, false, DO>(
        probabilities(which), memory.d_o(do_ring->stage) + worker * DO::ColumnAt(Form::kU / 2), s.dv, true);
    biases.AddFar(p, d_scores);
    IssueColumns<Form, false, Q>(ds(which), memory.q(ring->stage) + worker * Q::ColumnAt(Form::kE / 2), s.dk,
                                 true);
    IssueColumns<Form, true, K>(ds(which), memory.k() + worker * K::ColumnAt(Form::kE / 2), dq, false);
    hopper::WaitForProducts<1>();
    hopper::PinAll(s.dv);
    hopper::PinAll(s.dk);
    Release(memory.do_empty(do_ring->stage));
    const std::uint32_t q_empty = memory.q_empty(ring->stage);
    if constexpr (!Form::kOfPairs) Release(q_empty);
    ring->Next();
    do_ring->Next();
    if constexpr (kMore) {
      hopper::WaitFor(memory.q_full(ring->stage), ring->parity);
      hopper::PinAll(s.scores);
      hopper::BeginProducts();
      IssueScores<T, K, Q>(memory.k(), memory.q(ring->stage) + rows<Q>(), s.scores);
      biases.Add(p, memory.block_note(), d_scores);
      hopper::WaitForProducts<1>();
    } else {
      biases.Add(p, memory.block_note(), d_scores);
      hopper::WaitForProducts<0>();
    }
    hopper::PinAll(dq);
    if constexpr (Form::kOfPairs) Release(q_empty);  // the next biases take the place of gradients
    StoreSums(dq);
    if constexpr (kMore) {
      hopper::WaitForProducts<0>();
      hopper::PinAll(s.scores);
    }
  }

  __device__ __forceinline__ void StoreKeys(const State& s) const {
    Store<typename Form::DK>(s.dk, p.scale);
    Store<typename Form::DV>(s.dv, Form::kDropout ? p.common.keep_scale : 1.0F);
  }

 private:
  template <typename Matrix, int kSums>
  __device__ __forceinline__ void Store(const float (&d)[kSums], float factor) const {
    Meet(kPartEmpty + worker, kPartThreads);
    LeaveKeys<T, Matrix>(memory.sums() + worker * Form::kSumsOfWorker, d, factor);
    hopper::ShowToCopies();
    ArriveOnly(kPartFull + worker, kPartThreads);
  }
};

template <typename Form>
__device__ __forceinline__ void WorkWide(const BackwardParams& p, const BackwardMemory<Form>& memory) {
  const WideWorker<Form> w(p, memory);
  Ring<Form::kStages> ring;
  Ring<Form::kDOStages> do_ring;
  std::uint32_t kv_parity = 0;
  std::uint32_t which = 0;
  BackwardState<Form> s;
  BiasGradientsOf<Form> biases;
  while (true) {
    hopper::WaitFor(memory.kv_full(), kv_parity);
    const BlockNote begin = GetNote<BlockNote>(memory.block_note());
    if (begin.steps < 0) break;
    biases.Begin(p, memory.block_note());
#pragma unroll
    for (float& sum : s.dk) sum = 0;
#pragma unroll
    for (float& sum : s.dv) sum = 0;
    if (begin.steps > 0) {
      const int key = begin.block * Form::kKeys + w.warp * 16 + w.lane / 4;
      int more = begin.steps - 1;
      w.Begin(ring, s);
      hopper::WaitFor(memory.v_full(), kv_parity);
#pragma unroll 1
      for (; more > 0; --more) {
        w.template Step<true>(key, kv_parity, which, &ring, &do_ring, s, biases);
        which ^= 1U;
      }
      w.template Step<false>(key, kv_parity, which, &ring, &do_ring, s, biases);
      which ^= 1U;
      biases.Finish(p, memory.block_note());
    } else {
      hopper::WaitFor(memory.v_full(), kv_parity);
      __syncwarp();  // no lane waits any more
      w.Release(memory.v_empty());
    }
    kv_parity ^= 1U;
    __syncwarp();  // all lanes have read the note
    w.Release(memory.kv_empty());
    w.StoreKeys(s);
  }
  // The writer has told that its buffer is empty once more than anyone waited for it.
  Meet(kPartEmpty + w.worker, kPartThreads);
}

}  // namespace engine::backend::cuda::attention_sm90a
