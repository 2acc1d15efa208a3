// Attention of any shape and options as a kernel's problem: inputs, and what is expected with its tolerances.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/backend/cuda/profile/scratch_attention.h"
#include "tests/gpu/cases.h"

namespace engine::gpu_test {

struct AttentionOptions {
  DType dtype = DType::kBF16;
  std::int64_t batch = 1, queries = 1, keys = 1, heads = 1, kv_heads = 1;
  std::int64_t head = 64;        // elements of q and k
  std::int64_t value_head = 64;  // of v and o
  bool packed = false;  // one tensor [B, S, H, 3, E]; heads, kv_heads and the two widths are equal then
  bool causal = true;
  std::int64_t window = 0;  // 0: none
  double scale = 0.125;
  double dropout = 0, softcap = 0;  // 0: none
  bool alibi = false, sinks = false;
  std::int64_t distance = 0;                 // of biases by distance; 0: none
  std::int64_t pairs = 0;                    // places whose pairs have a bias each; 0: none
  std::vector<std::int64_t> documents = {};  // tokens of each, of all keys; empty: none are masked
  DimExtent positions = {};        // of the queries, where they are a slice of the sequence; empty: the whole
  std::int64_t first_head = 0;     // of logical_heads; packed, 0 of all
  std::int64_t logical_heads = 0;  // 0: those that are here
  std::string kernel = {};         // attribute of that name (scratch_attention.h)

  bool has_trained_biases() const { return distance > 0 || pairs > 0; }
  std::string ToString() const;
};

// Float64 numbers of the dtype: q, k, v, positions, o, lse, d_o, sinks, biases and spans, also where there are none of these. o and lse
// are those of the forward pass by the CPU, or, without `saved`, any numbers.
Tensors AttentionInputs(const AttentionOptions& options, bool saved = true);

// The forward pass, or the gradient, as a launch takes it. `inputs`: AttentionInputs.
Problem AttentionProblemOf(const AttentionOptions& options, const Tensors& inputs, bool backward);

// Types of a problem's inputs on the GPU, which what is refused and what is chosen goes by.
std::vector<graph::TensorType> InputTypes(const Problem& problem);

// Outputs of the problem by the CPU's kernels in float64, each with its tolerance; the packed gradient is one tensor with one
// tolerance. May be called by many threads at once.
struct ExpectedAttention {
  Tensors outputs;
  std::vector<Tolerance> tolerances;
  // Of the root mean square of an output's errors, relative to that of its elements: the tolerances are bounds of the worst
  // element, far beyond what most may be off by.
  std::vector<Tolerance> spreads;
};
ExpectedAttention ExpectedOf(const AttentionOptions& options, const Tensors& inputs, bool backward,
                             backend::cuda::AttentionKernels kernels);

// A failed check where the root mean square of the errors is beyond what it may be.
void CompareSpread(const std::string& where, const Tensor& expected, const Tensor& actual, Tolerance spread);

// A problem on the GPU whose every tensor is an allocation of its own of the tensor's size, and its launch.
class StandingProblem {
 public:
  // `poison`: outputs and scratch are written to before each run; else they hold what the allocations held.
  static absl::StatusOr<std::unique_ptr<StandingProblem>> Make(const Problem& problem, bool poison);
  ~StandingProblem();
  StandingProblem(const StandingProblem&) = delete;
  StandingProblem& operator=(const StandingProblem&) = delete;

  // Runs once on the compute stream, and returns the outputs' bytes.
  absl::StatusOr<std::vector<std::vector<std::byte>>> Run();

 private:
  struct Buffer {
    std::byte* data = nullptr;
    std::int64_t bytes = 0;
  };

  StandingProblem() = default;
  absl::Status Init(const Problem& problem);
  absl::StatusOr<std::byte*> Allocate(std::int64_t bytes, const std::vector<std::byte>* content);

  bool poison_ = true;
  int runs_ = 0;
  std::vector<std::byte*> all_;
  std::vector<Buffer> outputs_;
  Buffer scratch_;
  const double* control_ = nullptr;
  plan::Instruction instruction_;
  std::unique_ptr<backend::Launch> launch_;
};

}  // namespace engine::gpu_test
