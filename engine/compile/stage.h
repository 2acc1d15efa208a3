// The stage pass: what one pipeline stage stores and runs. Input is the local graph cut into chunks; output a
// StagePlan with every buffer at its place in the arena and the program unrolled over the microbatches.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "engine/compile/buckets.h"
#include "engine/compile/compile.h"
#include "engine/compile/flat_exchange.h"
#include "engine/compile/interleave.h"
#include "engine/compile/placements.h"
#include "engine/plan/plan.h"
#include "engine/plan/schedule.h"

namespace engine::compile {

inline constexpr std::int64_t kStateElements = 8;  // of a quantised tensor (ops/fp8.h)

// A local graph inside the plan: its value i is Plan::values[base + i]; nodes sorted by chunk and pass.
struct CutGraph {
  LocalGraph local;
  std::int32_t base = 0;
  std::vector<std::vector<std::int32_t>> forward;  // node indices, by chunk
  std::vector<std::vector<std::int32_t>> backward;
  std::vector<std::vector<std::int32_t>> weights;  // empty lists where the backward pass makes all gradients
  std::vector<std::vector<std::int32_t>> prepare;  // once an iteration
  std::vector<std::int32_t> producer_chunk;        // by value; −1 for leaves
  std::vector<plan::Pass> producer_pass;           // by value
};

struct StageInputs {
  const CutGraph* train = nullptr;     // null: the plan only evaluates
  const CutGraph* evaluate = nullptr;  // null: it only trains
  BucketStorage storage = {};
  const recipe::Optimizer* optimizer = nullptr;
  FlatExchange exchange = {};  // conversions along its axes are pushed too
  Rates rates = {};
  const CompileOptions* options = nullptr;
};

// Appends the stage's plan to plan->stages; stages must be built in order. plan->chunk_stage, transfers,
// parameters and the chunks' layers (first/end per chunk) are set before.
void BuildStage(const StageInputs& inputs, std::int32_t stage,
                const std::vector<std::pair<std::int64_t, std::int64_t>>& chunk_layers, plan::Plan* plan);

}  // namespace engine::compile
