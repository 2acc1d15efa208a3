#include "engine/executor/executor.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include "engine/executor/prepared.h"
#include "engine/executor/streams.h"
#include "engine/plan/control.h"

namespace engine::executor {

using backend::KernelContext;
using backend::TensorView;
using plan::BufferRef;
using plan::Chunk;
using plan::Step;
using plan::StepKind;
using Part = InstructionTiming::Part;

RankExecutor::RankExecutor(const plan::Plan& plan, std::int64_t rank) : RankState(plan, rank, nullptr) {}

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
  if (options.trace) RETURN_IF_ERROR(executor->StartTrace());
  if (const std::int64_t bytes = executor->stage_.host_bytes; bytes > 0) {
    ASSIGN_OR_RETURN(executor->host_, executor->backend_->AllocateHost(bytes));
  }
  executor->snapshot_ = std::make_unique<Snapshot>(
      *executor->backend_, executor->PartsOf(plan::SnapshotOf(executor->stage_, executor->coordinates_)));
  executor->memory_checkpoint_ = std::make_unique<MemoryCheckpoint>(
      *executor->backend_, executor->PartsOf(plan::StateOf(executor->stage_)));
  RETURN_IF_ERROR(executor->PrepareSegments());
  RETURN_IF_ERROR(executor->PrepareTransfers());
  if (absl::Status status = executor->communicator_->Connect(); !status.ok()) {
    // Left as it is: to take down what another rank was to be in can wait for that one.
    if (executor->backend_->asynchronous()) static_cast<void>(executor.release());
    return status;
  }
  RETURN_IF_ERROR(executor->backend_->ClearArena());
  RETURN_IF_ERROR(executor->StartControl());
  return executor;
}

std::vector<StatePart> RankExecutor::PartsOf(const std::vector<plan::SnapshotPart>& planned) const {
  std::vector<StatePart> parts;
  parts.reserve(planned.size());
  for (const plan::SnapshotPart& part : planned) {
    parts.push_back({.copy = {.arena = Address(part.buffer, nullptr, -1), .bytes = part.buffer.bytes()},
                     .at_once = part.at_once});
  }
  return parts;
}

absl::Status RankExecutor::StartTrace() {
  std::int64_t most = 0;  // what a program gives and gets
  for (const plan::Program& program : stage_.programs) {
    std::int64_t times = 0;
    for (const Step& step : program) {
      if (step.kind != StepKind::kRun) {
        ++times;
        continue;
      }
      const auto& instructions = stage_.segments[static_cast<size_t>(step.segment)].instructions;
      times +=
          2 * std::ranges::count_if(instructions, [](const plan::Instruction& i) { return i.Exchanges(); });
    }
    most = std::max(most, times);
  }
  if (most == 0) return absl::OkStatus();  // one rank
  RETURN_IF_ERROR(backend_->PrepareHashes(most));
  auto trace = std::make_unique<TracingCommunicator>(std::move(communicator_), plan_, backend_.get(), most);
  trace_ = trace.get();
  communicator_ = std::move(trace);
  return absl::OkStatus();
}

absl::Status RankExecutor::StartControl() {
  double control[plan::kControlNumbers];
  plan::StartControl(plan_.loss_scaler, control);
  RETURN_IF_ERROR(backend_->Upload(Address(stage_.control, nullptr, -1), control, sizeof(control)));
  for (const plan::State& state : stage_.states) RETURN_IF_ERROR(StartState(state));
  return absl::OkStatus();
}

absl::Status RankExecutor::Restart() {
  ENGINE_CHECK(started_.empty(), "{} iterations have not been waited for", started_.size());
  WaitForPrefetch();
  prefetch_ = {};
  for (const OptimizerRange& range : OptimizerState()) {
    for (const OptimizerRange::State& state : range.states)
      RETURN_IF_ERROR(Clear(state.data, (range.end - range.begin) * SizeOf(state.dtype)));
  }
  return StartControl();
}

