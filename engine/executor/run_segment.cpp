// A segment: its instructions, and the exchange beside them.
#include <algorithm>
#include <utility>

#include "engine/executor/prepared.h"

namespace engine::executor {

using backend::KernelContext;
using plan::BufferRef;
using plan::Instruction;
using plan::Step;
using plan::StepKind;
using Part = InstructionTiming::Part;

absl::Status RankExecutor::CheckFinite(const Prepared& prepared, const Step& step) {
  RETURN_IF_ERROR(backend_->Synchronize());
  for (size_t i = 0; i < prepared.outputs.size(); ++i) {
    const BufferRef& ref = prepared.instruction->outputs[i];
    // Behind the last row (graph/rows.h) there is whatever was there before.
    if (ref.value >= 0 && plan_.values[static_cast<size_t>(ref.value)].layout.dims().HasSlots()) continue;
    ASSIGN_OR_RETURN(const bool finite, backend_->AllFinite(prepared.outputs[i]));
    if (finite) continue;
    const std::string what =
        ref.value < 0 ? fmt::format("output {}", i) : plan_.values[static_cast<size_t>(ref.value)].name;
    return absl::DataLossError(
        fmt::format("{} ({}) of microbatch {} is the first to make a number that is not finite, in {}",
                    prepared.instruction->name, prepared.instruction->kernel(),
                    MicrobatchOf(step, *prepared.instruction), what));
  }
  return absl::OkStatus();
}

std::int32_t RankExecutor::MicrobatchOf(const Step& step, const Instruction& instruction) {
  return step.microbatch + (instruction.half == plan::Half::kSecond ? 1 : 0);
}

absl::Status RankExecutor::RunInstruction(const Prepared& prepared, const Step& step,
                                          const KernelContext& context) {
  const bool first = prepared.first != nullptr && step.microbatch == 0;
  RETURN_IF_ERROR((first ? prepared.first : prepared.launch)->Run(context));
  if (prepared.instruction->stream != plan::kComputeStream) return absl::OkStatus();
  RETURN_IF_ERROR((first ? prepared.first : prepared.launch)->Finish());
  if (prepared.direct != nullptr) RETURN_IF_ERROR(prepared.direct->Release());
  if (options_.check) RETURN_IF_ERROR(CheckFinite(prepared, step));
  return Mark(plan::kComputeStream, Part::kRun, prepared.instruction, &step);
}

absl::Status RankExecutor::Mark(std::int32_t stream, std::optional<Part> part, const Instruction* instruction,
                                const Step* step) {
  if (marked_ == nullptr) return absl::OkStatus();
  Marked marked{.timing = {}, .stream = stream};
  ASSIGN_OR_RETURN(marked.after, backend_->Mark(stream));
  if (part) {
    InstructionTiming& timing = marked.timing.emplace();
    timing.instruction = instruction;
    timing.part = *part;
    timing.stream = stream;
    if (step != nullptr)
      timing.microbatch = instruction != nullptr ? MicrobatchOf(*step, *instruction) : step->microbatch;
    if (step != nullptr && step->kind == StepKind::kRun) {
      timing.segment = &stage_.segments[static_cast<size_t>(step->segment)];
    }
  }
  marked_->push_back(marked);
  return absl::OkStatus();
}

// A step on its way through its segment.
struct RankExecutor::Walk {
  const Step* step = nullptr;
  const std::vector<Prepared>* prepared = nullptr;
  KernelContext context;
  std::int64_t microbatches = 1;  // of the program
  // Conversions beside computation that nothing has waited for, and their tickets.
  std::vector<std::pair<const Prepared*, std::int64_t>> under_way = {};
};

// Exchange starts after what computation has done so far.
absl::Status RankExecutor::RunExchange(const Prepared& prepared, const KernelContext& context, Walk* walk) {
  const std::int32_t stream = prepared.instruction->stream;
  // The sum of gradients before this one has arrived long ago, where this one is to arrive.
  const BufferRef& scratch = prepared.instruction->scratch;
  const bool sums_later = prepared.instruction->detached() && scratch.elements > 0;
  if (sums_later) {
    RETURN_IF_ERROR(FinishDetached([&](const Instruction& i) { return i.scratch.Overlaps(scratch); }));
  }
  // Something may wait for what is exchanged in each microbatch; and what is traced has to be finished.
  const bool awaited = sums_later || (prepared.instruction->detached() &&
                                      (!prepared.instruction->last_only() || trace_ != nullptr));
  ASSIGN_OR_RETURN(const std::int64_t computed, backend_->Signal(plan::kComputeStream));
  RETURN_IF_ERROR(backend_->Await(stream, computed));
  RETURN_IF_ERROR(Mark(stream, std::nullopt, nullptr, nullptr));
  RETURN_IF_ERROR(RunInstruction(prepared, *walk->step, context));
  RETURN_IF_ERROR(Mark(stream, Part::kRun, prepared.instruction, walk->step));
  if (prepared.instruction->detached() && !options_.check && !awaited) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::int64_t exchanged, backend_->Signal(stream));
  if (awaited && !options_.check) {
    detached_.emplace_back(&prepared, exchanged);
    return absl::OkStatus();
  }
  walk->under_way.emplace_back(&prepared, exchanged);
  if (!options_.check) return absl::OkStatus();
  RETURN_IF_ERROR(FinishExchange(walk, [](const Prepared&) { return true; }));
  return CheckFinite(prepared, *walk->step);
}

