// A segment: its instructions, for one microbatch or for several in turns, and the exchange beside them.
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
    ASSIGN_OR_RETURN(const bool finite, backend_->AllFinite(prepared.outputs[i]));
    if (finite) continue;
    const BufferRef& ref = prepared.instruction->outputs[i];
    const std::string what =
        ref.value < 0 ? fmt::format("output {}", i) : plan_.values[static_cast<size_t>(ref.value)].name;
    return absl::DataLossError(
        fmt::format("{} ({}) of microbatch {} is the first to make a number that is not finite, in {}",
                    prepared.instruction->name, prepared.instruction->kernel, step.microbatch, what));
  }
  return absl::OkStatus();
}

absl::Status RankExecutor::RunInstruction(const Prepared& prepared, const Step& step,
                                          const KernelContext& context) {
  const std::int64_t last_first = prepared.instruction->joint ? plan_.lanes - 1 : 0;
  const bool first = prepared.first != nullptr && step.microbatch <= last_first;
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
    if (step != nullptr) timing.microbatch = step->microbatch;
    if (step != nullptr && step->kind == StepKind::kRun) {
      timing.segment = &stage_.segments[static_cast<size_t>(step->segment)];
    }
  }
  marked_->push_back(marked);
  return absl::OkStatus();
}

// A microbatch on its way through a segment, or what is made of several together.
struct RankExecutor::Lane {
  const Step* step = nullptr;  // the last one's
  const std::vector<Prepared>* prepared = nullptr;
  KernelContext context;
  std::int64_t microbatches = 1;  // of the program
  bool joint = false;
  size_t next = 0;  // of `prepared`
  // Exchange that the next computation waits for, and finishes, and its tickets.
  std::vector<std::pair<const Prepared*, std::int64_t>> unfinished = {};
  bool done() const { return next == prepared->size(); }
  // To the next instruction that is not another lane's.
  void PassOthers() {
    while (!done() && (*prepared)[next].instruction->joint != joint) ++next;
  }
};

// Exchange starts after what computation has done so far; the lane's next computation starts after it.
absl::Status RankExecutor::RunExchange(const Prepared& prepared, Lane* lane) {
  const bool finishes =
      std::any_of(lane->unfinished.begin(), lane->unfinished.end(), [&](const auto& unfinished) {
        return plan::FinishesFirst(*unfinished.first->instruction, *prepared.instruction);
      });
  if (finishes) RETURN_IF_ERROR(FinishExchange(lane));
  const std::int32_t stream = prepared.instruction->stream;
  // The sum of gradients before this one has arrived long ago, where this one is to arrive.
  const BufferRef& scratch = prepared.instruction->scratch;
  const bool sums_later = prepared.instruction->detached && scratch.elements > 0;
  if (sums_later) {
    RETURN_IF_ERROR(FinishDetached([&](const Instruction& i) { return i.scratch.Overlaps(scratch); }));
  }
  // Something may wait for what is exchanged in each microbatch.
  const bool awaited = sums_later || (prepared.instruction->detached && !prepared.instruction->last_only);
  ASSIGN_OR_RETURN(const std::int64_t computed, backend_->Signal(plan::kComputeStream));
  RETURN_IF_ERROR(backend_->Await(stream, computed));
  RETURN_IF_ERROR(Mark(stream, std::nullopt, nullptr, nullptr));
  RETURN_IF_ERROR(RunInstruction(prepared, *lane->step, lane->context));
  RETURN_IF_ERROR(Mark(stream, Part::kRun, prepared.instruction, lane->step));
  if (prepared.instruction->detached && !options_.check && !awaited) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::int64_t exchanged, backend_->Signal(stream));
  if (awaited && !options_.check) {
    detached_.emplace_back(&prepared, exchanged);
    return absl::OkStatus();
  }
  lane->unfinished.emplace_back(&prepared, exchanged);
  if (!options_.check) return absl::OkStatus();
  RETURN_IF_ERROR(FinishExchange(lane));
  return CheckFinite(prepared, *lane->step);
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

