// What `engine doctor --attention` prints: how long each kind of kernels takes for an attention.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/cli/attention_shape.h"

namespace engine::cli {

struct ContestedKernels {
  std::string name;                // "cuDNN, bits repeat"
  bool repeats = true;             // its bits
  std::string why_not;             // in words; empty: it was timed
  double milliseconds = 0;         // of one execution
  std::int64_t scratch_bytes = 0;  // that a plan reserves for it
  bool chosen = false;             // by a run whose bits repeat
  bool chosen_else = false;        // by one with precision.deterministic = false
};

struct AttentionContest {
  AskedAttention shape;
  bool backward = false;
  std::vector<ContestedKernels> kernels;
};

// Marks what a run chooses: `rule`, or another of `rows` that needs no more scratch and is faster by enough
// (backend/cuda/profile: FastestWay).
void MarkChosen(AttentionContest* contest, std::size_t rule, const std::vector<std::size_t>& rows,
                bool ContestedKernels::*mark);

// A table; TFLOP/s count the pairs that are not masked (AttentionFlops).
std::string ToText(const AttentionContest& contest);

// {"shape", "pass", "flops", "kernels": [{"name", "repeats", "why_not"} or {"name", "repeats", "ms", "tflops", "ratio",
// "scratch_bytes", "chosen", "chosen_else"}]}, ratio to the fastest.
nlohmann::ordered_json ToJson(const AttentionContest& contest);

}  // namespace engine::cli
