// The forward pass on Hopper: a persistent grid, whose blocks take one tile of 64 queries a warpgroup after the other. One
// warpgroup only reads; the others multiply: while a warpgroup's softmax of a block of keys is computed, the tensor cores
// make its scores of the next block and sum the values of the last one, or work for the other warpgroup (the schedule of
// FlashAttention-3, arXiv:2407.08608).
#pragma once

#include "engine/backend/cuda/attention/forward_scores_sm90a.cuh"

namespace engine::backend::cuda::attention_sm90a {

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
