#include "engine/verify/persistent.h"

#include <string>

#include "engine/verify/text.h"

namespace engine::verify {

using graph::ValueKind;

PersistentPlaces::PersistentPlaces(const plan::Plan& plan, std::int32_t stage) : plan_(&plan), index_(stage) {
  const plan::StagePlan& of = plan.stages[static_cast<size_t>(stage)];
  const Places parameters_at = MapBuckets(of);
  for (const plan::BufferRef& derived : of.derived) places_[derived.value] = derived;
  MapStates(of);
  MapValues(of, parameters_at);
}

// The places of gradients; those of parameters are the answer, by parameter.
PersistentPlaces::Places PersistentPlaces::MapBuckets(const plan::StagePlan& stage) {
  Places parameters_at;
  for (const plan::Bucket& bucket : stage.buckets) {
    for (const plan::Bucket::Item& item : bucket.items) {
      const plan::PlanParameter& parameter = plan_->parameters[static_cast<size_t>(item.parameter)];
      plan::BufferRef ref = bucket.parameter;
      ref.offset += item.offset_elements * SizeOf(ref.dtype);
      ref.elements = item.elements;
      parameters_at[item.parameter] = ref;
      if (parameter.gradient < 0) continue;
      ref = bucket.gradient;
      ref.offset += item.offset_elements * SizeOf(ref.dtype);
      ref.elements = item.elements;
      places_[parameter.gradient] = ref;
      if (bucket.gradient_shard.elements > 0) in_turns_.insert(parameter.gradient);
    }
  }
  return parameters_at;
}

// A state that nodes move has one name in both graphs, and one place.
void PersistentPlaces::MapStates(const plan::StagePlan& stage) {
  absl::flat_hash_map<std::string, plan::BufferRef> by_name;
  for (const plan::State& state : stage.states) {
    places_[state.buffer.value] = state.buffer;
    if (state.spec.update == graph::StateUpdate::kNode)
      by_name[NameOf(*plan_, state.buffer.value)] = state.buffer;
  }
  for (size_t v = 0; v < plan_->values.size() && !by_name.empty(); ++v) {
    const auto state = by_name.find(plan_->values[v].name);
    if (plan_->values[v].kind == ValueKind::kState && state != by_name.end())
      places_[static_cast<std::int32_t>(v)] = state->second;
  }
}

// Parameters and metrics.
void PersistentPlaces::MapValues(const plan::StagePlan& stage, const Places& parameters_at) {
  for (size_t v = 0; v < plan_->values.size(); ++v) {
    const plan::LocalValue& value = plan_->values[v];
    const std::int32_t id = static_cast<std::int32_t>(v);
    if (value.kind == ValueKind::kParameter) {
      if (const auto it = parameters_at.find(value.parameter); it != parameters_at.end())
        places_[id] = it->second;
    } else if (value.metric >= 0) {
      const plan::PlanMetric& metric = plan_->metrics[static_cast<size_t>(value.metric)];
      places_[id] = stage.scalars;
      places_[id].offset += plan::ScalarOf(metric.first) * SizeOf(DType::kF64);
      places_[id].elements = metric.numbers();
    }
  }
}

absl::Status PersistentPlaces::Check(const plan::BufferRef& ref) const {
  const auto it = places_.find(ref.value);
  if (it == places_.end()) return Internal("{} is not held by stage {}", NameOf(*plan_, ref.value), index_);
  const plan::BufferRef& place = it->second;
  if (!ref.in_slot && ref.shard_axes.empty() && place.offset == ref.offset &&
      place.elements == ref.elements && place.dtype == ref.dtype) {
    return absl::OkStatus();
  }
  return Internal("{} lies at {}, not at {}", NameOf(*plan_, ref.value), place.offset, ref.offset);
}

}  // namespace engine::verify
