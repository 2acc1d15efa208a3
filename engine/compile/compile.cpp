#include "engine/compile/compile.h"

#include <utility>

#include "engine/base/units.h"
#include "engine/compile/passes.h"

namespace engine::compile {
namespace {

plan::Plan Header(const Policy& policy, const CompileOptions& options,
                  const std::vector<GenerationGraph>& generation) {
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
    const std::int64_t whole = CeilDiv(batch, policy.microbatch_samples * policy.halves) * policy.halves;
    plan.programs.push_back({.form = plan::kTrainForm,
                             .microbatches = batch == policy.global_batch ? policy.microbatches : whole,
                             .global_batch = batch});
  }
  if (options.evaluation) {
    plan.programs.push_back({.form = plan::kEvaluateForm,
                             .microbatches = policy.microbatches,
                             .global_batch = policy.global_batch});
  }
  for (const GenerationGraph& of : generation) {
    plan.programs.push_back({.form = plan.FormsEnd(), .microbatches = 1, .global_batch = of.form.samples});
    plan.forms.push_back(of.form);
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
                                 const CompileOptions& options, std::vector<GenerationGraph> generation) {
  Compilation compilation{.policy = policy,
                          .options = options,
                          .train = {.logical = policy.training ? std::move(train) : graph::Graph()},
                          .evaluate = {.logical = options.evaluation ? std::move(evaluate) : graph::Graph()},
                          .chunks = {},
                          .plan = Header(policy, options, generation),
                          .halves_refused = {}};
  for (GenerationGraph& of : generation)
    compilation.generation.push_back({.logical = std::move(of.graph), .local = {}, .cut = {}});
  RETURN_IF_ERROR(RunPasses(&compilation));
  return Compiled{.plan = std::move(compilation.plan),
                  .halves_refused = std::move(compilation.halves_refused)};
}

}  // namespace engine::compile
