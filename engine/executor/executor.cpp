#include "engine/executor/executor.h"

#include <algorithm>

namespace engine::executor {

using backend::KernelContext;
using backend::Launch;
using backend::TensorView;
using plan::BufferRef;
using plan::Chunk;
using plan::Instruction;
using plan::Step;
using plan::StepKind;

struct RankExecutor::Prepared {
  const Instruction* instruction = nullptr;
  std::unique_ptr<Launch> launch;
};

RankExecutor::RankExecutor(const plan::Plan& plan, std::int64_t rank)
    : plan_(plan),
      rank_(rank),
      coordinates_(plan.mesh.CoordinatesOf(rank)),
      stage_(plan.stages[static_cast<size_t>(coordinates_.pp)]) {}

RankExecutor::~RankExecutor() = default;

absl::StatusOr<std::unique_ptr<RankExecutor>> RankExecutor::Create(
    const plan::Plan& plan, std::int64_t rank, std::unique_ptr<backend::Backend> backend,
    std::unique_ptr<backend::Communicator> communicator, std::uint64_t seed) {
  std::unique_ptr<RankExecutor> executor(new RankExecutor(plan, rank));
  executor->backend_ = std::move(backend);
  executor->communicator_ = std::move(communicator);
  executor->seed_ = seed;
  ASSIGN_OR_RETURN(executor->arena_, executor->backend_->AllocateArena(executor->stage_.arena_bytes));
  RETURN_IF_ERROR(executor->PrepareSegments());
  return executor;
}

const Chunk* RankExecutor::ChunkAt(std::int32_t index) const {
  for (const Chunk& chunk : stage_.chunks) {
    if (chunk.index == index) return &chunk;
  }
  return nullptr;
}

std::byte* RankExecutor::Address(const BufferRef& ref, const Chunk* chunk, std::int64_t slot) const {
  std::int64_t offset = ref.offset;
  if (ref.in_slot) {
    ENGINE_CHECK(chunk != nullptr && slot >= 0 && slot < chunk->slots, "slot {} of no chunk", slot);
    offset += chunk->slot_base + slot * chunk->slot_bytes;
  }
  if (!ref.shard_axes.empty())
    offset += plan_.mesh.IndexInGroup(coordinates_, ref.shard_axes) * ref.shard_stride;
  return arena_ + offset;
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

absl::StatusOr<RankExecutor::Prepared> RankExecutor::PrepareInstruction(const Instruction& instruction,
                                                                        const Chunk* chunk,
                                                                        std::int64_t slot) {
  Prepared prepared{.instruction = &instruction, .launch = nullptr};
  if (instruction.collective == plan::Collective::kNone) {
    backend::LaunchArgs args{.instruction = &instruction, .inputs = {}, .outputs = {}, .scratch = {}};
    for (const BufferRef& ref : instruction.inputs) args.inputs.push_back(View(ref, chunk, slot));
    for (const BufferRef& ref : instruction.outputs) args.outputs.push_back(View(ref, chunk, slot));
    if (instruction.scratch.elements > 0) {
      args.scratch = {Address(instruction.scratch, chunk, slot),
                      static_cast<size_t>(instruction.scratch.elements)};
    }
    ASSIGN_OR_RETURN(prepared.launch, backend_->Prepare(std::move(args)));
    return prepared;
  }
  backend::CollectiveArgs args{.instruction = &instruction,
                               .group = plan_.mesh.Group(rank_, instruction.group),
                               .index = plan_.mesh.IndexInGroup(coordinates_, instruction.group),
                               .input = View(instruction.inputs[0], chunk, slot),
                               .output = View(instruction.outputs[0], chunk, slot),
                               .member_inputs = {}};
  if (!instruction.flat) {
    const plan::LocalValue& input = plan_.values[static_cast<size_t>(instruction.inputs[0].value)];
    for (std::int64_t member : args.group) {
      args.member_inputs.push_back(
          input.layout.ExtentOf(input.shape, plan_.mesh, plan_.mesh.CoordinatesOf(member)));
    }
  }
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
        if (skipped) continue;
        ASSIGN_OR_RETURN(Prepared prepared, PrepareInstruction(instruction, chunk,
                                                               slots ? static_cast<std::int64_t>(slot) : -1));
        by_slot[slot].push_back(std::move(prepared));
      }
    }
    prepared_.push_back(std::move(by_slot));
  }
  return absl::OkStatus();
}

std::int64_t RankExecutor::PeerOf(std::int32_t chunk) const {
  plan::Coordinates peer = coordinates_;
  peer.pp = plan_.chunk_stage[static_cast<size_t>(chunk)];
  return plan_.mesh.RankOf(peer);
}

absl::Status RankExecutor::Feed(const Step& step, bool evaluate, const FeedFunction& feed) {
  const Chunk* chunk = ChunkAt(step.chunk);
  if (chunk == nullptr || (!evaluate && step.segment != chunk->forward)) return absl::OkStatus();
  for (const BufferRef& ref : evaluate ? chunk->evaluation_inputs : chunk->inputs) {
    const TensorView device = View(ref, chunk, step.slot);
    host_input_.resize(static_cast<size_t>(ref.elements));
    TensorView host = device;
    host.data = host_input_.data();
    RETURN_IF_ERROR(feed(plan_.values[static_cast<size_t>(ref.value)].name, step.microbatch, host));
    RETURN_IF_ERROR(backend_->Upload(static_cast<std::byte*>(device.data), host.data, ref.bytes()));
  }
  return absl::OkStatus();
}

