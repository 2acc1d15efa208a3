#include "engine/compile/compile.h"

#include <utility>

#include "engine/compile/passes.h"

namespace engine::compile {
namespace {

plan::Plan Header(const Policy& policy, const CompileOptions& options) {
  plan::Plan plan;
  plan.mesh = policy.mesh;
  plan.halves = policy.halves;
  plan.microbatches = policy.microbatches;
  plan.microbatch_samples = policy.microbatch_samples;
  plan.global_batch = policy.global_batch;
  plan.sequence = policy.sequence;
  plan.vocab = policy.vocab;
  plan.vocab_rows = policy.vocab_rows;
  for (const std::int64_t batch : policy.batch_sizes) {
    if (!policy.training) break;
    plan.programs.push_back({.kind = plan::ProgramKind::kTrain,
                             .microbatches = batch / policy.microbatch_samples,
                             .global_batch = batch});
  }
  if (options.evaluation) {
    plan.programs.push_back({.kind = plan::ProgramKind::kEvaluate,
                             .microbatches = policy.microbatches,
                             .global_batch = policy.global_batch});
  }
  plan.schedule = policy.schedule;
  plan.compute = policy.compute;
  plan.loss_scaler = policy.loss_scaler;
  plan.optimizer = policy.optimizer.def;
  plan.notes = policy.notes;
  return plan;
}

}  // namespace

absl::StatusOr<Compiled> Compile(const Policy& policy, graph::Graph train, graph::Graph evaluate,
                                 const CompileOptions& options) {
  Compilation compilation{.policy = policy,
                          .options = options,
                          .train = {.logical = policy.training ? std::move(train) : graph::Graph()},
                          .evaluate = {.logical = options.evaluation ? std::move(evaluate) : graph::Graph()},
                          .chunks = {},
                          .plan = Header(policy, options),
                          .halves_refused = {}};
  RETURN_IF_ERROR(RunPasses(&compilation));
  return Compiled{.plan = std::move(compilation.plan),
                  .halves_refused = std::move(compilation.halves_refused)};
}

}  // namespace engine::compile
