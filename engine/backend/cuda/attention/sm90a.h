// Attention on Hopper's tensor cores: forward pass and, in one pass with repeatable bits, its gradient (FlashAttention,
// arXiv:2205.14135 and 2407.08608). B batch, S queries, T keys, H heads, K kv heads, E elements of a head of q, k, v and o.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>

#include "engine/backend/cuda/kernels/attention_reference.h"

namespace engine::backend::cuda {

// Queries that stand in a row in memory and in the sequence.
struct QueryRun {
  int row = 0, count = 0, position = 0;
};
inline constexpr int kMaxQueryRuns = 2;  // as many as a rank of context parallelism has, in zigzag

// What AttentionReference and its gradient do, for heads of up to 256 elements (WhyNotOwn) in bf16 or fp16, with a scale
// above 0. Strides count elements and are multiples of 8; positions are those of `run`, with dropout at multiples of 16.
struct Sm90aAttention {
  AttentionProblem problem = {};
  int runs = 1;
  std::array<QueryRun, kMaxQueryRuns> run = {};
  int multiprocessors = 0;

  // Where the forward pass is over caches, keys and values are of `slots` sequences, and those of sample b stand at slot_of[b]. Null: sample b has
  // its own, and there are as many. Of a sample whose slot is −1 the spans must be empty.
  const std::int32_t* slot_of = nullptr;  // [B]
  std::int64_t slots = 0;

  // [1], of kOwnCounterBytes: how many tiles of queries are taken; in the gradient, how many blocks of keys of a head.
  int* taken = nullptr;

  // Of the gradient (OwnGradLayout): rows of tiles, sums, blocks and turns as OwnSizesOf says (profile/attention_tiles.h).
  // [planes, B, H, tiles, rows]: lse · log2(e); infinite behind the last row. With biases by distance there is a plane of these less the
  // first bias (times log2(e)) too, and without a mask one of these less the last bias (LsePlanes).
  float* lse2 = nullptr;
  float* row_sums = nullptr;  // [B, H, tiles, rows]: Σ_E d_o·o
  float* dq_sums = nullptr;   // [B, H, tiles, rows · sums], elements as products leave them
  int* turns = nullptr;       // [B, H, tiles, turns]: blocks of keys that have added to dq_sums
  // Where the problem has spans, what they mean for keys, blocks of them, and tiles.
  int* key_spans =
      nullptr;  // [B, T, 2]: positions of queries whose span has the key: the first, and behind the last
  int* walks = nullptr;         // [B, blocks, 2]: the first and the last tile that see a block
  int* first_blocks = nullptr;  // [B, tiles]: the first block that a tile sees
  // Whether the gradient of biases of pairs is written and not added to, as it may be where each pair is seen in all samples.
  bool sets_biases = false;
  // Where the problem has biases by distance: what each warp's keys give to their gradient.
  float* distance_sums =
      nullptr;  // [B, H, blocks, kOwnKeyWarps, distances]: 2 · distance + 1, causal distance + 1
};

// Whether this program has the kernels: it is compiled for sm_90a.
bool HasAttentionSm90a();

// Each may be captured.
cudaError_t AttentionSm90a(const Sm90aAttention& attention, cudaStream_t stream);
cudaError_t AttentionGradSm90a(const Sm90aAttention& attention, cudaStream_t stream);

}  // namespace engine::backend::cuda
