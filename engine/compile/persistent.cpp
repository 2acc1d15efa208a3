#include "engine/compile/persistent.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "engine/compile/buckets.h"
#include "engine/compile/slots.h"
#include "engine/compile/states.h"
#include "engine/plan/arena.h"
#include "engine/plan/control.h"

namespace engine::compile {
namespace {

using graph::ValueKind;

std::vector<bool> UsedParameters(const StageInputs& inputs, const plan::Plan& plan,
                                 const UnfinishedStage& stage) {
  const CutGraph& graph = *inputs.Graphs().front();
  std::vector<bool> used(plan.parameters.size(), false);
  stage.ForEachNode(graph, [&](const LocalNode& node) {
    for (std::int32_t input : node.inputs) {
      const std::int32_t id = graph.base + input;
      const plan::LocalValue& value = plan.values[static_cast<size_t>(id)];
      if (value.kind == ValueKind::kParameter) used[static_cast<size_t>(value.parameter)] = true;
    }
  });
  return used;
}

// By parameter: the unit whose nodes alone add to its gradient; kNoUnit where there are none or several.
std::vector<std::int32_t> UnitsOfGradients(const CutGraph& graph, const plan::Plan& plan) {
  std::vector<std::int32_t> units(plan.parameters.size(), kNoUnit);
  std::vector<bool> several(plan.parameters.size(), false);
  for (const LocalNode& node : graph.local.nodes) {
    for (std::int32_t output : node.outputs) {
      const std::int32_t id = graph.base + output;
      const plan::LocalValue& value = plan.values[static_cast<size_t>(id)];
      if (value.kind != ValueKind::kAccumulator || value.parameter < 0) continue;
      const size_t p = static_cast<size_t>(value.parameter);
      several[p] = several[p] || (units[p] != kNoUnit && units[p] != node.unit);
      units[p] = node.unit;
    }
  }
  for (size_t p = 0; p < units.size(); ++p) {
    if (several[p]) units[p] = kNoUnit;
  }
  return units;
}

// By parameter: the unit whose backward pass alone adds to its gradient, where gradients are reduced as
// soon as their unit has made them; else kNoUnit.
std::vector<std::int32_t> EarlyUnits(const StageInputs& inputs, const plan::Plan& plan) {
  const bool behind = inputs.policy->exchange.behind;
  if (inputs.train == nullptr || (!behind && inputs.policy->storage.zero_stage < 2))
    return std::vector<std::int32_t>(plan.parameters.size(), kNoUnit);
  std::vector<std::int32_t> units = UnitsOfGradients(*inputs.train, plan);
  for (std::int32_t& unit : units) {
    if (unit == kNoUnit) continue;
    const graph::Unit::Kind kind = plan.units[static_cast<size_t>(unit)].kind;
    const bool entry = kind == graph::Unit::Kind::kEntry;  // its gradient is the last to be made
    // Or kept in shards.
    const bool early = behind || kind == graph::Unit::Kind::kBlock;
    if (entry || !early) unit = kNoUnit;
  }
  return units;
}

// Parameters, their gradients and metrics have one place for all graphs.
Persistent MapBuckets(const plan::Plan& plan, const plan::StagePlan& stage) {
  std::vector<std::pair<const plan::Bucket*, const plan::Bucket::Item*>> item_of(plan.parameters.size(),
                                                                                 {nullptr, nullptr});
  for (const plan::Bucket& bucket : stage.buckets) {
    for (const plan::Bucket::Item& item : bucket.items)
      item_of[static_cast<size_t>(item.parameter)] = {&bucket, &item};
  }
  Persistent persistent;
  for (size_t v = 0; v < plan.values.size(); ++v) {
    const plan::LocalValue& value = plan.values[v];
    const std::int32_t id = static_cast<std::int32_t>(v);
    if (value.metric >= 0) {
      plan::BufferRef sum = stage.scalars;
      sum.value = id;
      const plan::PlanMetric& metric = plan.metrics[static_cast<size_t>(value.metric)];
      sum.offset += plan::ScalarOf(metric.first) * SizeOf(sum.dtype);
      sum.elements = metric.numbers();
      persistent.values[id] = sum;
    }
    if (value.parameter < 0) continue;
    const auto [bucket, item] = item_of[static_cast<size_t>(value.parameter)];
    if (bucket == nullptr) continue;
    const bool gradient = value.kind == ValueKind::kAccumulator;
    if (gradient && bucket->gradient_shard.elements > 0) persistent.in_turns.insert(id);
    persistent.values[id] = ItemRef(gradient ? bucket->gradient : bucket->parameter, *item, id);
  }
  return persistent;
}

// Quantised weights.
void PlaceDerived(const CutGraph& graph, const plan::Plan& plan, UnfinishedStage* stage, Storage* values) {
  stage->ForEachNode(graph, [&](const LocalNode& node) {
    for (std::int32_t output : node.outputs) {
      const std::int32_t id = graph.base + output;
      const bool derived = plan.values[static_cast<size_t>(id)].kind == ValueKind::kDerived;
      if (!derived || values->contains(id)) continue;
      const plan::BufferRef ref = stage->ReserveValue(Unplaced(plan, id), &stage->plan.memory.parameters);
      (*values)[id] = ref;
      stage->plan.derived.push_back(ref);
    }
  });
}

std::int64_t FedWords(const CutGraph& graph, const plan::Chunk& chunk) {
  std::int64_t words = 0;
  for (std::int32_t v : SavedValues(graph, chunk.index)) {
    const plan::LocalValue& value = graph.local.values[static_cast<size_t>(v)];
    if (value.kind == ValueKind::kInput) words += plan::StagedWords(value.local_bytes());
  }
  return words;
}

void PlaceStaging(const StageInputs& inputs, const plan::Plan& plan, UnfinishedStage* stage) {
  for (plan::Chunk& chunk : stage->plan.chunks) {
    std::int64_t elements = 0;
    for (plan::FormId form = 0; form < plan.FormsEnd(); ++form) {
      const CutGraph* graph = inputs.GraphOf(form);
      const std::int64_t microbatches = plan.FactsAt(form).generates ? 1 : plan.microbatches;
      if (graph != nullptr) elements = std::max(elements, microbatches * FedWords(*graph, chunk));
    }
    if (elements == 0) continue;
    chunk.incoming = stage->ReserveFlat(elements, DType::kI32, &stage->plan.memory.control);
    chunk.staged = stage->ReserveFlat(elements, DType::kI32, &stage->plan.memory.control);
  }
}

}  // namespace

Persistent PlacePersistent(const StageInputs& inputs, const plan::Plan& plan, UnfinishedStage* stage) {
  plan::StagePlan& of = stage->plan;
  const BucketStorage& storage = inputs.policy->storage;
  const std::int64_t zero_stage = inputs.train != nullptr ? storage.zero_stage : 0;
  of.buckets = MakeBuckets(plan, UsedParameters(inputs, plan, *stage), EarlyUnits(inputs, plan), zero_stage,
                           stage->index);
  for (const plan::Bucket& bucket : of.buckets) of.parameter_count += bucket.elements;
  PlaceBuckets(storage, &stage->cursor, &of.memory, &of.buckets);
  of.scalars = stage->ReserveFlat(plan::ScalarsFor(plan.numbers()), DType::kF64, &of.memory.control);
  of.control = stage->ReserveFlat(plan::kControlNumbers, DType::kF64, &of.memory.control);
  Persistent persistent = MapBuckets(plan, of);
  if (inputs.train != nullptr) PlaceDerived(*inputs.train, plan, stage, &persistent.values);
  PlaceStates(inputs, plan, stage, &persistent.values);
  PlaceStaging(inputs, plan, stage);
  return persistent;
}

}  // namespace engine::compile
