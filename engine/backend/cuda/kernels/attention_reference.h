// Launchers of attention_reference.cu: attention with plain fp32 arithmetic, for any sizes, windows, dropout,
// soft caps, linear biases, biases by distance and by pair, sinks, documents, element types and slices of the sequence. What other forms are compared with, and what carries out those
// that cuDNN does not. B batch, S queries, T keys, H heads, K kv heads, E elements
// of a head of q and k, U of v and o.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "engine/base/dtype.h"

namespace engine::backend::cuda {

// Element e of head h of token s of sample b stands at b·sample + s·token + h / group·kv_head + h %
// group·head + e; for keys and values group is 1.
struct AttentionView {
  void* data = nullptr;
  std::int64_t sample = 0;
  std::int64_t token = 0;
  std::int64_t kv_head = 0;
  std::int64_t head = 0;
};

// lse of head h of query s of sample b stands at b·sample + s·token + h·head.
struct LseView {
  float* data = nullptr;
  std::int64_t sample = 0;
  std::int64_t token = 0;
  std::int64_t head = 0;
};

// Dropout as base/attention_draws.h says: the mask is a function of logical indices.
struct AttentionDropout {
  float scale = 1;                          // of what is kept
  std::uint32_t below = 0;                  // draws that are dropped; 0: none, and the rest is not read
  std::uint32_t key_low = 0, key_high = 0;  // PhiloxKey of (seed, stream)
  std::int64_t first_sample = 0;            // in the global batch, of sample 0 here
  const double* control = nullptr;          // plan/control.h: kIteration is the epoch of the draws
};

struct AttentionProblem {
  DType dtype = DType::kF32;  // of q, k, v, o and their gradients
  std::int64_t batch = 0, queries = 0, keys = 0, heads = 0, kv_heads = 0;
  std::int64_t head = 0;        // E, of q and k, up to kAttentionReferenceMaxHead
  std::int64_t value_head = 0;  // U, of v and o, likewise
  bool causal = true;           // the mask: causal, or none
  std::int64_t window = 0;      // 0: none
  float scale = 1;
  const std::int32_t* positions = nullptr;  // [B, S]; null where nothing depends on them
  // [B, S, 2]: the first key and the key behind the last one that a query's document has; null: all are of one.
  const std::int32_t* spans = nullptr;
  AttentionView q = {}, k = {}, v = {}, o = {};  // inputs
  LseView lse = {};
  // Of the gradient: d_o is an input, the others are written.
  AttentionView d_o = {}, dq = {}, dk = {}, dv = {};
  float* row_sums = nullptr;  // of the gradient: B·H·S numbers of scratch
  // Logical index of head 0 here, and how many the whole tensor has: read for dropout and linear biases alone.
  std::int64_t first_head = 0;
  std::int64_t logical_heads = 0;
  AttentionDropout dropout = {};
  float softcap = 0;            // 0: none
  bool alibi = false;           // linear biases (graph/alibi.h)
  const void* sinks = nullptr;  // [H], of the heads here; null: none
  float* d_sinks = nullptr;     // [H], of the gradient where there are sinks: added to
  // [H, 2·distance + 1], of the heads here: what is added to the score of a key that stands so far from the query, from
  // −distance on; what is farther has the first or the last one. Or, where pairs > 0, [H, pairs, pairs]: what is added to the score of the key in a
  // column and the query at the position of a row; all samples have the same positions then. Null: none.
  const void* biases = nullptr;
  std::int64_t distance = 0, pairs = 0;
  float* d_biases = nullptr;  // likewise, of the gradient where there are biases: added to
};

// Writes o and lse. A query that sees no key gets o = 0, and lse = −inf or its sink.
void AttentionReference(const AttentionProblem& problem, cudaStream_t stream);

// Reads q, k, v, o, lse, d_o, sinks, biases; writes dq, dk, dv; adds to d_sinks and d_biases. No sum depends on which thread comes first.
void AttentionReferenceGrad(const AttentionProblem& problem, cudaStream_t stream);

}  // namespace engine::backend::cuda