absl::Status RankExecutor::Clear(std::byte* data, std::int64_t bytes) {
  constexpr std::int64_t kAtOnce = std::int64_t{16} << 20;
  const std::vector<std::byte> zeros(static_cast<size_t>(std::min(bytes, kAtOnce)));
  for (std::int64_t at = 0; at < bytes; at += kAtOnce)
    RETURN_IF_ERROR(backend_->Upload(data + at, zeros.data(), std::min(kAtOnce, bytes - at)));
  return absl::OkStatus();
}

absl::Status RankExecutor::StartState(const plan::State& state) {
  const std::vector<double>& fill = state.spec.fill;
  if (fill.empty()) return Clear(Address(state.buffer, nullptr, -1), state.buffer.bytes());
  std::vector<std::byte> host(static_cast<size_t>(state.buffer.bytes()));
  for (size_t i = 0; i < static_cast<size_t>(state.buffer.elements); ++i) {
    const double number = fill[i % fill.size()];
    if (state.buffer.dtype == DType::kF64) {
      reinterpret_cast<double*>(host.data())[i] = number;
    } else {
      ENGINE_CHECK(state.buffer.dtype == DType::kF32, "a state of {}", Name(state.buffer.dtype));
      reinterpret_cast<float*>(host.data())[i] = static_cast<float>(number);
    }
  }
  return backend_->Upload(Address(state.buffer, nullptr, -1), host.data(), state.buffer.bytes());
}

std::int32_t RankExecutor::Resolve(std::int32_t program) const {
  return program == kLargest ? plan_.ProgramOf(plan::kTrainForm) : program;
}

absl::Status RankExecutor::Reach(Moment moment) {
  if (moment == Moment::kData) has_exchanged_ = false;
  return options_.on_moment ? options_.on_moment(*this, moment, iteration_) : absl::OkStatus();
}

absl::Status RankExecutor::ReachExchange() {
  return std::exchange(has_exchanged_, true) ? absl::OkStatus() : Reach(Moment::kExchange);
}

absl::Status RankExecutor::FillIncoming(std::int32_t program, const FeedFunction& feed) {
  const plan::ProgramSpec& spec = plan_.ProgramAt(program);
  for (const Chunk& chunk : stage_.chunks) {
    std::vector<std::int32_t> host(static_cast<size_t>(chunk.incoming.elements));  // words
    std::int32_t* at = host.data();
    std::vector<BufferRef> inputs = chunk.passes[spec.form].inputs;
    inputs.resize(inputs.size() / static_cast<size_t>(plan_.HalvesOf(spec.form)));  // of one microbatch
    for (std::int64_t microbatch = 0; microbatch < spec.microbatches; ++microbatch) {
      for (const BufferRef& ref : inputs) {
        TensorView view = View(ref, &chunk, ref.in_slot ? 0 : -1);
        view.data = at;
        RETURN_IF_ERROR(feed(plan_.values[static_cast<size_t>(ref.value)].name, microbatch, view));
        at += plan::StagedWords(ref.bytes());
      }
    }
    const std::int64_t bytes = (at - host.data()) * static_cast<std::int64_t>(sizeof(std::int32_t));
    if (bytes > 0) RETURN_IF_ERROR(backend_->Stage(Address(chunk.incoming, nullptr, -1), host.data(), bytes));
  }
  return absl::OkStatus();
}

absl::StatusOr<double> RankExecutor::ReadInputs(std::int32_t program, const Feed& feed) {
  RETURN_IF_ERROR(FillIncoming(program, feed.inputs));
  return feed.label_factor ? feed.label_factor() : 1.0;
}

absl::Status RankExecutor::TakeIncoming() {
  for (const Chunk& chunk : stage_.chunks) {
    if (chunk.incoming.elements == 0) continue;
    RETURN_IF_ERROR(backend_->TakeStaged(Address(chunk.staged, nullptr, -1),
                                         Address(chunk.incoming, nullptr, -1), chunk.incoming.bytes()));
  }
  return absl::OkStatus();
}

