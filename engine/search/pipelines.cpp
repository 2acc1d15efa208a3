#include "engine/search/pipelines.h"

#include <cstddef>

#include "engine/compile/cut.h"
#include "engine/model/build.h"

namespace engine::search {

std::vector<StageShape> ShapesOf(const recipe::Recipe& recipe, const std::vector<std::int64_t>& blocks) {
  std::vector<StageShape> shapes(static_cast<size_t>(recipe.parallelism.pp));
  for (size_t c = 0; c < blocks.size(); ++c) shapes[c % shapes.size()].blocks += blocks[c];
  shapes.front().embedding = true;
  shapes.back().head = true;
  return shapes;
}

const std::vector<std::int64_t>& Pipelines::BlocksOf(const recipe::Recipe& recipe) {
  const recipe::Parallelism& p = recipe.parallelism;
  const auto [known, fresh] = blocks_.try_emplace(BlocksKey::Of(p));
  if (!fresh) return known->second;
  if (!p.layers_per_stage.empty()) return known->second = p.layers_per_stage;
  const std::pair<std::int64_t, bool> key(p.tp, p.expert_tp == 1);
  auto graph = graphs_.find(key);
  if (graph == graphs_.end()) {
    // Costs of layers relate to each other as they do for any micro-batch.
    const model::BuildOptions build{.batch = 1,
                                    .sequence = recipe.data.sequence_length,
                                    .vocab_multiple = recipe.model.vocab_multiple * p.tp,
                                    .whole_experts = p.expert_tp == 1,
                                    .dtype = DType::kBF16,
                                    .dropout = false};
    graph = graphs_.emplace(key, model::BuildModel(recipe, build)).first;
  }
  known->second = compile::BalancedBlocks(p.pp * p.virtual_stages, graph->second, profile_);
  return known->second;
}

const PassSchedule& Pipelines::ScheduleOf(const recipe::Recipe& recipe) {
  const auto [known, fresh] = schedules_.try_emplace(ScheduleKey::Of(recipe));
  if (fresh) known->second = MakeSchedule(recipe.parallelism, recipe.microbatches());
  return known->second;
}

}  // namespace engine::search
