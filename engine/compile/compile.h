// The compiler: forward graphs → plan. The pass list is in compile.cpp.
#pragma once

#include <utility>
#include <vector>

#include "engine/compile/buckets.h"
#include "engine/compile/flat_exchange.h"
#include "engine/graph/graph.h"
#include "engine/plan/plan.h"
#include "engine/recipe/recipe.h"

namespace engine::compile {

struct CompileOptions {
  plan::DeviceProfile profile;
  // False: the plan only evaluates (no backward pass, no gradients, no optimizer), as for generation.
  bool training = true;
  // The logits stay readable after each run of the last chunk's evaluate segment (Plan::logits_buffer).
  bool keep_logits = false;
  // False: Plan::hash stays empty; to write the canonical text takes a fourth of the time.
  bool hash = true;
  // False: microbatches are not cut into halves, whatever the recipe says.
  bool halves = true;
  // False: no program that evaluates, and the plan cannot be verified or run; for estimates.
  bool evaluation = true;
};

// Parts that a microbatch of the recipe is cut into, so that one's exchange over tp or cp runs behind the
// other's computation (parallelism.overlap): 1 or 2.
std::int64_t Lanes(const recipe::Recipe& recipe, const CompileOptions& options);

// Whether what dp exchanges between hosts stands before the halves' own exchange (if they run in turns), on
// the same stream, as NCCL does both.
bool HoldsUpHalves(const recipe::Recipe& recipe, const CompileOptions& options);

// The layers of each chunk, first and end, of a forward graph: as the recipe says, or balanced by cost.
using ChunkLayers = std::vector<std::pair<std::int64_t, std::int64_t>>;
ChunkLayers CutLayers(const recipe::Recipe& recipe, const graph::Graph& graph,
                      const plan::DeviceProfile& device);

// What the plan keeps in shards: the recipe's zero_stage, but under a zero bubble at most 1. Recipes ask for
// more there only where dp, cp and ep are 1, so that there are no shards of gradients or parameters.
std::int64_t ZeroStageOf(const recipe::Parallelism& parallelism);

// How the plan of a recipe exchanges gradients and parameters, and along which axes conversions are pushed.
absl::StatusOr<FlatExchange> ExchangeOf(const recipe::Recipe& recipe, const CompileOptions& options);
BucketStorage StorageOf(const recipe::Recipe& recipe, const FlatExchange& exchange, bool training);

// `train` and `evaluate` are the model's forward graphs of one microbatch of micro_batch / Lanes samples,
// with and without dropout (the plan knows no model). The recipe must have passed validation. Errors are the
// recipe's: a layout that this model does not allow. FailedPrecondition: not with CompileOptions::halves.
absl::StatusOr<plan::Plan> Compile(const recipe::Recipe& recipe, graph::Graph train,
                                   const graph::Graph& evaluate, const CompileOptions& options);

}  // namespace engine::compile
