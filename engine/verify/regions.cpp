#include "engine/verify/regions.h"

#include <algorithm>
#include <map>

#include "engine/base/status.h"
#include "engine/plan/arena.h"

namespace engine::verify {

plan::Half HalfOf(const plan::Plan& plan, ProgramId id, std::int64_t microbatch) {
  return microbatch % plan.HalvesOf(plan.ProgramAt(id.program).form) != 0 ? plan::Half::kSecond
                                                                          : plan::Half::kFirst;
}

absl::StatusOr<PipelineBuffers> PipelineBuffersOf(const plan::Plan& plan, ProgramId id) {
  RETURN_IF_ERROR(ProgramWellFormed(plan, id));
  PipelineBuffers buffers;
  const plan::Program& program = ProgramOf(plan, id);
  for (size_t i = 0; i < program.size(); ++i) {
    const plan::Step& step = program[i];
    if (step.kind == plan::StepKind::kRun) continue;
    auto& places = step.kind == plan::StepKind::kSend ? buffers.send : buffers.receive;
    const plan::Half half = HalfOf(plan, id, step.microbatch);
    const auto [it, fresh] = places.try_emplace({step.transfer, half}, step.buffer);
    if (!fresh && !SamePlace(it->second, step.buffer)) {
      return Internal("{} uses the buffer at {}, other microbatches of this transfer the one at {}",
                      StepName(plan, id, i), step.buffer.offset, it->second.offset);
    }
  }
  return buffers;
}

namespace {

// Whether the chunk sends the value from where it has received it.
bool IsRelayed(const plan::Plan& plan, const PipelineBuffers& buffers,
               const std::pair<std::int32_t, plan::Half>& sent) {
  const plan::Transfer& next = plan.transfers[static_cast<size_t>(sent.first)];
  return std::any_of(buffers.receive.begin(), buffers.receive.end(), [&](const auto& received) {
    const plan::Transfer& hop = plan.transfers[static_cast<size_t>(received.first.first)];
    return received.first.second == sent.second && hop.value == next.value &&
           hop.to_chunk == next.from_chunk && SamePlace(received.second, buffers.send.at(sent));
  });
}

}  // namespace

absl::StatusOr<Regions> Regions::Of(const plan::Plan& plan, ProgramId id) {
  Regions result;
  std::vector<Region>& regions = result.regions_;
  const plan::StagePlan& stage = plan.stages[static_cast<size_t>(id.stage)];
  const plan::FormId form = plan.ProgramAt(id.program).form;
  const auto add = [&](const plan::BufferRef& buffer, std::string name) {
    if (buffer.elements > 0)
      regions.push_back({buffer.offset, buffer.offset + buffer.bytes(), std::move(name)});
  };
  // Of buffers that buckets take in turn: bytes, by offset.
  std::map<std::int64_t, std::int64_t> gradients_in_turns, parameters_in_turns;
  const auto add_whole = [&](const plan::BufferRef& whole, const plan::BufferRef& shard, std::string name,
                             std::map<std::int64_t, std::int64_t>* in_turns) {
    if (shard.elements == 0) return add(whole, std::move(name));
    add(shard, name + " of this rank");
    std::int64_t& bytes = (*in_turns)[whole.offset];
    bytes = std::max(bytes, whole.bytes());
  };
  for (size_t b = 0; b < stage.buckets.size(); ++b) {
    const plan::Bucket& bucket = stage.buckets[b];
    add_whole(bucket.parameter, bucket.gathered_at_begin() ? plan::BufferRef() : bucket.parameter_shard,
              fmt::format("bucket.{} parameters", b), &parameters_in_turns);
    add_whole(bucket.gradient, bucket.gradient_shard, fmt::format("bucket.{} gradients", b),
              &gradients_in_turns);
    add(bucket.master, fmt::format("bucket.{} master weights", b));
    for (size_t s = 0; s < bucket.states.size(); ++s)
      add(bucket.states[s], fmt::format("bucket.{} {}", b, StateTitle(plan, s)));
  }
  for (const auto& [offset, bytes] : parameters_in_turns)
    regions.push_back({offset, offset + bytes, "parameters of a block"});
  for (const auto& [offset, bytes] : gradients_in_turns)
    regions.push_back({offset, offset + bytes, "gradients of a block"});
  add(stage.scalars, "scalars");
  add(stage.control, "control");
  add(stage.scales, "states");
  for (const plan::State& state : stage.states) {
    if (state.spec.update == graph::StateUpdate::kNode) add(state.buffer, plan.StateName(state));
  }
  for (const plan::BufferRef& derived : stage.derived) add(derived, NameOf(plan, derived.value));
  for (const plan::Chunk& chunk : stage.chunks) {
    add(chunk.incoming, fmt::format("incoming inputs of chunk {}", chunk.index));
    add(chunk.staged, fmt::format("staged inputs of chunk {}", chunk.index));
    if (!plan.FactsAt(form).trains) {
      for (const auto* refs : {&chunk.passes[form].inputs, &chunk.passes[form].outputs}) {
        for (const plan::BufferRef& ref : *refs) add(ref, NameOf(plan, ref.value));
      }
      if (form == plan::kEvaluateForm && !chunk.passes[form].outputs.empty())
        add(chunk.kept, fmt::format("what chunk {} keeps", chunk.index));
    } else if (chunk.slots * chunk.slot_bytes > 0) {
      regions.push_back({chunk.slot_base, chunk.slot_base + chunk.slots * chunk.slot_bytes,
                         fmt::format("slots of chunk {}", chunk.index)});
    }
  }
  ASSIGN_OR_RETURN(const PipelineBuffers buffers, PipelineBuffersOf(plan, id));
  for (const auto* places : {&buffers.send, &buffers.receive}) {
    for (const auto& [transfer, buffer] : *places) {
      if (buffer.in_slot || (places == &buffers.send && IsRelayed(plan, buffers, transfer))) continue;
      add(buffer, fmt::format("{} buffer of {}", places == &buffers.send ? "send" : "receive",
                              NameOf(plan, plan.transfers[static_cast<size_t>(transfer.first)].value)));
    }
  }
  std::sort(regions.begin(), regions.end(),
            [](const Region& a, const Region& b) { return a.begin < b.begin; });
  for (size_t r = 0; r < regions.size(); ++r) {
    if (regions[r].begin < 0 || regions[r].end > stage.arena_bytes) {
      return Internal("stage {}: {} at [{}, {}) is outside of the arena of {} bytes", id.stage,
                      regions[r].name, regions[r].begin, regions[r].end, stage.arena_bytes);
    }
    if (r > 0 && regions[r].begin < regions[r - 1].end) {
      return Internal("stage {}: {} at [{}, {}) overlaps {} at [{}, {})", id.stage, regions[r].name,
                      regions[r].begin, regions[r].end, regions[r - 1].name, regions[r - 1].begin,
                      regions[r - 1].end);
    }
  }
  return result;
}

const Region* Regions::Overlapping(std::int64_t begin, std::int64_t end) const {
  const auto after =
      std::lower_bound(regions_.begin(), regions_.end(), end,
                       [](const Region& region, std::int64_t at) { return region.begin < at; });
  if (after == regions_.begin()) return nullptr;
  const Region& last = *std::prev(after);
  return last.end > begin ? &last : nullptr;
}

}  // namespace engine::verify