absl::Status RankExecutor::RunSegment(const Step& step, bool evaluate, const KernelContext& context,
                                      const FeedFunction& feed) {
  RETURN_IF_ERROR(Feed(step, evaluate, feed));
  KernelContext of_microbatch = context;
  of_microbatch.first_sample = std::max(step.microbatch, 0) * plan_.microbatch_samples;
  const auto& by_slot = prepared_[static_cast<size_t>(step.segment)];
  for (const Prepared& prepared : by_slot[by_slot.size() == 1 ? 0 : static_cast<size_t>(step.slot)]) {
    if (absl::Status status = prepared.launch->Run(of_microbatch); !status.ok()) {
      return WithContext(status, fmt::format("rank {}, {} of microbatch {}", rank_,
                                             prepared.instruction->name, step.microbatch));
    }
  }
  return absl::OkStatus();
}

absl::Status RankExecutor::RunStep(const Step& step, std::int64_t index, bool evaluate,
                                   const KernelContext& context, const FeedFunction& feed) {
  if (step.kind == StepKind::kRun) return RunSegment(step, evaluate, context, feed);
  const plan::Transfer& transfer = plan_.transfers[static_cast<size_t>(step.transfer)];
  std::byte* data = Address(step.buffer, ChunkAt(step.chunk), step.slot);
  if (step.kind == StepKind::kReceive) {
    return communicator_->Receive(PeerOf(transfer.from_chunk), step.transfer, data, step.buffer.bytes());
  }
  ASSIGN_OR_RETURN(tickets_[static_cast<size_t>(index)],
                   communicator_->Send(PeerOf(transfer.to_chunk), step.transfer, data, step.buffer.bytes()));
  return absl::OkStatus();
}

absl::Status RankExecutor::RunProgram(const plan::Program& program, bool evaluate,
                                      const KernelContext& context, const FeedFunction& feed) {
  tickets_.assign(program.size(), 0);
  const auto wait_sent = [&](size_t index) {
    const Step& step = program[index];
    const plan::Transfer& transfer = plan_.transfers[static_cast<size_t>(step.transfer)];
    return communicator_->WaitSent(PeerOf(transfer.to_chunk), step.transfer, tickets_[index]);
  };
  for (size_t i = 0; i < program.size(); ++i) {
    // Steps run one after another here, so the only waits left are those for sends, which go on behind them.
    for (std::int32_t wait : program[i].waits) {
      if (program[static_cast<size_t>(wait)].kind == StepKind::kSend) {
        RETURN_IF_ERROR(wait_sent(static_cast<size_t>(wait)));
      }
    }
    RETURN_IF_ERROR(RunStep(program[i], static_cast<std::int64_t>(i), evaluate, context, feed));
  }
  for (size_t i = 0; i < program.size(); ++i) {
    if (program[i].kind == StepKind::kSend) RETURN_IF_ERROR(wait_sent(i));
  }
  return backend_->Synchronize();
}

absl::StatusOr<IterationResult> RankExecutor::Train(std::int64_t iteration, std::int64_t step,
                                                    double learning_rate, const FeedFunction& feed) {
  const double control[2] = {learning_rate, static_cast<double>(step)};
  std::byte* control_data = Address(stage_.control, nullptr, -1);
  RETURN_IF_ERROR(backend_->Upload(control_data, control, sizeof(control)));
  KernelContext context;
  context.seed = seed_;
  context.iteration = static_cast<std::uint64_t>(iteration);
  RETURN_IF_ERROR(RunProgram(stage_.train, false, context, feed));
  IterationResult result;
  double out[4] = {};
  RETURN_IF_ERROR(backend_->Download(out, control_data, sizeof(out)));
  result.grad_norm = out[2];
  RETURN_IF_ERROR(backend_->Download(&result.loss_sum, Address(stage_.scalars, nullptr, -1), sizeof(double)));
  return result;
}

absl::StatusOr<IterationResult> RankExecutor::Evaluate(const FeedFunction& feed) {
  KernelContext context;
  context.seed = seed_;
  RETURN_IF_ERROR(RunProgram(stage_.evaluate, true, context, feed));
  IterationResult result;
  RETURN_IF_ERROR(backend_->Download(&result.loss_sum, Address(stage_.scalars, nullptr, -1), sizeof(double)));
  return result;
}

std::vector<LocalTensor> RankExecutor::Tensors(BufferRef plan::Bucket::*buffer,
                                               std::int32_t plan::PlanParameter::*value) const {
  std::vector<LocalTensor> tensors;
  for (const plan::Bucket& bucket : stage_.buckets) {
    for (const plan::Bucket::Item& item : bucket.items) {
      BufferRef ref = bucket.*buffer;
      ref.value = plan_.parameters[static_cast<size_t>(item.parameter)].*value;
      ref.offset += item.offset_elements * SizeOf(ref.dtype);
      tensors.push_back({item.parameter, View(ref, nullptr, -1)});
    }
  }
  return tensors;
}

std::vector<LocalTensor> RankExecutor::Parameters() const {
  return Tensors(&plan::Bucket::parameter, &plan::PlanParameter::value);
}

std::vector<LocalTensor> RankExecutor::Gradients() const {
  return Tensors(&plan::Bucket::gradient, &plan::PlanParameter::gradient);
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
      const std::int64_t at = (begin - shard_begin) * SizeOf(DType::kF32);
      ranges.push_back({item.parameter, begin - item.offset_elements, end - item.offset_elements,
                        arena_ + bucket.moment1.offset + at, arena_ + bucket.moment2.offset + at});
    }
  }
  return ranges;
}

TensorView RankExecutor::Logits() const { return View(plan_.logits_buffer, nullptr, -1); }

}  // namespace engine::executor
