#include <absl/container/flat_hash_map.h>

#include <algorithm>

#include "engine/verify/text.h"
#include "engine/verify/verify.h"

namespace engine::verify {
namespace {

bool IsScale(const plan::State& state) { return state.spec.update == graph::StateUpdate::kScales; }

// How often the segments of a kind of program write the state of this name.
std::int64_t WritesOf(const plan::Plan& plan, const plan::StagePlan& stage, plan::FormId form,
                      const std::string& name) {
  std::vector<std::int32_t> segments = {stage.ends[form].first, stage.ends[form].last};
  for (const plan::Chunk& chunk : stage.chunks) {
    const plan::ChunkPasses& passes = chunk.passes[form];
    segments.insert(segments.end(), {passes.forward, passes.backward, passes.weights});
  }
  std::int64_t writes = 0;
  for (const std::int32_t s : segments) {
    if (s < 0) continue;
    for (const plan::Instruction& instruction : stage.segments[static_cast<size_t>(s)].instructions) {
      writes += std::count_if(
          instruction.outputs.begin(), instruction.outputs.end(), [&](const plan::BufferRef& ref) {
            return ref.value >= 0 && ValueOf(plan, ref).kind == graph::ValueKind::kState &&
                   NameOf(plan, ref.value) == name;
          });
    }
  }
  return writes;
}

bool IsOfSession(const plan::State& state) { return state.spec.life == graph::Lifetime::kSession; }

// Of a number format that can be filled and saved, unless it begins as zeros and is forgotten. Whole on every rank, unless
// its nodes may split it.
absl::Status WellFormed(const plan::Plan& plan, std::int32_t index, const plan::State& state) {
  const plan::LocalValue& value = ValueOf(plan, state.buffer);
  const std::string name = plan.StateName(state);
  if (value.kind != graph::ValueKind::kState || (!state.spec.split && value.shape != value.local))
    return Internal("stage {}: {} is no state that is whole on every rank", index, name);
  if (state.buffer.elements != value.local.elements() || state.buffer.dtype != value.dtype)
    return Internal("stage {}: {} has a buffer of {} numbers, not {}", index, name, state.buffer.elements,
                    value.local.elements());
  const bool is_forgotten = IsOfSession(state) && state.spec.fill.empty();
  if (state.spec.split && !is_forgotten)
    return Internal("stage {}: {} is split, and no state of zeros of a session", index, name);
  if (value.dtype != DType::kF32 && value.dtype != DType::kF64 && !is_forgotten)
    return Internal("stage {}: {} is {}, not f32 or f64", index, name, Name(value.dtype));
  const auto fill = static_cast<std::int64_t>(state.spec.fill.size());
  if (fill > state.buffer.elements || state.spec.fixed >> fill != 0)
    return Internal("stage {}: {} of {} numbers starts as {}", index, name, state.buffer.elements, fill);
  return absl::OkStatus();
}

// The states that fp8_update moves are all of `scales`, one behind the other.
absl::Status Scales(const plan::Plan& plan, std::int32_t index) {
  const plan::StagePlan& stage = plan.stages[static_cast<size_t>(index)];
  std::int64_t at = stage.scales.offset;
  for (const plan::State& state : stage.states) {
    if (!IsScale(state)) continue;
    if (state.buffer.offset != at || state.buffer.dtype != stage.scales.dtype)
      return Internal("stage {}: {} is at {}, not at {} of the scales", index, plan.StateName(state),
                      state.buffer.offset, at);
    at += state.buffer.bytes();
  }
  if (at == stage.scales.offset + stage.scales.bytes()) return absl::OkStatus();
  return Internal("stage {}: scales of {} bytes for states of {}", index, stage.scales.bytes(),
                  at - stage.scales.offset);
}

// One node moves it, in training, in each half of a microbatch, or in a form that generates, if it is of a session; that fp8_update moves scales once VerifyGradients shows.
absl::Status MovedOnce(const plan::Plan& plan, std::int32_t index, const plan::State& state) {
  const plan::StagePlan& stage = plan.stages[static_cast<size_t>(index)];
  const std::string& name = NameOf(plan, state.buffer.value);
  for (plan::FormId form = 0; form < plan.FormsEnd(); ++form) {
    const std::int64_t writes = WritesOf(plan, stage, form, name);
    const plan::KindFacts facts = plan.FactsAt(form);
    const bool moves = !IsScale(state) && (facts.trains || (facts.generates && IsOfSession(state)));
    const std::int64_t most = moves ? plan.HalvesOf(form) : 0;
    // Whatever a sequence goes on from must have been kept.
    const bool keeps = state.spec.split && facts.generates && plan.ProgramOf(form) >= 0;
    if (keeps && writes != 1)
      return Internal("stage {} {}: {} instructions write {}, not 1", index, plan.FormName(form), writes,
                      plan.StateName(state));
    if (writes > most)
      return Internal("stage {} {}: {} instructions write {}, not {}", index, plan.FormName(form), writes,
                      plan.StateName(state), most);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status VerifyStates(const plan::Plan& plan) {
  absl::flat_hash_map<std::string, std::pair<std::int32_t, const plan::State*>> known;  // with the stage
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const std::int32_t index = static_cast<std::int32_t>(s);
    RETURN_IF_ERROR(Scales(plan, index));
    for (const plan::State& state : plan.stages[s].states) {
      RETURN_IF_ERROR(WellFormed(plan, index, state));
      RETURN_IF_ERROR(MovedOnce(plan, index, state));
      const std::string name = plan.StateName(state);
      const auto [it, fresh] = known.try_emplace(name, index, &state);
      const auto& [stage, first] = it->second;
      if (fresh) continue;
      // Scales of copies are moved alike: all of them see the largest value of any.
      if (!IsScale(state)) return Internal("stages {} and {} both hold {}", stage, index, name);
      if (first->spec.fill != state.spec.fill || first->buffer.elements != state.buffer.elements)
        return Internal("{} starts otherwise on stage {} than on stage {}", name, index, stage);
    }
  }
  return absl::OkStatus();
}

}  // namespace engine::verify
