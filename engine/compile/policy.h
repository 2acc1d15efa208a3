// What the passes are told: resolved once from a recipe and a device, as plain data. Below it nobody reads the
// recipe, so what a plan depends on is what stands here, in the graphs and in the device's profile.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/dtype.h"
#include "engine/base/status.h"
#include "engine/compile/buckets.h"
#include "engine/compile/estimates.h"
#include "engine/compile/flat_exchange.h"
#include "engine/compile/quantize.h"
#include "engine/compile/update.h"
#include "engine/plan/device_profile.h"
#include "engine/plan/loss_scaler.h"
#include "engine/plan/mesh.h"
#include "engine/recipe/recipe.h"

namespace engine::compile {

struct Compilation;

// What is asked for beside the recipe.
struct CompileOptions {
  plan::DeviceProfile profile;
  // False: the plan only evaluates (no backward pass, no gradients, no optimizer), as for generation.
  bool training = true;
  // The logits stay readable after each run of the last chunk's evaluate segment (Plan::logits).
  bool keep_logits = false;
  // What the evaluating program tells of each token is kept of all its microbatches (Plan::scores). The driver asks for it where
  // the recipe has tasks.
  bool keep_scores = false;
  // False: Plan::hash stays empty; to write the canonical text takes a fourth of the time.
  bool hash = true;
  // False: microbatches are not cut into halves, whatever the recipe says.
  bool halves = true;
  // False: no program that evaluates, and the plan cannot be verified or run; for estimates.
  bool evaluation = true;
  // Called after each pass (compile/passes.h) with the seconds that it took; an error ends the compilation. Null: nobody.
  std::function<absl::Status(std::string_view pass, double seconds, const Compilation&)> after = {};
};

// Which forward nodes of blocks run again in the backward pass instead of being saved.
struct RecomputePolicy {
  bool all = false;
  std::vector<std::string> modules;  // else those of these: "attention", "norm", "activation"
};

struct Policy {
  plan::Mesh mesh;
  bool training = true;

  // The batch. Where a microbatch of the recipe is cut into halves, `halves` is 2 and a microbatch here is one half.
  std::int64_t halves = 1;
  std::int64_t microbatches = 1;
  std::int64_t microbatch_samples = 1;  // over all data-parallel ranks
  std::int64_t global_batch = 1;
  // Sizes of the global batch that iterations have, growing; the last is global_batch. Each gets its own program.
  std::vector<std::int64_t> batch_sizes = {1};
  std::int64_t sequence = 1;
  std::int64_t vocab = 0, vocab_rows = 0;  // rows: padding included
  // Whether the halves' exchange could be held up by other exchange on their stream, in a pipeline, by so much that a
  // plan without halves is faster: predicted times of both decide.
  bool halves_may_be_held_up = false;

  // The pipeline.
  std::string schedule;                    // "1f1b", "interleaved" or plan::kZeroBubble
  std::int64_t chunks = 1;                 // stages × virtual stages
  std::vector<std::int64_t> chunk_blocks;  // blocks of each chunk; empty: balanced by cost
  bool push_transfers = false;             // between stages, by copy engines

  // Graphs and kernels.
  std::string compute;                 // precision.compute
  DType bulk_gradients = DType::kF32;  // sums of gradients of bulk parameters (graph/role.h)
  RecomputePolicy recompute;
  std::int64_t hosted_layers = 0;  // of each chunk, whose saved activations wait in the host's memory
  bool sequence_parallel = false;
  Fp8Options fp8;                 // of training
  std::int64_t logits_bytes = 0;  // budget of one chunk's logits in linear_cross_entropy

  // Parameters, and their exchange.
  FlatExchange exchange;  // conversions along its axes are pushed too
  BucketStorage storage;
  OptimizerSettings optimizer;
  plan::LossScaler loss_scaler;

  Rates rates;                     // for estimates within passes
  std::vector<std::string> notes;  // choices that the user should know of
};

// The recipe must have passed validation. InvalidArgument: the recipe asks for pushes between ranks that cannot.
absl::StatusOr<Policy> ResolvePolicy(const recipe::Recipe& recipe, const CompileOptions& options);

// Parts of it, for the search, which asks for many layouts.

// Parts that a microbatch of the recipe is cut into, so that one's exchange over tp or cp runs behind the other's
// computation (parallelism.overlap): 1 or 2.
std::int64_t Halves(const recipe::Recipe& recipe, const CompileOptions& options);

// Policy::halves_may_be_held_up, of a recipe that is cut into halves.
bool MayHoldUpHalves(const recipe::Recipe& recipe, const CompileOptions& options);

// What the plan keeps in shards: the recipe's zero_stage, but under a zero bubble at most 1. Recipes ask for more there
// only where dp, cp and ep are 1, so that there are no shards of gradients or parameters.
std::int64_t ZeroStageOf(const recipe::Parallelism& parallelism);

// How the plan of a recipe exchanges gradients and parameters, and along which axes conversions are pushed.
absl::StatusOr<FlatExchange> ExchangeOf(const recipe::Recipe& recipe, const CompileOptions& options);
BucketStorage StorageOf(const recipe::Recipe& recipe, const FlatExchange& exchange, bool training);
OptimizerSettings OptimizerOf(const recipe::Optimizer& optimizer);

}  // namespace engine::compile