absl::Status RankExecutor::TakeInputs(const Step& step, plan::FormId form) {
  const Chunk* chunk = ChunkAt(step.chunk);
  if (chunk == nullptr || step.segment != chunk->passes[form].forward) return absl::OkStatus();
  const std::vector<BufferRef>& inputs = chunk->passes[form].inputs;
  const auto staged_bytes = [](const BufferRef& ref) {
    return plan::StagedWords(ref.bytes()) * SizeOf(DType::kI32);
  };
  std::int64_t bytes = 0;
  for (const BufferRef& ref : inputs) bytes += staged_bytes(ref);
  bytes /= plan_.HalvesOf(form);  // of one microbatch; the second half's is the next
  const std::byte* from = Address(chunk->staged, nullptr, -1) + step.microbatch * bytes;
  for (const BufferRef& ref : inputs) {
    RETURN_IF_ERROR(backend_->Copy(Address(ref, chunk, step.slot), from, ref.bytes()));
    from += staged_bytes(ref);
  }
  return absl::OkStatus();
}

absl::Status RankExecutor::KeepOutputs(const Step& step, plan::FormId form) {
  const Chunk* chunk = ChunkAt(step.chunk);
  if (form != plan::kEvaluateForm || chunk == nullptr || step.segment != chunk->passes[form].forward)
    return absl::OkStatus();
  const std::vector<BufferRef>& outputs = chunk->passes[form].outputs;
  std::int64_t bytes = 0;
  for (const BufferRef& ref : outputs) bytes += ref.bytes();
  std::byte* to = Address(chunk->kept, nullptr, -1) + step.microbatch * bytes;
  for (const BufferRef& ref : outputs) {
    RETURN_IF_ERROR(backend_->Copy(to, Address(ref, chunk, step.slot), ref.bytes()));
    to += ref.bytes();
  }
  return absl::OkStatus();
}

