// Attention on Hopper's tensor cores: forward pass and, in one pass with repeatable bits, its gradient (FlashAttention,
// arXiv:2205.14135 and 2407.08608). B batch, S queries, T keys, H heads, K kv heads, E elements of a head of q and k, U of v
// and o.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>

#include "engine/base/dtype.h"

namespace engine::backend::cuda {

// Element e of head g of kv head k's group of token s of sample b stands at b·sample + s·token + k·kv_head + g·head + e;
// for keys and values g is 0. Strides count elements, and are multiples of 8.
struct Sm90aView {
  void* data = nullptr;
  std::int64_t sample = 0, token = 0, kv_head = 0, head = 0;
};

// Queries that stand in a row in memory and in the sequence.
struct QueryRun {
  int row = 0, count = 0, position = 0;
};
inline constexpr int kMaxQueryRuns = 2;  // as the zigzag of context parallelism has

struct Sm90aAttention {
  DType dtype = DType::kBF16;  // or kF16
  int batch = 0, queries = 0, keys = 0, heads = 0, kv_heads = 0;
  int head = 0;        // E: 64 or 128
  int value_head = 0;  // U = E
  int runs = 1;
  std::array<QueryRun, kMaxQueryRuns> run = {};
  bool causal = true;
  int window = 0;  // 0: none
  float scale = 1;
  float softcap = 0;                 // 0: none
  const float* slopes = nullptr;     // [H]: linear biases, of heads here; null: none
  const float* sinks = nullptr;      // [H]; null: none
  Sm90aView q = {}, k = {}, v = {}, o = {};
  float* lse = nullptr;  // of head h of row s of sample b: b·lse_sample + s·lse_token + h·lse_head
  std::int64_t lse_sample = 0, lse_token = 0, lse_head = 0;

  // Dropout (base/attention_draws.h). 0: none.
  std::uint32_t drop_below = 0;  // of 2¹⁶
  float keep_scale = 1;
  std::uint32_t key_low = 0, key_high = 0;
  int first_sample = 0, first_head = 0, logical_heads = 0;
  const double* control = nullptr;  // plan/control.h

  // Of the gradient.
  Sm90aView d_o = {}, dq = {}, dk = {}, dv = {};
  void* workspace = nullptr;  // Sm90aWorkspace bytes
  float* d_sinks = nullptr;   // [H]: added to
  int multiprocessors = 132;
  int pairs = 1, section = 0;
};

std::int64_t Sm90aWorkspace(const Sm90aAttention& attention);

// Each may be captured.
cudaError_t Sm90aForward(const Sm90aAttention& attention, cudaStream_t stream);
cudaError_t Sm90aBackward(const Sm90aAttention& attention, cudaStream_t stream);

}  // namespace engine::backend::cuda
