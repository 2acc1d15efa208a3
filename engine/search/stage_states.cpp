#include "engine/search/stage_states.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "engine/compile/buckets.h"
#include "engine/compile/compile.h"
#include "engine/compile/update.h"
#include "engine/plan/arena.h"
#include "engine/plan/control.h"

namespace engine::search {
namespace {

using plan::Aligned;
using plan::Instruction;
using plan::Plan;
using plan::Segment;
using plan::StagePlan;

double InstructionSeconds(const predict::CostModel& costs, const Instruction& instruction) {
  return costs.Seconds(instruction) + costs.FinishSeconds(instruction);
}

ExchangeCost CostOf(const predict::CostModel& costs, const Instruction& instruction) {
  return {costs.Seconds(instruction), costs.FinishSeconds(instruction),
          predict::CostModel::BesideShare(instruction)};
}

// A pass that reads the parameters and makes the gradients of one block, and of the head: the exchange
// that the compiler puts into it.
void ExchangeInPasses(const compile::FlatExchange& exchange, const StageShape& shape,
                      const ModelParameters& parameters, const plan::DeviceProfile& profile,
                      const predict::CostModel& costs, const StagePlan& stage, StageStates* states) {
  const Plan& plan = parameters.plan;
  constexpr std::int32_t kBlock = 1;  // the first
  std::vector<std::int32_t> units = {kBlock};
  if (shape.head) units.insert(units.begin(), static_cast<std::int32_t>(plan.units.size()) - 1);
  compile::DraftSegment forward;
  compile::DraftSegment backward;
  // One draft for each parameter, since a block's buckets are gathered one after another.
  for (std::int32_t unit : units) {
    for (size_t i = 0; i < plan.parameters.size(); ++i) {
      if (parameters.units[i] != unit) continue;
      Instruction reads;
      reads.inputs.push_back({.value = plan.parameters[i].value});
      if (unit == kBlock) forward.drafts.push_back({.instruction = std::move(reads)});
      if (plan.parameters[i].gradient < 0) continue;
      Instruction makes;
      makes.outputs.push_back({.value = plan.parameters[i].gradient});
      backward.drafts.push_back({.instruction = std::move(makes)});
    }
  }
  compile::GatherParameters(plan, stage, exchange, &forward);
  compile::ReduceEarly(plan, stage, profile, exchange, {&backward});
  const auto add = [&](const Instruction& i, ExchangeCost* sum) {
    const ExchangeCost cost = CostOf(costs, i);
    sum->seconds += cost.seconds;
    sum->finish += cost.finish;
    sum->beside = std::max(sum->beside, cost.beside);
  };
  for (const auto& [i, scratch_bytes] : forward.drafts) {
    if (i.IsBucketExchange()) add(i, &states->gather);
    if (i.kernel() == "copy") states->before_gather_s += costs.Seconds(i);
  }
  for (const auto& [i, scratch_bytes] : backward.drafts) {
    if (i.IsBucketExchange()) {
      const plan::Bucket& bucket = stage.buckets[static_cast<size_t>(i.AsBucketExchange()->bucket)];
      add(i, bucket.block < 0 ? &states->reduce_head : &states->reduce);
      states->sum_bytes = std::max(states->sum_bytes, Aligned(i.scratch.bytes()));
    }
    if (i.kernel() == "add_shard") states->after_reduce_s += costs.Seconds(i);
  }
}

void TimeUpdate(const Segment& update, const predict::CostModel& costs, StageStates* states) {
  TwoStreams play;
  for (const Instruction& instruction : update.instructions) {
    if (instruction.group().axes.HasPp()) {
      states->before_meeting_s = play.now;
      play = {};
    }
    if (instruction.waits_for_bucket >= 0) play.Join();
    if (instruction.stream == plan::kComputeStream) {
      play.Compute(InstructionSeconds(costs, instruction));
    } else {
      play.Start(CostOf(costs, instruction));
    }
  }
  play.Join();
  states->after_meeting_s = play.now;
}

}  // namespace

ModelParameters ParametersOfProbe(const recipe::Recipe& recipe, const Plan& probe) {
  ModelParameters all;
  constexpr std::int32_t kBlock = 1;  // the first
  std::int64_t of_block = 0;          // numbers of its metrics
  for (const plan::PlanMetric& metric : probe.metrics)
    of_block += metric.unit == kBlock ? metric.numbers() : 0;
  const std::int64_t more = recipe.model.layers - static_cast<std::int64_t>(probe.units.size() - 2);
  all.plan.metrics = {{.name = "all of them", .classes = probe.numbers() + more * of_block}};
  const std::int32_t layers = static_cast<std::int32_t>(recipe.model.layers);
  const std::vector<graph::Unit>& units = probe.units;
  all.plan.units = {units.front()};
  all.plan.units.insert(all.plan.units.end(), recipe.model.layers, {"", graph::Unit::Kind::kBlock});
  all.plan.units.push_back(units.back());
  const auto value = [&](std::int32_t id) {
    plan::LocalValue copy = probe.values[static_cast<size_t>(id)];
    copy.parameter = static_cast<std::int32_t>(all.plan.parameters.size());
    all.plan.values.push_back(std::move(copy));
    return static_cast<std::int32_t>(all.plan.values.size() - 1);
  };
  const auto add = [&](const plan::PlanParameter& parameter, std::int32_t unit) {
    plan::PlanParameter copy = parameter;
    copy.value = value(parameter.value);
    copy.gradient = parameter.gradient < 0 ? -1 : value(parameter.gradient);
    all.plan.parameters.push_back(std::move(copy));
    all.units.push_back(unit);
  };
  for (const plan::PlanParameter& parameter : probe.parameters) {
    const graph::Unit::Kind kind = units[static_cast<size_t>(parameter.unit)].kind;
    if (kind == graph::Unit::Kind::kEntry) add(parameter, 0);
    if (kind == graph::Unit::Kind::kExit) add(parameter, layers + 1);
    // A probe may have more blocks than the model: all but its first are passed over.
    const bool first = kind == graph::Unit::Kind::kBlock && parameter.unit == 1;
    for (std::int32_t block = 0; first && block < layers; ++block) add(parameter, 1 + block);
  }
  return all;
}

StageStates StatesOfStage(const recipe::Recipe& recipe, const compile::FlatExchange& exchange,
                          const StageShape& shape, const plan::DeviceProfile& profile,
                          ModelParameters* parameters) {
  Plan& plan = parameters->plan;
  plan.mesh = plan::Mesh::Of(recipe.parallelism);
  const std::int64_t zero_stage = compile::ZeroStageOf(recipe.parallelism);
  const std::int32_t last = static_cast<std::int32_t>(plan.mesh.pp) - 1;
  for (plan::PlanParameter& parameter : plan.parameters) {
    if (parameter.tied()) parameter.holders = {0, last};
  }
  std::vector<bool> used;
  std::vector<std::int32_t> early;
  for (size_t i = 0; i < plan.parameters.size(); ++i) {
    const std::int32_t unit = parameters->units[i];
    const graph::Unit::Kind kind = plan.units[static_cast<size_t>(unit)].kind;
    const bool is_block = kind == graph::Unit::Kind::kBlock;
    const bool entry = kind == graph::Unit::Kind::kEntry;
    const bool stored = entry      ? shape.embedding || (shape.head && plan.parameters[i].tied())
                        : is_block ? unit <= shape.blocks
                                   : shape.head;
    used.push_back(stored);
    const bool in_passes = !entry && (exchange.behind || (zero_stage > 1 && is_block));
    early.push_back(in_passes ? unit : compile::kNoUnit);
  }
  StageStates states;
  StagePlan stage;
  std::int64_t cursor = 0;
  stage.buckets = compile::MakeBuckets(plan, used, early, zero_stage, shape.embedding ? 0 : last);
  compile::PlaceBuckets(compile::StorageOf(recipe, exchange, /*training=*/true), &cursor, &states.memory,
                        &stage.buckets);
  stage.scalars = {.elements = plan::ScalarsFor(plan.numbers()), .dtype = DType::kF64};
  states.numbers = plan.numbers();
  stage.control = {.elements = plan::kControlNumbers, .dtype = DType::kF64};
  const predict::CostModel costs(plan, recipe.cluster);
  ExchangeInPasses(exchange, shape, *parameters, profile, costs, stage, &states);
  const Segment update = compile::UpdateSegment(plan, stage, compile::OptimizerOf(recipe.optimizer), exchange,
                                                profile, 0, &states.update_bytes);
  TimeUpdate(update, costs, &states);
  return states;
}

}  // namespace engine::search