absl::Status RankExecutor::RunStep(const Step& step, std::int64_t index, const Running& running) {
  if (step.kind == StepKind::kRun) {
    RETURN_IF_ERROR(RunSegment(step, running));
    return KeepOutputs(step, running.spec.form);
  }
  RETURN_IF_ERROR(ReachExchange());
  const plan::Transfer& transfer = plan_.transfers[static_cast<size_t>(step.transfer)];
  std::byte* data = Address(step.buffer, ChunkAt(step.chunk), step.slot);
  if (step.kind == StepKind::kReceive) {
    RETURN_IF_ERROR(communicator_->Receive(PeerOf(transfer.from_chunk), step.transfer, data,
                                           step.buffer.bytes(), step.stream));
    return Mark(step.stream, Part::kRun, nullptr, &step);
  }
  const auto i = static_cast<size_t>(index);
  ASSIGN_OR_RETURN(tickets_[i], communicator_->Send(PeerOf(transfer.to_chunk), step.transfer, data,
                                                    step.buffer.bytes(), step.stream, running.targets[i]));
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

absl::Status RankExecutor::RunProgram(const Running& running) {
  const plan::Program& program = running.steps;
  const bool trains = plan_.FactsAt(running.spec.form).trains;
  tickets_.assign(program.size(), 0);
  detached_.clear();
  std::vector<std::int64_t> signals(program.size(), -1);
  std::vector<bool> awaited(program.size(), false);
  const bool streams = HasStreams(stage_, program);
  for (const Step& step : program) {
    for (std::int32_t wait : step.waits) awaited[static_cast<size_t>(wait)] = true;
  }
  const auto wait_sent = [&](size_t index) {
    const Step& step = program[index];
    const plan::Transfer& transfer = plan_.transfers[static_cast<size_t>(step.transfer)];
    return communicator_->WaitSent(PeerOf(transfer.to_chunk), step.transfer, tickets_[index]);
  };
  if (streams) RETURN_IF_ERROR(ForkStreams());
  for (size_t i = 0; i < program.size(); ++i) {
    const Step& step = program[i];
    // Where steps run one after another, the only waits left are those for sends, which go on behind them.
    for (std::int32_t wait : step.waits) {
      const size_t before = static_cast<size_t>(wait);
      if (program[before].kind == StepKind::kSend) RETURN_IF_ERROR(wait_sent(before));
      RETURN_IF_ERROR(backend_->Await(step.stream, signals[before]));
    }
    const bool computes = step.kind == StepKind::kRun;
    if (!computes || !step.waits.empty()) {
      RETURN_IF_ERROR(
          Mark(step.stream, computes ? std::optional(Part::kWait) : std::nullopt, nullptr, &step));
    }
    const bool updates = trains && step.segment == stage_.update();
    if (updates) {
      RETURN_IF_ERROR(Reach(Moment::kUpdate));
      RETURN_IF_ERROR(backend_->NoteTime(backend::kUpdateBegins));
      if (snapshot_->reserved() || memory_checkpoint_->is_open()) RETURN_IF_ERROR(backend_->AwaitSnapshot());
    }
    // The update reads gradients that were reduced behind the backward passes.
    if (streams && updates) RETURN_IF_ERROR(JoinExchange());
    RETURN_IF_ERROR(RunStep(step, static_cast<std::int64_t>(i), running));
    if (!awaited[i]) continue;
    ASSIGN_OR_RETURN(signals[i], backend_->Signal(step.stream));
  }
  for (size_t i = 0; i < program.size(); ++i) {
    if (program[i].kind == StepKind::kSend) RETURN_IF_ERROR(wait_sent(i));
  }
  if (!streams) return absl::OkStatus();
  if (trace_ != nullptr) RETURN_IF_ERROR(FinishDetached([](const plan::Instruction&) { return true; }));
  return JoinStreams();
}

// What the host says during a program must not be recorded, and exchange may go through the host.
absl::Status RankExecutor::RunOrReplay(std::int32_t program, const KernelContext& context) {
  const auto p = static_cast<size_t>(program);
  Recorded& recorded = recorded_[p];
  const Running running{plan_.programs[p], stage_.programs[p], targets_[p], context};
  const bool record = options_.record && !options_.check && !LaunchesKeepAhead(stage_, running.steps) &&
                      (plan_.mesh.world() == 1 || communicator_->recordable());
  if (record && recorded.ran && recorded.launch == nullptr) {
    ASSIGN_OR_RETURN(recorded.launch, backend_->Record([&] { return RunProgram(running); }));
  }
  recorded.ran = true;
  return recorded.launch != nullptr ? recorded.launch->Run(context) : RunProgram(running);
}

KernelContext RankExecutor::Context(std::int64_t iteration) const {
  KernelContext context;
  context.control = reinterpret_cast<const double*>(arena_ + stage_.control.offset);
  context.seed = seed_;
  context.iteration = static_cast<std::uint64_t>(iteration);
  return context;
}

void RankExecutor::Prefetch(Feed feed, std::int32_t program) {
  prefetched_ = Resolve(program);
  prefetch_ = std::async(std::launch::async,
                         [this, feed = std::move(feed)] { return ReadInputs(prefetched_, feed); });
}

absl::Status RankExecutor::SetSteps(std::int64_t steps) {
  const double value = static_cast<double>(steps);
  return backend_->Write(Address(stage_.control, nullptr, -1) + plan::kStep * sizeof(double), &value,
                         sizeof(value));
}

absl::Status RankExecutor::Launch(std::int64_t iteration, const LearningRates& rates, const Feed& feed,
                                  std::int32_t program) {
  program = Resolve(program);
  ENGINE_CHECK(started_.size() < 2, "{} iterations are started already", started_.size());
  ENGINE_CHECK(!prefetch_.valid() || prefetched_ == program, "inputs of another program were read ahead");
  RETURN_IF_ERROR(backend_->NoteTime(backend::kIterationBegins));
  iteration_ = iteration;
  const auto asked = std::chrono::steady_clock::now();
  RETURN_IF_ERROR(Reach(Moment::kData));
  ASSIGN_OR_RETURN(const double label_factor,
                   prefetch_.valid() ? prefetch_.get() : ReadInputs(program, feed));
  const std::chrono::duration<double, std::milli> waited = std::chrono::steady_clock::now() - asked;
  RETURN_IF_ERROR(Reach(Moment::kForward));
  RETURN_IF_ERROR(TakeIncoming());
  std::byte* const control = Address(stage_.control, nullptr, -1);
  const double number = static_cast<double>(iteration);
  RETURN_IF_ERROR(backend_->Write(control + plan::kIteration * sizeof(double), &number, sizeof(number)));
  static_assert(plan::kRateIfKnown == plan::kKnownSteps + 1 && plan::kRateIfMore == plan::kKnownSteps + 2);
  const double offer[3] = {static_cast<double>(rates.known_steps), rates.if_known, rates.if_more};
  RETURN_IF_ERROR(backend_->Write(control + plan::kKnownSteps * sizeof(double), offer, sizeof(offer)));
  const double factor = plan_.GradientFactor(program);
  RETURN_IF_ERROR(backend_->Write(control + plan::kGradientFactor * sizeof(double), &factor, sizeof(factor)));
  RETURN_IF_ERROR(
      backend_->Write(control + plan::kLabelFactor * sizeof(double), &label_factor, sizeof(label_factor)));
  RETURN_IF_ERROR(RunOrReplay(program, Context(iteration)));
  RETURN_IF_ERROR(backend_->NoteTime(backend::kIterationEnds));
  Results results{.follows = !started_.empty(), .label_factor = label_factor, .data_wait_ms = waited.count()};
  ASSIGN_OR_RETURN(results.scalars,
                   backend_->Read(Address(stage_.scalars, nullptr, -1), stage_.scalars.bytes()));
  ASSIGN_OR_RETURN(results.control, backend_->Read(control, stage_.control.bytes()));
  ASSIGN_OR_RETURN(results.times, backend_->ReadTimes());
  if (trace_ != nullptr) {
    ASSIGN_OR_RETURN(results.traced, trace_->Take());
  }
  started_.push_back(std::move(results));
  return absl::OkStatus();
}

std::vector<double> RankExecutor::MetricSums(const std::vector<double>& scalars, double label_factor) const {
  std::vector<double> sums;
  for (std::int64_t n = 0; n < plan_.numbers(); ++n)
    sums.push_back(scalars[static_cast<size_t>(plan::ScalarOf(n))]);
  for (const plan::PlanMetric& metric : plan_.metrics) {
    if (metric.of_labels) sums[static_cast<size_t>(metric.first)] *= label_factor;
  }
  return sums;
}

absl::StatusOr<IterationResult> RankExecutor::Wait() {
  ENGINE_CHECK(!started_.empty(), "no iteration is started");
  Results results = std::move(started_.front());
  started_.pop_front();
  std::vector<double> scalars(static_cast<size_t>(stage_.scalars.elements));
  double control[plan::kControlNumbers] = {};
  RETURN_IF_ERROR(backend_->WaitRead(results.scalars, scalars.data()));
  RETURN_IF_ERROR(backend_->WaitRead(results.control, control));
  std::int64_t times_ns[backend::kStamps] = {};
  RETURN_IF_ERROR(backend_->WaitRead(results.times, times_ns));
  const std::int64_t began_ns = times_ns[backend::kIterationBegins];
  const std::int64_t followed_ns = results.follows ? ended_ns_ : began_ns;
  ended_ns_ = times_ns[backend::kIterationEnds];
  constexpr double kNsPerMs = 1e6;
  std::vector<TracedBytes> traced;
  if (trace_ != nullptr) {
    ASSIGN_OR_RETURN(traced, trace_->Wait(std::move(results.traced)));
  }
  return IterationResult{
      .sums = MetricSums(scalars, results.label_factor),
      .grad_norm = control[plan::kGradientNorm],
      .learning_rate = control[plan::kLearningRate],
      .steps = static_cast<std::int64_t>(control[plan::kStep]),
      .skipped = static_cast<std::int64_t>(control[plan::kSkipped]),
      .loss_scale = control[plan::kLossScale],
      .elapsed_ms = static_cast<double>(ended_ns_ - followed_ns) / kNsPerMs,
      .busy_ms = static_cast<double>(times_ns[backend::kUpdateBegins] - began_ns) / kNsPerMs,
      .data_wait_ms = results.data_wait_ms,
      .traced = std::move(traced)};
}

absl::StatusOr<IterationResult> RankExecutor::Train(std::int64_t iteration, std::int64_t step,
                                                    const LearningRates& rates, const Feed& feed,
                                                    std::int32_t program) {
  RETURN_IF_ERROR(SetSteps(step - 1));
  RETURN_IF_ERROR(Launch(iteration, rates, feed, program));
  return Wait();
}

absl::StatusOr<std::vector<InstructionTiming>> RankExecutor::Profile(std::int64_t iteration,
                                                                     const LearningRates& rates,
                                                                     const Feed& feed, std::int32_t program) {
  std::vector<Marked> marked;
  Recorded& of_program = recorded_[static_cast<size_t>(Resolve(program))];
  Recorded recorded = std::exchange(of_program, {});
  marked_ = &marked;
  ASSIGN_OR_RETURN(const std::int64_t start, backend_->Mark(plan::kComputeStream));
  const absl::Status status = Launch(iteration, rates, feed, program);
  marked_ = nullptr;
  of_program = std::move(recorded);
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

absl::StatusOr<double> RankExecutor::RunForward(std::int32_t program, const Feed& feed) {
  iteration_ = ExecutorOptions::kNoIteration;
  RETURN_IF_ERROR(Reach(Moment::kData));
  ASSIGN_OR_RETURN(const double label_factor, ReadInputs(program, feed));
  RETURN_IF_ERROR(Reach(Moment::kForward));
  RETURN_IF_ERROR(TakeIncoming());
  RETURN_IF_ERROR(RunOrReplay(program, Context(0)));
  if (trace_ != nullptr) trace_->Drop();
  return label_factor;
}

absl::Status RankExecutor::Generate(plan::FormId form, const Feed& feed) {
  return RunForward(plan_.ProgramOf(form), feed).status();
}

absl::StatusOr<IterationResult> RankExecutor::Evaluate(const Feed& feed) {
  ASSIGN_OR_RETURN(const double label_factor, RunForward(plan_.ProgramOf(plan::kEvaluateForm), feed));
  std::vector<double> scalars(static_cast<size_t>(stage_.scalars.elements));
  ASSIGN_OR_RETURN(const std::int64_t ticket,
                   backend_->Read(Address(stage_.scalars, nullptr, -1), stage_.scalars.bytes()));
  RETURN_IF_ERROR(backend_->WaitRead(ticket, scalars.data()));
  IterationResult result;
  result.sums = MetricSums(scalars, label_factor);
  return result;
}

TensorView RankExecutor::Logits(plan::FormId form) const {
  return View(plan_.logits[form].buffer, nullptr, -1);
}

std::vector<TensorView> RankExecutor::TopLogits(plan::FormId form) const {
  std::vector<TensorView> views;
  for (const Chunk& chunk : stage_.chunks) {
    for (const BufferRef& output : chunk.passes[form].outputs) views.push_back(View(output, &chunk, -1));
  }
  return views;
}

absl::StatusOr<std::optional<TokenScores>> RankExecutor::Scores() const {
  const std::int32_t program = plan_.ProgramOf(plan::kEvaluateForm);
  for (const Chunk& chunk : stage_.chunks) {
    if (chunk.kept.elements == 0) continue;
    std::vector<float> kept(static_cast<size_t>(chunk.kept.elements));
    RETURN_IF_ERROR(backend_->Download(kept.data(), Address(chunk.kept, nullptr, -1), chunk.kept.bytes()));
    const std::vector<BufferRef>& outputs = chunk.evaluate().outputs;
    TokenScores scores{.extent = View(outputs[0], &chunk, -1).extent};
    const auto count = static_cast<size_t>(outputs[0].elements);
    for (std::int64_t m = 0; m < plan_.ProgramAt(program).microbatches; ++m) {
      const auto begin = kept.begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(m) * 2 * count);
      const auto middle = begin + static_cast<std::ptrdiff_t>(count);
      scores.log_probabilities.insert(scores.log_probabilities.end(), begin, middle);
      scores.ranks.insert(scores.ranks.end(), middle, middle + static_cast<std::ptrdiff_t>(count));
    }
    return scores;
  }
  return std::nullopt;
}

}  // namespace engine::executor