// From here on, computation may read what detached exchange made.
absl::Status RankExecutor::FinishDetached(const std::function<bool(const Instruction&)>& wanted) {
  for (const auto& [prepared, exchanged] : detached_) {
    if (!wanted(*prepared->instruction)) continue;
    RETURN_IF_ERROR(backend_->Await(plan::kComputeStream, exchanged));
    RETURN_IF_ERROR(Mark(plan::kComputeStream, Part::kWait, prepared->instruction, nullptr));
    RETURN_IF_ERROR(prepared->launch->Finish());
    RETURN_IF_ERROR(Mark(plan::kComputeStream, Part::kFinish, prepared->instruction, nullptr));
  }
  std::erase_if(detached_, [&](const auto& entry) { return wanted(*entry.first->instruction); });
  return absl::OkStatus();
}

// From here on, it may read all that was exchanged.
absl::Status RankExecutor::JoinExchange() {
  RETURN_IF_ERROR(FinishDetached([](const Instruction&) { return true; }));
  for (const std::int32_t stream : {plan::kExchangeStream, plan::kBucketStream}) {
    ASSIGN_OR_RETURN(const std::int64_t exchanged, backend_->Signal(stream));
    RETURN_IF_ERROR(backend_->Await(plan::kComputeStream, exchanged));
  }
  return Mark(plan::kComputeStream, Part::kWait, nullptr, nullptr);
}

// From here on, computation may read what these exchanges of the segment made, and overwrite what they used.
absl::Status RankExecutor::FinishExchange(Walk* walk, const std::function<bool(const Prepared&)>& wanted) {
  std::vector<std::pair<const Prepared*, std::int64_t>> finished;
  for (const auto& entry : walk->under_way) {
    if (wanted(*entry.first)) finished.push_back(entry);
  }
  if (finished.empty()) return absl::OkStatus();
  const auto [last, ticket] = finished.back();
  RETURN_IF_ERROR(backend_->Await(plan::kComputeStream, ticket));
  RETURN_IF_ERROR(Mark(plan::kComputeStream, Part::kWait, last->instruction, walk->step));
  for (const auto& [prepared, behind] : finished) {
    RETURN_IF_ERROR(prepared->launch->Finish());
    RETURN_IF_ERROR(Mark(plan::kComputeStream, Part::kFinish, prepared->instruction, walk->step));
  }
  std::erase_if(walk->under_way, [&](const auto& entry) { return wanted(*entry.first); });
  return absl::OkStatus();
}

absl::Status RankExecutor::Advance(const Prepared& prepared, Walk* walk) {
  const Instruction& instruction = *prepared.instruction;
  const plan::Segment& segment = stage_.segments[static_cast<size_t>(walk->step->segment)];
  const std::int64_t last = walk->step->microbatch + (segment.halves ? 1 : 0);
  if (!instruction.RunsIn(last, walk->microbatches)) return absl::OkStatus();
  if (!instruction.waits.empty()) {
    RETURN_IF_ERROR(FinishExchange(walk, [&](const Prepared& exchange) {
      const auto index = static_cast<std::int32_t>(&exchange - walk->prepared->data());
      return std::find(instruction.waits.begin(), instruction.waits.end(), index) != instruction.waits.end();
    }));
  }
  if (instruction.waits_for_bucket >= 0) {
    RETURN_IF_ERROR(FinishDetached(
        [&](const Instruction& i) { return i.AsBucketExchange()->bucket == instruction.waits_for_bucket; }));
  }
  if (prepared.left_out) return absl::OkStatus();  // what it waits for, what follows counts on
  KernelContext context = walk->context;
  const std::int32_t microbatch = MicrobatchOf(*walk->step, instruction);
  context.first_sample = std::max(microbatch, 0) * plan_.microbatch_samples;
  if (instruction.Exchanges()) RETURN_IF_ERROR(ReachExchange());
  const bool computes = instruction.stream == plan::kComputeStream;
  absl::Status status =
      computes ? RunInstruction(prepared, *walk->step, context) : RunExchange(prepared, context, walk);
  if (status.ok()) return status;
  return WithContext(status,
                     fmt::format("rank {}, {} of microbatch {}", rank_, instruction.name, microbatch));
}

absl::Status RankExecutor::RunSegment(const Step& step, const Running& running) {
  RETURN_IF_ERROR(TakeInputs(step, running.spec.form));
  const auto& by_slot = prepared_[static_cast<size_t>(step.segment)];
  const bool halves = stage_.segments[static_cast<size_t>(step.segment)].halves;
  const auto slot = static_cast<size_t>(halves ? step.slot / plan_.halves : step.slot);
  Walk walk{.step = &step,
            .prepared = &by_slot[by_slot.size() == 1 ? 0 : slot],
            .context = running.context,
            .microbatches = running.spec.microbatches};
  for (const Prepared& prepared : *walk.prepared) RETURN_IF_ERROR(Advance(prepared, &walk));
  for (const plan::Half half : {plan::Half::kFirst, plan::Half::kSecond}) {
    RETURN_IF_ERROR(
        FinishExchange(&walk, [&](const Prepared& exchange) { return exchange.instruction->half == half; }));
  }
  return absl::OkStatus();
}

}  // namespace engine::executor
