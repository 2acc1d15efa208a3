#include "engine/search/probes.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <numeric>
#include <utility>

#include "engine/driver/compile_recipe.h"
#include "engine/model/layers.h"
#include "engine/plan/plan.h"
#include "engine/search/pass_schedule.h"

namespace engine::search {
namespace {

// Blocks of the chunks that are tried as ones from which on chunks grow evenly; where none does, chunks of
// the length itself are compiled.
constexpr std::int64_t kLengths[] = {1, 2, 3, 5, 8};

ChunkKind KindOf(size_t chunk, size_t chunks) {
  if (chunks == 1) return ChunkKind::kWhole;
  if (chunk == 0) return ChunkKind::kFirst;
  return chunk + 1 == chunks ? ChunkKind::kLast : ChunkKind::kMiddle;
}

ChunkFacts& FactsOfKind(ChunkKind kind, Probe* probe) { return probe->facts[static_cast<size_t>(kind)]; }

// The recipe with chunks of so few blocks, one a stage.
recipe::Recipe Reduced(const recipe::Recipe& recipe, std::int64_t halves,
                       const std::vector<std::int64_t>& blocks) {
  recipe::Recipe reduced = recipe;
  recipe::Parallelism& p = reduced.parallelism;
  p.pp = static_cast<std::int64_t>(blocks.size());
  p.dp = 2;  // gradients are partial over dp, whether there is one or not
  p.virtual_stages = 1;
  p.layers_per_stage = blocks;
  p.zero_stage = 0;
  if (!DefersWeights(p)) p.schedule = "auto";
  if (halves == 1) p.overlap = "off";  // no reduction within the passes
  model::SetLayers(std::accumulate(blocks.begin(), blocks.end(), std::int64_t{0}), &reduced);
  reduced.training.global_batch = reduced.training.micro_batch * p.dp * p.ep * 2;
  reduced.training.rampup = {};
  return reduced;
}

// What a middle stage sends of a microbatch.
void ReadTransfers(const plan::Plan& plan, Probe* probe) {
  for (const plan::Step& step : plan.stages[1].programs[0]) {
    if (step.kind != plan::StepKind::kSend || step.microbatch >= plan.halves) continue;
    const std::int64_t bytes = plan.transfers[static_cast<size_t>(step.transfer)].bytes;
    (step.stream == plan::kSendNext ? probe->send_bytes : probe->send_back_bytes) += bytes;
  }
}

}  // namespace

struct Probes::Compiled {
  plan::Plan plan;
  bool refused = false;
  std::vector<ChunkFacts> facts;  // by stage
};

// Of the first plan of such chunks it is known what evaluation takes, for the others.
absl::StatusOr<Probes::Compiled> Probes::Compile(const recipe::Recipe& recipe, std::int64_t halves,
                                                 const std::vector<std::int64_t>& blocks) {
  ++compiled_;
  std::vector<ChunkFacts::Evaluation>& known = evaluations_[EvaluationKey::Of(recipe, halves, blocks)];
  compile::CompileOptions options = options_;
  options.evaluation = known.empty();
  ASSIGN_OR_RETURN(compile::Compiled as_said,
                   driver::CompileAsSaid(Reduced(recipe, halves, blocks), options));
  const auto [parameters, fresh] = parameters_.try_emplace(ParameterKey::Of(recipe));
  if (fresh) parameters->second = std::make_unique<ModelParameters>(ParametersOfProbe(recipe, as_said.plan));
  Compiled compiled{.plan = std::move(as_said.plan), .refused = !as_said.halves_refused.empty(), .facts = {}};
  compiled.facts.resize(compiled.plan.stages.size());
  if (compiled.refused) return compiled;
  compiled.facts = FactsOf(compiled.plan, recipe.cluster);
  for (size_t s = 0; s < compiled.facts.size(); ++s) {
    if (options.evaluation) known.push_back(compiled.facts[s].evaluation);
    compiled.facts[s].evaluation = known[s];
  }
  return compiled;
}

absl::StatusOr<Probe> Probes::MakeOfOneStage(const recipe::Recipe& recipe, std::int64_t halves,
                                             std::int64_t blocks, const Probe* even) {
  Probe probe;
  probe.blocks = blocks;
  if (even != nullptr) probe.longer = even->longer;
  for (size_t more = 0; more < (even != nullptr ? 1 : std::size(kMore)); ++more) {
    ASSIGN_OR_RETURN(const Compiled compiled, Compile(recipe, halves, {blocks + kMore[more]}));
    probe.refused = probe.refused || compiled.refused;
    if (more == 0) FactsOfKind(ChunkKind::kWhole, &probe) = compiled.facts[0];
    if (even == nullptr) probe.longer[more] = compiled.facts[0];
  }
  return probe;
}

// Chunks of so many blocks of each kind, and as long, and of kMore blocks longer; `even`: of another length.
absl::StatusOr<Probe> Probes::Make(const recipe::Recipe& recipe, std::int64_t halves, std::int64_t blocks,
                                   const Probe* even) {
  if (recipe.parallelism.pp == 1) return MakeOfOneStage(recipe, halves, blocks, even);
  const std::int64_t n = blocks;
  const std::vector<std::int64_t> cut = even != nullptr
                                            ? std::vector<std::int64_t>{n, n, n}
                                            : std::vector<std::int64_t>{n, n, n + kMore[1], n + kMore[2], n};
  ASSIGN_OR_RETURN(const Compiled compiled, Compile(recipe, halves, cut));
  Probe probe;
  probe.blocks = blocks;
  probe.refused = compiled.refused;
  if (even != nullptr) probe.longer = even->longer;
  for (size_t more = 0; more < std::size(kMore) && even == nullptr; ++more)
    probe.longer[more] = compiled.facts[1 + more];
  FactsOfKind(ChunkKind::kFirst, &probe) = compiled.facts.front();
  FactsOfKind(ChunkKind::kMiddle, &probe) = compiled.facts[1];
  FactsOfKind(ChunkKind::kLast, &probe) = compiled.facts.back();
  ReadTransfers(compiled.plan, &probe);
  return probe;
}

// The probe of that length itself, and its block's times the first time.
absl::StatusOr<const Probe*> Probes::Known(const recipe::Recipe& recipe, std::int64_t halves,
                                           std::int64_t blocks, const Probe* even) {
  const auto [known, fresh] = known_.try_emplace(ProbeKey::Of(recipe, halves, blocks));
  if (fresh) known->second = std::make_unique<absl::StatusOr<Probe>>(Make(recipe, halves, blocks, even));
  const absl::StatusOr<Probe>& probe = *known->second;
  if (!probe.ok()) return probe.status();
  if (fresh && !probe->refused)
    block_times_.Remember(recipe, halves, probe->EachForward(), probe->EachBackward());
  return &*probe;
}

absl::StatusOr<const Probe*> Probes::Of(const recipe::Recipe& recipe, std::int64_t halves,
                                        std::int64_t blocks) {
  const Probe* probe = nullptr;
  for (const std::int64_t length : kLengths) {
    if (halves > 1 && length == 1 && blocks > 1) continue;  // halves of one block alone take other turns
    const std::int64_t n = std::min(blocks, length);
    ASSIGN_OR_RETURN(probe, Known(recipe, halves, n, nullptr));
    const auto& [a, b, c] = probe->longer;
    if (n == blocks || GrowsEvenly(a, b, c)) return probe;
  }
  return Known(recipe, halves, blocks, probe);
}

absl::StatusOr<Chunks> Probes::ChunksOf(const recipe::Recipe& recipe, std::int64_t halves,
                                        const std::vector<std::int64_t>& blocks) {
  using Alike = std::pair<ChunkKind, std::int64_t>;
  std::vector<Alike> alike;  // by Chunks::distinct
  Chunks chunks;
  for (size_t c = 0; c < blocks.size(); ++c) {
    const Alike kind(KindOf(c, blocks.size()), blocks[c]);
    const size_t at = static_cast<size_t>(std::find(alike.begin(), alike.end(), kind) - alike.begin());
    if (at == alike.size()) {
      ASSIGN_OR_RETURN(const Probe* probe, Of(recipe, halves, blocks[c]));
      chunks.refused = chunks.refused || probe->refused;
      alike.push_back(kind);
      chunks.distinct.push_back(std::make_unique<ChunkFacts>(
          Longer(probe->facts[static_cast<size_t>(kind.first)], blocks[c] - probe->blocks, probe->longer[0],
                 probe->longer[1])));
    }
    chunks.facts.push_back(chunks.distinct[at].get());
  }
  return chunks;
}

absl::StatusOr<ModelParameters*> Probes::ParametersOf(const recipe::Recipe& recipe, std::int64_t halves,
                                                      std::int64_t blocks) {
  const ParameterKey key = ParameterKey::Of(recipe);
  if (!parameters_.contains(key)) {
    RETURN_IF_ERROR(Of(recipe, halves, blocks).status());
  }
  return parameters_.at(key).get();
}

}  // namespace engine::search
