// Before the first iteration: where everything lies on this rank, and every launch.
#include <absl/container/flat_hash_map.h>

#include <algorithm>
#include <utility>

#include "engine/executor/prepared.h"

namespace engine::executor {

using backend::TensorView;
using plan::BufferRef;
using plan::Chunk;
using plan::Instruction;
using plan::Step;
using plan::StepKind;

namespace {

const Chunk* ChunkOf(const plan::StagePlan& stage, std::int32_t index) {
  for (const Chunk& chunk : stage.chunks) {
    if (chunk.index == index) return &chunk;
  }
  return nullptr;
}

// Whether a segment of the chunk belongs to a form of programs whose microbatches have slots.
bool HasSlots(const plan::Plan& plan, const Chunk& chunk, std::int32_t segment) {
  for (plan::FormId form = 0; form < plan.FormsEnd(); ++form) {
    const plan::ChunkPasses& passes = chunk.passes[form];
    const bool runs = segment == passes.forward || segment == passes.backward || segment == passes.weights;
    if (runs) return plan.FactsAt(form).trains;
  }
  return false;
}

}  // namespace

const Chunk* RankExecutor::ChunkAt(std::int32_t index) const { return ChunkOf(stage_, index); }

std::span<std::byte> RankExecutor::Scratch(const Instruction& instruction, const Chunk* chunk,
                                           std::int64_t slot) const {
  if (instruction.scratch.elements == 0) return {};
  return {Address(instruction.scratch, chunk, slot), static_cast<size_t>(instruction.scratch.elements)};
}

absl::StatusOr<RankExecutor::Prepared> RankExecutor::PrepareInstruction(const Instruction& instruction,
                                                                        const Chunk* chunk, std::int64_t slot,
                                                                        std::int64_t at_once,
                                                                        backend::Launch* before) {
  Prepared prepared;
  prepared.instruction = &instruction;
  if (instruction.AsKernel() != nullptr) {
    backend::LaunchArgs args{.instruction = &instruction,
                             .accumulate = instruction.accumulate(),
                             .inputs = {},
                             .outputs = {},
                             .scratch = Scratch(instruction, chunk, slot)};
    for (const BufferRef& ref : instruction.inputs) {
      const bool is_parameter =
          ref.value >= 0 && plan_.values[static_cast<size_t>(ref.value)].kind == graph::ValueKind::kParameter;
      if (is_parameter && parameters_stay_ && args.inputs.size() < 32)
        args.constant_inputs |= 1U << args.inputs.size();
      args.inputs.push_back(View(ref, chunk, slot));
    }
    for (const BufferRef& ref : instruction.outputs) args.outputs.push_back(View(ref, chunk, slot));
    if (const auto& adds = instruction.AsKernel()->adds) {
      args.part = {Address(adds->place, chunk, slot), static_cast<size_t>(adds->place.bytes())};
    }
    if (instruction.direct()) {
      ENGINE_CHECK(before != nullptr, "{} reads directly what nobody sums", instruction.name);
      args.direct = prepared.direct = before;
    }
    prepared.outputs = args.outputs;
    // Where even the largest program has only the first microbatch, none adds to what there is.
    if (instruction.fresh() == 0 || plan_.microbatches > at_once) {
      ASSIGN_OR_RETURN(prepared.launch, backend_->Prepare(args));
    }
    if (instruction.fresh() != 0) {
      args.accumulate &= ~instruction.fresh();
      ASSIGN_OR_RETURN(prepared.first, backend_->Prepare(std::move(args)));
    }
    return prepared;
  }
  if (const plan::HostCopy* copy = instruction.AsHostCopy()) {
    const bool out = copy->direction == plan::HostCopy::Direction::kToHost;
    const TensorView view = View(out ? instruction.inputs[0] : instruction.outputs[0], chunk, slot);
    ENGINE_CHECK(chunk != nullptr && slot >= 0, "{} waits for no microbatch", instruction.name);
    if (!out) prepared.outputs = {view};
    prepared.launch = backend_->PrepareHostCopy(
        {.direction = copy->direction,
         .arena = static_cast<std::byte*>(view.data),
         .host = host_ + chunk->host_base + slot * chunk->host_bytes + copy->host_offset,
         .bytes = view.shape.elements() * SizeOf(view.dtype)});
    return prepared;
  }
  backend::CollectiveArgs args{.instruction = &instruction,
                               .group = plan_.mesh.Group(rank_, instruction.group()),
                               .index = plan_.mesh.IndexInGroup(coordinates_, instruction.group()),
                               .input = View(instruction.inputs[0], chunk, slot),
                               .output = View(instruction.outputs[0], chunk, slot),
                               .member_inputs = {},
                               .member_outputs = {},
                               .scratch = Scratch(instruction, chunk, slot)};
  if (!instruction.IsBucketExchange()) {
    const plan::LocalValue& input = plan_.values[static_cast<size_t>(instruction.inputs[0].value)];
    const plan::LocalValue& output = plan_.values[static_cast<size_t>(instruction.outputs[0].value)];
    for (std::int64_t member : args.group) {
      const plan::Coordinates at = plan_.mesh.CoordinatesOf(member);
      args.member_inputs.push_back(input.layout.ExtentOf(input.shape, plan_.mesh, at));
      args.member_outputs.push_back(output.layout.ExtentOf(output.shape, plan_.mesh, at));
    }
  }
  prepared.outputs = {args.output};
  ASSIGN_OR_RETURN(prepared.launch, communicator_->Prepare(std::move(args)));
  return prepared;
}

bool RankExecutor::ParametersStay() const {
  const auto writes_parameters = [&](const Instruction& instruction) {
    return std::ranges::any_of(instruction.outputs, [&](const BufferRef& output) {
      return std::ranges::any_of(
          stage_.buckets, [&](const plan::Bucket& bucket) { return output.Overlaps(bucket.parameter); });
    });
  };
  return std::ranges::none_of(stage_.segments, [&](const plan::Segment& segment) {
    return std::ranges::any_of(segment.instructions, writes_parameters);
  });
}

absl::Status RankExecutor::PrepareSegments() {
  parameters_stay_ = ParametersStay();
  for (const plan::Segment& segment : stage_.segments) {
    const Chunk* chunk = ChunkAt(segment.chunk);
    const auto index = static_cast<std::int32_t>(prepared_.size());
    const bool slots = chunk != nullptr && HasSlots(plan_, *chunk, index);
    const std::int64_t at_once = segment.halves ? plan_.halves : 1;
    std::vector<std::vector<Prepared>> by_slot(slots ? static_cast<size_t>(chunk->slots / at_once) : 1);
    for (size_t slot = 0; slot < by_slot.size(); ++slot) {
      for (const Instruction& instruction : segment.instructions) {
        const bool skipped = std::any_of(graph::kAxes.begin(), graph::kAxes.end(), [&](plan::Axis axis) {
          return instruction.only_first().Has(axis) && coordinates_.axis[static_cast<size_t>(axis)] != 0;
        });
        Prepared prepared;
        prepared.instruction = &instruction;
        prepared.left_out = skipped;
        if (!skipped) {
          backend::Launch* const before = by_slot[slot].empty() ? nullptr : by_slot[slot].back().launch.get();
          const std::int64_t first = slots ? static_cast<std::int64_t>(slot) * at_once : -1;
          ASSIGN_OR_RETURN(prepared, PrepareInstruction(instruction, chunk, first, at_once, before));
        }
        by_slot[slot].push_back(std::move(prepared));
      }
    }
    prepared_.push_back(std::move(by_slot));
  }
  return absl::OkStatus();
}

absl::Status RankExecutor::PrepareTransfers() {
  recorded_.resize(plan_.programs.size());
  for (size_t p = 0; p < plan_.programs.size(); ++p) {
    const plan::Program& program = stage_.programs[p];
    std::vector<std::int64_t>& targets = targets_.emplace_back(program.size(), -1);
    // By transfer and microbatch: where its receiver wants it.
    absl::flat_hash_map<std::pair<std::int32_t, std::int32_t>, std::int64_t> wanted;
    for (const plan::StagePlan& stage : plan_.stages) {
      for (const Step& step : stage.programs[p]) {
        if (step.kind != StepKind::kReceive) continue;
        const std::int64_t offset = OffsetOf(step.buffer, ChunkOf(stage, step.chunk), step.slot);
        wanted[{step.transfer, step.microbatch}] = offset;
      }
    }
    for (size_t i = 0; i < program.size(); ++i) {
      const Step& step = program[i];
      if (step.kind == StepKind::kRun) continue;
      const plan::Transfer& transfer = plan_.transfers[static_cast<size_t>(step.transfer)];
      const bool sends = step.kind == StepKind::kSend;
      const std::int64_t peer = PeerOf(sends ? transfer.to_chunk : transfer.from_chunk);
      RETURN_IF_ERROR(communicator_->PrepareTransfer(peer, step.stream, transfer.push));
      if (sends) targets[i] = wanted.at({step.transfer, step.microbatch});
    }
  }
  return absl::OkStatus();
}

std::int64_t RankExecutor::PeerOf(std::int32_t chunk) const {
  plan::Coordinates peer = coordinates_;
  peer.pp = plan_.chunk_stage[static_cast<size_t>(chunk)];
  return plan_.mesh.RankOf(peer);
}

}  // namespace engine::executor
