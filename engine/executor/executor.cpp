#include "engine/executor/executor.h"

#include <absl/container/flat_hash_map.h>

#include <algorithm>
#include <array>
#include <utility>

#include "engine/plan/control.h"

namespace engine::executor {

using backend::KernelContext;
using backend::TensorView;
using plan::BufferRef;
using plan::Chunk;
using plan::Instruction;
using plan::Step;
using plan::StepKind;
using Part = InstructionTiming::Part;

namespace {

const Chunk* ChunkOf(const plan::StagePlan& stage, std::int32_t index) {
  for (const Chunk& chunk : stage.chunks) {
    if (chunk.index == index) return &chunk;
  }
  return nullptr;
}

}  // namespace

struct RankExecutor::Prepared {
  const Instruction* instruction = nullptr;
  std::unique_ptr<backend::Launch> launch;  // null where every microbatch is the first
  std::unique_ptr<backend::Launch> first;   // of microbatch 0, where that overwrites sums; else null
  std::vector<TensorView> outputs;
  bool left_out = false;  // other ranks run it
};

RankExecutor::RankExecutor(const plan::Plan& plan, std::int64_t rank)
    : plan_(plan),
      rank_(rank),
      coordinates_(plan.mesh.CoordinatesOf(rank)),
      stage_(plan.stages[static_cast<size_t>(coordinates_.pp)]) {}

RankExecutor::~RankExecutor() { WaitForPrefetch(); }

void RankExecutor::WaitForPrefetch() {
  if (prefetch_.valid()) prefetch_.wait();
}

absl::StatusOr<std::unique_ptr<RankExecutor>> RankExecutor::Create(
    const plan::Plan& plan, std::int64_t rank, std::unique_ptr<backend::Backend> backend,
    std::unique_ptr<backend::Communicator> communicator, std::uint64_t seed, const ExecutorOptions& options) {
  std::unique_ptr<RankExecutor> executor(new RankExecutor(plan, rank));
  executor->options_ = options;
  executor->backend_ = std::move(backend);
  executor->communicator_ = std::move(communicator);
  executor->seed_ = seed;
  ASSIGN_OR_RETURN(executor->arena_, executor->backend_->AllocateArena(executor->stage_.arena_bytes));
  RETURN_IF_ERROR(executor->PrepareSegments());
  RETURN_IF_ERROR(executor->PrepareTransfers());
  RETURN_IF_ERROR(executor->communicator_->Connect());
  RETURN_IF_ERROR(executor->backend_->ClearArena());
  RETURN_IF_ERROR(executor->StartControl());
  return executor;
}

absl::Status RankExecutor::StartControl() {
  double control[plan::kControlNumbers] = {};
  control[plan::kLossScale] = plan_.loss_scale;
  control[plan::kHysteresis] = 2;
  RETURN_IF_ERROR(backend_->Upload(Address(stage_.control, nullptr, -1), control, sizeof(control)));
  std::vector<float> states;
  for (const plan::StagePlan::StateStart& start : stage_.state_starts) {
    const float format = start.format == DType::kE5M2 ? 1.0F : 0.0F;
    for (const float number : {1 / start.scale, 0.0F, 0.0F, 0.0F, start.scale, 0.0F, format, 0.0F}) {
      states.push_back(number);
    }
  }
  if (states.empty()) return absl::OkStatus();
  return backend_->Upload(Address(stage_.states, nullptr, -1), states.data(), stage_.states.bytes());
}

const Chunk* RankExecutor::ChunkAt(std::int32_t index) const { return ChunkOf(stage_, index); }

std::int64_t RankExecutor::OffsetOf(const BufferRef& ref, const plan::StagePlan& stage, const Chunk* chunk,
                                    std::int64_t slot) const {
  std::int64_t offset = ref.offset;
  const bool beside = ref.lane_stride > 0;
  const std::int64_t lane = slot % plan_.lanes;
  if (ref.in_slot) {
    ENGINE_CHECK(chunk != nullptr && slot >= 0 && slot < chunk->slots, "slot {} of no chunk", slot);
    offset += chunk->slot_base + (beside ? slot - lane : slot) * chunk->slot_bytes;
  }
  if (beside) {
    offset += lane * ref.lane_stride;
  } else if (ref.in_lane) {
    offset += lane * stage.lane_bytes;
  }
  if (!ref.shard_axes.empty())
    offset += plan_.mesh.IndexInGroup(coordinates_, ref.shard_axes) * ref.shard_stride;
  return offset;
}

std::byte* RankExecutor::Address(const BufferRef& ref, const Chunk* chunk, std::int64_t slot) const {
  return arena_ + OffsetOf(ref, stage_, chunk, slot);
}

TensorView RankExecutor::View(const BufferRef& ref, const Chunk* chunk, std::int64_t slot) const {
  TensorView view;
  view.data = Address(ref, chunk, slot);
  view.dtype = ref.dtype;
  if (ref.value < 0) {
    view.shape = {ref.elements};
    view.logical = view.shape;
    view.extent = Extent::Whole(view.shape);
    return view;
  }
  const plan::LocalValue& value = plan_.values[static_cast<size_t>(ref.value)];
  view.shape = value.local;
  view.logical = value.shape;
  view.extent = value.layout.ExtentOf(value.shape, plan_.mesh, coordinates_);
  return view;
}

TensorView RankExecutor::JointView(const BufferRef& ref, const Chunk* chunk, std::int64_t slot) const {
  TensorView view = View(ref, chunk, slot);
  view.shape[0] *= plan_.lanes;
  view.logical = view.shape;
  view.extent = Extent::Whole(view.shape);
  return view;
}

std::span<std::byte> RankExecutor::Scratch(const Instruction& instruction, const Chunk* chunk,
                                           std::int64_t slot) const {
  if (instruction.scratch.elements == 0) return {};
  return {Address(instruction.scratch, chunk, slot), static_cast<size_t>(instruction.scratch.elements)};
}

absl::StatusOr<RankExecutor::Prepared> RankExecutor::PrepareInstruction(const Instruction& instruction,
                                                                        const Chunk* chunk,
                                                                        std::int64_t slot) {
  Prepared prepared;
  prepared.instruction = &instruction;
  if (instruction.collective == plan::Collective::kNone) {
    backend::LaunchArgs args{.instruction = &instruction,
                             .accumulate = instruction.accumulate,
                             .inputs = {},
                             .outputs = {},
                             .scratch = Scratch(instruction, chunk, slot)};
    for (const BufferRef& ref : instruction.inputs) {
      args.inputs.push_back(instruction.joint ? JointView(ref, chunk, slot) : View(ref, chunk, slot));
    }
    for (const BufferRef& ref : instruction.outputs) args.outputs.push_back(View(ref, chunk, slot));
    if (instruction.part.elements > 0) {
      args.part = {Address(instruction.part, chunk, slot), static_cast<size_t>(instruction.part.bytes())};
    }
    prepared.outputs = args.outputs;
    if (instruction.fresh == 0 || plan_.microbatches > (instruction.joint ? plan_.lanes : 1)) {
      ASSIGN_OR_RETURN(prepared.launch, backend_->Prepare(args));
    }
    if (instruction.fresh != 0) {
      args.accumulate &= ~instruction.fresh;
      ASSIGN_OR_RETURN(prepared.first, backend_->Prepare(std::move(args)));
    }
    return prepared;
  }
  backend::CollectiveArgs args{.instruction = &instruction,
                               .group = plan_.mesh.Group(rank_, instruction.group),
                               .index = plan_.mesh.IndexInGroup(coordinates_, instruction.group),
                               .input = View(instruction.inputs[0], chunk, slot),
                               .output = View(instruction.outputs[0], chunk, slot),
                               .member_inputs = {},
                               .member_outputs = {},
                               .scratch = Scratch(instruction, chunk, slot)};
  if (!instruction.flat) {
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

absl::Status RankExecutor::PrepareSegments() {
  for (const plan::Segment& segment : stage_.segments) {
    const Chunk* chunk = ChunkAt(segment.chunk);
    const auto index = static_cast<std::int32_t>(prepared_.size());
    const bool slots = chunk != nullptr && index != chunk->evaluate;
    std::vector<std::vector<Prepared>> by_slot(slots ? static_cast<size_t>(chunk->slots) : 1);
    for (size_t slot = 0; slot < by_slot.size(); ++slot) {
      for (const Instruction& instruction : segment.instructions) {
        const bool skipped = std::any_of(graph::kAxes.begin(), graph::kAxes.end(), [&](plan::Axis axis) {
          return instruction.only_first.Has(axis) && coordinates_.axis[static_cast<size_t>(axis)] != 0;
        });
        Prepared prepared;
        prepared.instruction = &instruction;
        prepared.left_out = skipped;
        const bool other_lanes = instruction.joint && static_cast<std::int64_t>(slot) % plan_.lanes != 0;
        if (!skipped && !other_lanes) {
          ASSIGN_OR_RETURN(
              prepared, PrepareInstruction(instruction, chunk, slots ? static_cast<std::int64_t>(slot) : -1));
        }
        by_slot[slot].push_back(std::move(prepared));
      }
    }
    prepared_.push_back(std::move(by_slot));
  }
  return absl::OkStatus();
}

absl::Status RankExecutor::PrepareTransfers() {
  for (const bool evaluate : {false, true}) {
    const auto program_of = [evaluate](const plan::StagePlan& stage) -> const plan::Program& {
      return evaluate ? stage.evaluate : stage.train;
    };
    const plan::Program& program = program_of(stage_);
    std::vector<std::int64_t>& targets = evaluate ? evaluate_targets_ : train_targets_;
    targets.assign(program.size(), -1);
    // By transfer and microbatch: where its receiver wants it.
    absl::flat_hash_map<std::pair<std::int32_t, std::int32_t>, std::int64_t> wanted;
    for (const plan::StagePlan& stage : plan_.stages) {
      for (const Step& step : program_of(stage)) {
        if (step.kind != StepKind::kReceive) continue;
        const std::int64_t offset = OffsetOf(step.buffer, stage, ChunkOf(stage, step.chunk), step.slot);
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

absl::Status RankExecutor::FillIncoming(bool evaluate, const FeedFunction& feed) {
  for (const Chunk& chunk : stage_.chunks) {
    std::vector<std::int32_t> host(static_cast<size_t>(chunk.incoming.elements));
    std::int32_t* at = host.data();
    const std::vector<BufferRef>& inputs = evaluate ? chunk.evaluation_inputs : chunk.inputs;
    for (std::int64_t microbatch = 0; microbatch < plan_.microbatches; ++microbatch) {
      for (const BufferRef& ref : inputs) {
        TensorView view = View(ref, &chunk, ref.in_slot ? 0 : -1);
        view.data = at;
        RETURN_IF_ERROR(feed(plan_.values[static_cast<size_t>(ref.value)].name, microbatch, view));
        at += ref.elements;
      }
    }
    const std::int64_t bytes = (at - host.data()) * static_cast<std::int64_t>(sizeof(std::int32_t));
    if (bytes > 0) RETURN_IF_ERROR(backend_->Stage(Address(chunk.incoming, nullptr, -1), host.data(), bytes));
  }
  return absl::OkStatus();
}

absl::Status RankExecutor::TakeIncoming() {
  for (const Chunk& chunk : stage_.chunks) {
    if (chunk.incoming.elements == 0) continue;
    RETURN_IF_ERROR(backend_->TakeStaged(Address(chunk.staged, nullptr, -1),
                                         Address(chunk.incoming, nullptr, -1), chunk.incoming.bytes()));
  }
  return absl::OkStatus();
}

absl::Status RankExecutor::TakeInputs(const Step& step, bool evaluate) {
  const Chunk* chunk = ChunkAt(step.chunk);
  if (chunk == nullptr || (!evaluate && step.segment != chunk->forward)) return absl::OkStatus();
  const std::vector<BufferRef>& inputs = evaluate ? chunk->evaluation_inputs : chunk->inputs;
  std::int64_t elements = 0;
  for (const BufferRef& ref : inputs) elements += ref.elements;
  const std::byte* from =
      Address(chunk->staged, nullptr, -1) + step.microbatch * elements * SizeOf(DType::kI32);
  for (const BufferRef& ref : inputs) {
    RETURN_IF_ERROR(backend_->Copy(Address(ref, chunk, step.slot), from, ref.bytes()));
    from += ref.bytes();
  }
  return absl::OkStatus();
}

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
  ASSIGN_OR_RETURN(const std::int64_t exchanged, backend_->Signal(plan::kExchangeStream));
  RETURN_IF_ERROR(backend_->Await(plan::kComputeStream, exchanged));
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
  const bool computes = (*joint->prepared)[joint->next].instruction->stream == plan::kComputeStream;
  for (Lane& lane : lanes) {
    if (computes) RETURN_IF_ERROR(FinishExchange(&lane, joint->next));
  }
  return Advance(joint);
}

// The lane's next instruction.
absl::Status RankExecutor::Advance(Lane* lane) {
  const Prepared& prepared = (*lane->prepared)[lane->next++];
  const Instruction& instruction = *prepared.instruction;
  if (!instruction.RunsIn(lane->step->microbatch, plan_.microbatches)) return absl::OkStatus();
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

absl::Status RankExecutor::RunSegment(std::span<const Step> steps, bool evaluate,
                                      const KernelContext& context) {
  std::vector<Lane> lanes;
  for (const Step& step : steps) {
    RETURN_IF_ERROR(TakeInputs(step, evaluate));
    const auto& by_slot = prepared_[static_cast<size_t>(step.segment)];
    Lane& lane = lanes.emplace_back();
    lane.step = &step;
    lane.prepared = &by_slot[by_slot.size() == 1 ? 0 : static_cast<size_t>(step.slot)];
    lane.context = context;
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

absl::Status RankExecutor::RunStep(std::span<const Step> steps, std::int64_t index, bool evaluate,
                                   const KernelContext& context) {
  const Step& step = steps.front();
  if (step.kind == StepKind::kRun) return RunSegment(steps, evaluate, context);
  const plan::Transfer& transfer = plan_.transfers[static_cast<size_t>(step.transfer)];
  std::byte* data = Address(step.buffer, ChunkAt(step.chunk), step.slot);
  if (step.kind == StepKind::kReceive) {
    RETURN_IF_ERROR(communicator_->Receive(PeerOf(transfer.from_chunk), step.transfer, data,
                                           step.buffer.bytes(), step.stream));
    return Mark(step.stream, Part::kRun, nullptr, &step);
  }
  const auto i = static_cast<size_t>(index);
  const std::int64_t there = evaluate ? evaluate_targets_[i] : train_targets_[i];
  ASSIGN_OR_RETURN(tickets_[i], communicator_->Send(PeerOf(transfer.to_chunk), step.transfer, data,
                                                    step.buffer.bytes(), step.stream, there));
  return Mark(step.stream, Part::kRun, nullptr, &step);
}

// Every other stream starts after what the compute stream holds, and the compute stream goes on after all.
absl::Status RankExecutor::ForkStreams() {
  ASSIGN_OR_RETURN(const std::int64_t begun, backend_->Signal(plan::kComputeStream));
  for (std::int32_t stream = 1; stream < plan::kStreams; ++stream) {
    RETURN_IF_ERROR(backend_->Await(stream, begun));
  }
  return absl::OkStatus();
}

absl::Status RankExecutor::JoinStreams() {
  for (std::int32_t stream = 1; stream < plan::kStreams; ++stream) {
    ASSIGN_OR_RETURN(const std::int64_t ended, backend_->Signal(stream));
    RETURN_IF_ERROR(backend_->Await(plan::kComputeStream, ended));
  }
  return absl::OkStatus();
}

// Whether the program uses other streams than that of computation.
bool RankExecutor::HasStreams(const plan::Program& program) const {
  return std::any_of(program.begin(), program.end(), [&](const Step& step) {
    if (step.kind != StepKind::kRun) return step.stream != plan::kComputeStream;
    const auto& instructions = stage_.segments[static_cast<size_t>(step.segment)].instructions;
    return std::any_of(instructions.begin(), instructions.end(),
                       [](const Instruction& i) { return i.stream != plan::kComputeStream; });
  });
}

// Whether kernels are so long on the average that the host launches faster than a GPU runs them. What runs
// beside computation then does so sooner than as a branch of a graph (docs/performance.md).
bool RankExecutor::LaunchesKeepAhead(const plan::Program& program) const {
  constexpr double kFlops = 2e10;  // of a launch: 30 µs of an H200
  double flops = 0;
  double launches = 0;
  for (const Step& step : program) {
    if (step.kind != StepKind::kRun) continue;
    const plan::Segment& segment = stage_.segments[static_cast<size_t>(step.segment)];
    flops += segment.flops;
    launches += static_cast<double>(segment.instructions.size());
  }
  return HasStreams(program) && flops > kFlops * launches;
}

absl::Status RankExecutor::RunProgram(const plan::Program& program, bool evaluate,
                                      const KernelContext& context) {
  tickets_.assign(program.size(), 0);
  detached_.clear();
  std::vector<std::int64_t> signals(program.size(), -1);
  std::vector<bool> awaited(program.size(), false);
  const bool streams = HasStreams(program);
  for (const Step& step : program) {
    for (std::int32_t wait : step.waits) awaited[static_cast<size_t>(wait)] = true;
  }
  const auto wait_sent = [&](size_t index) {
    const Step& step = program[index];
    const plan::Transfer& transfer = plan_.transfers[static_cast<size_t>(step.transfer)];
    return communicator_->WaitSent(PeerOf(transfer.to_chunk), step.transfer, tickets_[index]);
  };
  if (streams) RETURN_IF_ERROR(ForkStreams());
  for (size_t i = 0; i < program.size();) {
    size_t end = i + 1;
    while (program[end - 1].paired) ++end;
    const std::span<const Step> steps(&program[i], end - i);
    // Where steps run one after another, the only waits left are those for sends, which go on behind them.
    for (const Step& step : steps) {
      for (std::int32_t wait : step.waits) {
        const size_t before = static_cast<size_t>(wait);
        if (program[before].kind == StepKind::kSend) RETURN_IF_ERROR(wait_sent(before));
        RETURN_IF_ERROR(backend_->Await(step.stream, signals[before]));
      }
      const bool computes = step.kind == StepKind::kRun;
      if (computes && step.waits.empty()) continue;
      RETURN_IF_ERROR(
          Mark(step.stream, computes ? std::optional(Part::kWait) : std::nullopt, nullptr, &step));
    }
    const bool updates = !evaluate && steps.front().segment == stage_.update;
    if (updates && Timed()) RETURN_IF_ERROR(backend_->NoteTime(backend::kUpdateBegins));
    // The update reads gradients that were reduced behind the backward passes.
    if (streams && updates) RETURN_IF_ERROR(JoinExchange());
    RETURN_IF_ERROR(RunStep(steps, static_cast<std::int64_t>(i), evaluate, context));
    for (; i < end; ++i) {
      if (!awaited[i]) continue;
      ASSIGN_OR_RETURN(signals[i], backend_->Signal(program[i].stream));
    }
  }
  for (size_t i = 0; i < program.size(); ++i) {
    if (program[i].kind == StepKind::kSend) RETURN_IF_ERROR(wait_sent(i));
  }
  return streams ? JoinStreams() : absl::OkStatus();
}

// What the host says during a program must not be recorded, and exchange may go through the host.
absl::Status RankExecutor::RunOrReplay(bool evaluate, const KernelContext& context) {
  Recorded& recorded = evaluate ? evaluate_ : train_;
  const plan::Program& program = evaluate ? stage_.evaluate : stage_.train;
  const bool record = options_.record && !options_.check && !LaunchesKeepAhead(program) &&
                      (plan_.mesh.world() == 1 || communicator_->recordable());
  if (record && recorded.ran && recorded.launch == nullptr) {
    ASSIGN_OR_RETURN(recorded.launch,
                     backend_->Record([&] { return RunProgram(program, evaluate, context); }));
  }
  recorded.ran = true;
  return recorded.launch != nullptr ? recorded.launch->Run(context) : RunProgram(program, evaluate, context);
}

KernelContext RankExecutor::Context(std::int64_t iteration) const {
  KernelContext context;
  context.control = reinterpret_cast<const double*>(arena_ + stage_.control.offset);
  context.seed = seed_;
  context.iteration = static_cast<std::uint64_t>(iteration);
  return context;
}

void RankExecutor::Prefetch(FeedFunction feed) {
  prefetch_ =
      std::async(std::launch::async, [this, feed = std::move(feed)] { return FillIncoming(false, feed); });
}

absl::Status RankExecutor::SetSteps(std::int64_t steps) {
  const double value = static_cast<double>(steps);
  return backend_->Write(Address(stage_.control, nullptr, -1) + plan::kStep * sizeof(double), &value,
                         sizeof(value));
}

absl::Status RankExecutor::Launch(std::int64_t iteration, const LearningRates& rates,
                                  const FeedFunction& feed) {
  ENGINE_CHECK(started_.size() < 2, "{} iterations are started already", started_.size());
  if (Timed()) RETURN_IF_ERROR(backend_->NoteTime(backend::kIterationBegins));
  RETURN_IF_ERROR(prefetch_.valid() ? prefetch_.get() : FillIncoming(false, feed));
  RETURN_IF_ERROR(TakeIncoming());
  std::byte* const control = Address(stage_.control, nullptr, -1);
  const double number = static_cast<double>(iteration);
  RETURN_IF_ERROR(backend_->Write(control + plan::kIteration * sizeof(double), &number, sizeof(number)));
  static_assert(plan::kRateIfKnown == plan::kKnownSteps + 1 && plan::kRateIfMore == plan::kKnownSteps + 2);
  const double offer[3] = {static_cast<double>(rates.known_steps), rates.if_known, rates.if_more};
  RETURN_IF_ERROR(backend_->Write(control + plan::kKnownSteps * sizeof(double), offer, sizeof(offer)));
  RETURN_IF_ERROR(RunOrReplay(false, Context(iteration)));
  Results results;
  ASSIGN_OR_RETURN(results.scalars,
                   backend_->Read(Address(stage_.scalars, nullptr, -1), stage_.scalars.bytes()));
  ASSIGN_OR_RETURN(results.control, backend_->Read(control, stage_.control.bytes()));
  if (Timed()) {
    ASSIGN_OR_RETURN(results.times, backend_->ReadTimes());
  }
  started_.push_back(results);
  return absl::OkStatus();
}

absl::StatusOr<IterationResult> RankExecutor::Wait() {
  ENGINE_CHECK(!started_.empty(), "no iteration is started");
  const Results results = started_.front();
  started_.pop_front();
  double scalars[2] = {};
  double control[plan::kControlNumbers] = {};
  RETURN_IF_ERROR(backend_->WaitRead(results.scalars, scalars));
  RETURN_IF_ERROR(backend_->WaitRead(results.control, control));
  std::int64_t times_ns[backend::kStamps] = {};
  if (Timed()) RETURN_IF_ERROR(backend_->WaitRead(results.times, times_ns));
  constexpr double kNsPerMs = 1e6;
  return IterationResult{
      .loss_sum = scalars[0],
      .grad_norm = control[plan::kGradientNorm],
      .learning_rate = control[plan::kLearningRate],
      .steps = static_cast<std::int64_t>(control[plan::kStep]),
      .skipped = static_cast<std::int64_t>(control[plan::kSkipped]),
      .loss_scale = control[plan::kLossScale],
      .busy_ms = static_cast<double>(times_ns[backend::kUpdateBegins] - times_ns[backend::kIterationBegins]) /
                 kNsPerMs};
}

absl::StatusOr<IterationResult> RankExecutor::Train(std::int64_t iteration, std::int64_t step,
                                                    const LearningRates& rates, const FeedFunction& feed) {
  RETURN_IF_ERROR(SetSteps(step - 1));
  RETURN_IF_ERROR(Launch(iteration, rates, feed));
  return Wait();
}

absl::StatusOr<std::vector<InstructionTiming>> RankExecutor::Profile(std::int64_t iteration,
                                                                     const LearningRates& rates,
                                                                     const FeedFunction& feed) {
  std::vector<Marked> marked;
  Recorded recorded = std::move(train_);
  train_ = {};
  marked_ = &marked;
  ASSIGN_OR_RETURN(const std::int64_t start, backend_->Mark(plan::kComputeStream));
  const absl::Status status = Launch(iteration, rates, feed);
  marked_ = nullptr;
  train_ = std::move(recorded);
  RETURN_IF_ERROR(status);
  std::vector<InstructionTiming> timings;
  std::array<double, plan::kStreams> before = {};
  for (Marked& mark : marked) {
    double& begin = before[static_cast<size_t>(mark.stream)];
    ASSIGN_OR_RETURN(const double end, backend_->ElapsedMs(start, mark.after));
    if (mark.timing) {
      mark.timing->begin_ms = begin;
      mark.timing->end_ms = end;
      timings.push_back(*mark.timing);
    }
    begin = end;
  }
  return timings;
}

absl::StatusOr<IterationResult> RankExecutor::Evaluate(const FeedFunction& feed) {
  RETURN_IF_ERROR(FillIncoming(true, feed));
  RETURN_IF_ERROR(TakeIncoming());
  RETURN_IF_ERROR(RunOrReplay(true, Context(0)));
  double scalars[2] = {};
  ASSIGN_OR_RETURN(const std::int64_t ticket,
                   backend_->Read(Address(stage_.scalars, nullptr, -1), stage_.scalars.bytes()));
  RETURN_IF_ERROR(backend_->WaitRead(ticket, scalars));
  IterationResult result;
  result.loss_sum = scalars[0];
  return result;
}

std::vector<LocalTensor> RankExecutor::Parameters() const {
  std::vector<LocalTensor> tensors;
  for (const plan::Bucket& bucket : stage_.buckets) {
    for (const plan::Bucket::Item& item : bucket.items) {
      BufferRef ref = bucket.parameter;
      ref.value = plan_.parameters[static_cast<size_t>(item.parameter)].value;
      ref.offset += item.offset_elements * SizeOf(ref.dtype);
      tensors.push_back({item.parameter, View(ref, nullptr, -1)});
      if (bucket.parameter_shard.elements > 0) tensors.back().view.data = nullptr;
    }
  }
  return tensors;
}

std::vector<OptimizerRange> RankExecutor::OptimizerState() const {
  std::vector<OptimizerRange> ranges;
  for (const plan::Bucket& bucket : stage_.buckets) {
    const std::int64_t shard = bucket.shards > 1 ? plan_.mesh.IndexInGroup(coordinates_, bucket.reduce) : 0;
    const std::int64_t shard_begin = shard * bucket.shard_elements();
    const std::int64_t shard_end = shard_begin + bucket.shard_elements();
    for (const plan::Bucket::Item& item : bucket.items) {
      const std::int64_t begin = std::max(item.offset_elements, shard_begin);
      const std::int64_t end = std::min(item.offset_elements + item.elements, shard_end);
      if (begin >= end) continue;
      const std::int64_t at = begin - shard_begin;
      const DType moments = bucket.moment1.dtype;
      const bool gradient_shard = bucket.gradient_shard.elements > 0;
      const BufferRef& gradient = gradient_shard ? bucket.gradient_shard : bucket.gradient;
      ranges.push_back(
          {.parameter = item.parameter,
           .begin = begin - item.offset_elements,
           .end = end - item.offset_elements,
           .master = bucket.master.elements > 0 ? arena_ + bucket.master.offset + at * SizeOf(DType::kF32)
                                                : nullptr,
           .moment1 = arena_ + bucket.moment1.offset + at * SizeOf(moments),
           .moment2 = arena_ + bucket.moment2.offset + at * SizeOf(moments),
           .moment_dtype = moments,
           .gradient = arena_ + gradient.offset + (gradient_shard ? at : begin) * SizeOf(gradient.dtype),
           .gradient_dtype = gradient.dtype,
           .weights = bucket.parameter_shard.elements > 0
                          ? Address(bucket.parameter_shard, nullptr, -1) + at * SizeOf(bucket.parameter_dtype)
                          : nullptr,
           .weight_dtype = bucket.parameter_dtype});
    }
  }
  return ranges;
}

TensorView RankExecutor::Logits() const { return View(plan_.logits_buffer, nullptr, -1); }

}  // namespace engine::executor
