#include "engine/search/fold_keys.h"

#include <utility>
#include <vector>

#include "engine/compile/policy.h"
#include "engine/search/pass_schedule.h"

namespace engine::search {

ParameterKey ParameterKey::Of(const recipe::Recipe& recipe) {
  const recipe::Parallelism& p = recipe.parallelism;
  return {.tp = p.tp,
          .cp = p.cp,
          .ep = p.ep,
          .whole_experts = p.expert_tp == 1,
          .sequence_parallel = p.sequence_parallel,
          .pipeline = p.pp > 1};
}

RecomputeKey RecomputeKey::Of(const recipe::Recompute& recompute) {
  RecomputeKey key{.granularity = recompute.granularity, .modules = {}};
  if (recompute.granularity == "selective") key.modules = recompute.modules;
  return key;
}

ProbeKey ProbeKey::Of(const recipe::Recipe& recipe, std::int64_t halves, std::int64_t blocks) {
  return {.parameters = ParameterKey::Of(recipe),
          .recompute = RecomputeKey::Of(recipe.recompute),
          .micro_batch = recipe.training.micro_batch,
          .halves = halves,
          .deferred = DefersWeights(recipe.parallelism),
          .world = recipe.world_size(),
          .blocks = blocks};
}

EvaluationKey EvaluationKey::Of(const recipe::Recipe& recipe, std::int64_t halves,
                                std::vector<std::int64_t> blocks) {
  return {.parameters = ParameterKey::Of(recipe),
          .samples = recipe.training.micro_batch / halves,
          .world = recipe.world_size(),
          .blocks = std::move(blocks)};
}

BlockKey BlockKey::Of(const recipe::Recipe& recipe) {
  return {.parameters = ParameterKey::Of(recipe),
          .recompute = RecomputeKey::Of(recipe.recompute),
          .world = recipe.world_size()};
}

StatesKey StatesKey::Of(const recipe::Recipe& recipe, const compile::FlatExchange& exchange,
                        const StageShape& shape) {
  const recipe::Parallelism& p = recipe.parallelism;
  return {.parameters = ParameterKey::Of(recipe),
          .dp = p.dp,
          .pp = p.pp,
          .zero_stage = compile::ZeroStageOf(p),
          .behind = exchange.behind,
          .at_begin = exchange.at_begin,
          .stream = exchange.stream,
          .pushed = exchange.pushed.bits(),
          .shape = shape};
}

BlocksKey BlocksKey::Of(const recipe::Parallelism& parallelism) {
  return {.tp = parallelism.tp,
          .whole_experts = parallelism.expert_tp == 1,
          .chunks = parallelism.pp * parallelism.virtual_stages,
          .said = parallelism.layers_per_stage};
}

ScheduleKey ScheduleKey::Of(const recipe::Recipe& recipe) {
  const recipe::Parallelism& p = recipe.parallelism;
  return {.pp = p.pp,
          .virtual_stages = p.virtual_stages,
          .deferred = DefersWeights(p),
          .microbatches = recipe.microbatches()};
}

}  // namespace engine::search