// From here on, computation may read what the lane has exchanged, by instructions before `end`.
absl::Status RankExecutor::FinishExchange(Lane* lane, size_t end) {
  const Prepared* const behind = lane->prepared->data() + std::min(end, lane->prepared->size());
  size_t count = 0;
  while (count < lane->unfinished.size() && lane->unfinished[count].first < behind) ++count;
  if (count == 0) return absl::OkStatus();
  const auto [last, ticket] = lane->unfinished[count - 1];
  RETURN_IF_ERROR(backend_->Await(plan::kComputeStream, ticket));
  RETURN_IF_ERROR(Mark(plan::kComputeStream, Part::kWait, last->instruction, lane->step));
  for (size_t i = 0; i < count; ++i) {
    const Prepared& prepared = *lane->unfinished[i].first;
    RETURN_IF_ERROR(prepared.launch->Finish());
    RETURN_IF_ERROR(Mark(plan::kComputeStream, Part::kFinish, prepared.instruction, lane->step));
  }
  lane->unfinished.erase(lane->unfinished.begin(),
                         lane->unfinished.begin() + static_cast<std::ptrdiff_t>(count));
  return absl::OkStatus();
}

// What is made of all lanes together reads what they have exchanged before it.
absl::Status RankExecutor::AdvanceJoint(std::span<Lane> lanes, Lane* joint) {
  joint->PassOthers();
  const Instruction& instruction = *(*joint->prepared)[joint->next].instruction;
  for (Lane& lane : lanes) {
    if (instruction.reads_lanes()) RETURN_IF_ERROR(FinishExchange(&lane, joint->next));
  }
  return Advance(joint);
}

// The lane's next instruction.
absl::Status RankExecutor::Advance(Lane* lane) {
  const Prepared& prepared = (*lane->prepared)[lane->next++];
  const Instruction& instruction = *prepared.instruction;
  if (!instruction.RunsIn(lane->step->microbatch, lane->microbatches)) return absl::OkStatus();
  const bool computes = instruction.stream == plan::kComputeStream;
  if (computes) RETURN_IF_ERROR(FinishExchange(lane));
  if (!instruction.joins.empty()) {
    RETURN_IF_ERROR(FinishDetached([&](const Instruction& i) { return i.name == instruction.joins; }));
  }
  if (prepared.left_out) return absl::OkStatus();  // what it waits for, what follows counts on
  absl::Status status =
      computes ? RunInstruction(prepared, *lane->step, lane->context) : RunExchange(prepared, lane);
  if (status.ok()) return status;
  return WithContext(
      status, fmt::format("rank {}, {} of microbatch {}", rank_, instruction.name, lane->step->microbatch));
}

absl::Status RankExecutor::RunSegment(std::span<const Step> steps, const Running& running) {
  std::vector<Lane> lanes;
  for (const Step& step : steps) {
    RETURN_IF_ERROR(TakeInputs(step, running.spec.kind));
    const auto& by_slot = prepared_[static_cast<size_t>(step.segment)];
    Lane& lane = lanes.emplace_back();
    lane.step = &step;
    lane.prepared = &by_slot[by_slot.size() == 1 ? 0 : static_cast<size_t>(step.slot)];
    lane.context = running.context;
    lane.microbatches = running.spec.microbatches;
    lane.context.first_sample = std::max(step.microbatch, 0) * plan_.microbatch_samples;
  }
  if (lanes.size() > 1) {
    Lane joint = lanes.front();
    joint.step = &steps.back();
    joint.joint = true;
    for (std::uint8_t lane : stage_.segments[static_cast<size_t>(steps[0].segment)].order) {
      if (lane == plan::kJointLane) {
        RETURN_IF_ERROR(AdvanceJoint(lanes, &joint));
        continue;
      }
      lanes[lane].PassOthers();
      RETURN_IF_ERROR(Advance(&lanes[lane]));
    }
  } else {
    while (!lanes[0].done()) RETURN_IF_ERROR(Advance(&lanes[0]));
  }
  for (Lane& lane : lanes) RETURN_IF_ERROR(FinishExchange(&lane));
  return absl::OkStatus();
}

}  // namespace engine::executor
