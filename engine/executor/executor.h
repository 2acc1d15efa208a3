// Walks one rank's program on a backend. No maths, no policy: what to run, in which order, on which bytes, is
// the plan's.
#pragma once

#include <concepts>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/backend/backend.h"
#include "engine/executor/exchange_trace.h"
#include "engine/executor/memory_checkpoint.h"
#include "engine/executor/rank_state.h"
#include "engine/executor/snapshot.h"
#include "engine/plan/plan.h"
#include "engine/plan/snapshot.h"

namespace engine::executor {

// Fills `host` (a local tensor of int32, row-major) with the input of that name of one microbatch.
using FeedFunction = std::function<absl::Status(const std::string& input, std::int64_t microbatch,
                                                const backend::TensorView& host)>;

// What an iteration reads.
struct Feed {
  template <std::convertible_to<FeedFunction> Fill>
  Feed(Fill fill) : inputs(std::move(fill)) {}  // NOLINT(google-explicit-constructor): all labels count

  FeedFunction inputs;
  // Labels of the batch / those that count in the loss, the same on every rank (plan/control.h, kLabelFactor); 0 where
  // none does. Null: all do.
  std::function<absl::StatusOr<double>()> label_factor = nullptr;
};

// Learning rates for an iteration's update, of which the device takes one: while an iteration runs, the host
// does not know whether it will be skipped.
struct LearningRates {
  LearningRates(double rate) : if_known(rate), if_more(rate) {}  // that one, whatever the steps
  LearningRates(std::int64_t steps, double known, double more)
      : known_steps(steps), if_known(known), if_more(more) {}

  std::int64_t known_steps = 0;  // optimizer steps that the host knows were done
  double if_known, if_more;      // where so many were done before the update, and where more were
};

struct IterationResult {
  // All numbers of Plan::metrics, over all ranks and microbatches; those of labels times the label factor.
  std::vector<double> sums = {};
  double grad_norm = 0;
  double learning_rate = 0;  // that the update took; a skipped one changed nothing with it
  std::int64_t steps = 0;    // optimizer steps done so far
  std::int64_t skipped = 0;  // iterations skipped so far, because gradients overflowed the loss scale
  double loss_scale = 1;
  // By the device's clock; 0 of an evaluation. elapsed_ms: to the end of the iteration, from the end of the
  // one before where that was still under way when this one was started, else from its own beginning. The
  // host hears of the end late where it launches kernel by kernel and the device's queue is full.
  double elapsed_ms = 0;
  // From the beginning of the iteration to that of the update, which is the first to wait for all ranks.
  // Includes waits within the passes: for ranks of the same layers (tp, cp) and for other stages.
  double busy_ms = 0;
  // By the host's clock: how long the iteration's launch waited for its inputs to be read.
  double data_wait_ms = 0;
  // Of ExecutorOptions::trace, from the end of the iteration before; not of an evaluation.
  std::vector<TracedBytes> traced = {};
};

// How well a rank's part of the tokens of an evaluation was predicted (graph::TokenScores).
struct TokenScores {
  Extent extent;  // of a microbatch [B, S] that the rank has, the same in each
  // [microbatches, the extent's elements], row-major; 0 where a label does not count.
  std::vector<float> log_probabilities = {};
  std::vector<float> ranks = {};
};

class RankExecutor;

// The moments of an iteration at which the host tells its observer (ExecutorOptions::on_moment), in their order.
enum class Moment : std::uint8_t {
  kData,      // it is about to read its inputs, or to wait for them
  kForward,   // it has them, and is about to begin the passes
  kExchange,  // before the first exchange with other ranks
  kUpdate,    // before the update; not of an evaluation
};

struct ExecutorOptions {
  // Record the program once and replay it, where the backend can (CUDA graphs), but for programs of long
  // kernels with exchange beside them. Off: launch by launch.
  bool record = true;
  // Wait after each instruction and check that what it made is finite; the first that made something else is
  // an error that names it.
  bool check = false;
  // Hash all that the rank gives to others and gets (exchange_trace.h). Nothing is recorded then.
  bool trace = false;
  // Called at each moment, on the thread that calls the executor, with the iteration, from 0, or kNoIteration of an evaluation.
  // kExchange and kUpdate are not told of where a recorded program is replayed. Null: nobody is.
  static constexpr std::int64_t kNoIteration = -1;
  std::function<absl::Status(RankExecutor& rank, Moment moment, std::int64_t iteration)> on_moment = nullptr;
  // So many threads may work on the host for this rank, as where its initial values are made.
  int host_threads = 1;
};

// When something ran in a profiled iteration, milliseconds from its beginning.
struct InstructionTiming {
  enum class Part : std::uint8_t {
    kRun,     // the kernel, or the exchange
    kWait,    // computation waits for the exchange
    kFinish,  // what the exchange left to compute, if anything
  };
  const plan::Segment* segment = nullptr;          // null of a transfer, and behind detached exchange
  const plan::Instruction* instruction = nullptr;  // null of a transfer, and of a wait for several exchanges
  std::int32_t microbatch = -1;
  Part part = Part::kRun;
  std::int32_t stream = plan::kComputeStream;
  double begin_ms = 0;
  double end_ms = 0;
};

class RankExecutor : public RankState {
 public:
  // Allocates the arena (Plan's size, to the byte) and prepares every launch. The plan must outlive the
  // executor.
  static absl::StatusOr<std::unique_ptr<RankExecutor>> Create(
      const plan::Plan& plan, std::int64_t rank, std::unique_ptr<backend::Backend> backend,
      std::unique_ptr<backend::Communicator> communicator, std::uint64_t seed,
      const ExecutorOptions& options = {});
  ~RankExecutor();

  // Starts one iteration of a training program, by its number in Plan::programs; kLargest: the one of the whole global
  // batch. `iteration`, from 0, keys dropout. At most two may be started and not waited for.
  static constexpr std::int32_t kLargest = -1;
  absl::Status Launch(std::int64_t iteration, const LearningRates& rates, const Feed& feed,
                      std::int32_t program = kLargest);
  // Reads the inputs of the next Launch, which is of the same program, on a thread of its own; that Launch then
  // ignores its `feed`.
  void Prefetch(Feed feed, std::int32_t program = kLargest);
  // All started iterations have been waited for. Control block, the optimizer's states and the model's are as before the first iteration, as in an
  // executor that was just made; and inputs that were read ahead are forgotten.
  absl::Status Restart();
  // Afterwards no thread of the executor calls a feed.
  void WaitForPrefetch();
  // Waits for the oldest started iteration.
  absl::StatusOr<IterationResult> Wait();
  // Optimizer steps done before the next iteration (for bias correction): on resume.
  absl::Status SetSteps(std::int64_t steps);
  // SetSteps(step − 1), Launch, Wait.
  absl::StatusOr<IterationResult> Train(std::int64_t iteration, std::int64_t step, const LearningRates& rates,
                                        const Feed& feed, std::int32_t program = kLargest);
  // An iteration, launch by launch, with the time that each instruction took.
  absl::StatusOr<std::vector<InstructionTiming>> Profile(std::int64_t iteration, const LearningRates& rates,
                                                         const Feed& feed, std::int32_t program = kLargest);
  // One pass of the evaluation program over a global batch; grad_norm is 0.
  absl::StatusOr<IterationResult> Evaluate(const Feed& feed);

  backend::Backend& backend() { return *backend_; }
  int host_threads() const { return options_.host_threads; }
  TracingCommunicator* trace() { return trace_; }  // null without ExecutorOptions::trace

  // For checkpoints. Its memory is that of all it saves of the stage (plan/snapshot.h).
  Snapshot& snapshot() { return *snapshot_; }
  // Copies the rank's whole state into memory that outlives the process.
  MemoryCheckpoint& memory_checkpoint() { return *memory_checkpoint_; }
  // A step of generation, of a form that generates. Its inputs' microbatch is 0.
  absl::Status Generate(plan::FormId form, const Feed& feed);
  // The logits of the form's last microbatch (plan::Plan::logits, on ranks of the last stage).
  backend::TensorView Logits(plan::FormId form = plan::kEvaluateForm) const;
  // The largest logits and the sums of a form that generates (plan::Plan::TopLogits, in that order), as its last run left them; the sums of
  // all rows where they are made.
  // Ranks of other stages than the last have none.
  std::vector<backend::TensorView> TopLogits(plan::FormId form) const;
  // The scores of the last evaluation (plans made with keep_scores); nullopt on ranks of stages that make none. Ranks that
  // differ along tp alone have the same.
  absl::StatusOr<std::optional<TokenScores>> Scores() const;

 private:
  struct Prepared;
  struct Walk;
  // A program on its way.
  struct Running {
    const plan::ProgramSpec& spec;
    const plan::Program& steps;
    const std::vector<std::int64_t>& targets;  // where sends go in the peer's arena, by step
    const backend::KernelContext& context;
  };
  RankExecutor(const plan::Plan& plan, std::int64_t rank);
  // Whether no instruction of the stage writes where its parameters are.
  bool ParametersStay() const;
  absl::Status PrepareSegments();
  absl::Status PrepareTransfers();
  // Puts the trace around the communicator.
  absl::Status StartTrace();
  // The control block and the states as they are before the first iteration.
  absl::Status StartControl();
  absl::Status StartState(const plan::State& state);
  absl::Status Clear(std::byte* data, std::int64_t bytes);
  // As the backend copies them, without their places in the host's memory.
  std::vector<StatePart> PartsOf(const std::vector<plan::SnapshotPart>& planned) const;
  // at_once: microbatches that a step of its segment runs; before: the launch of the instruction before it.
  absl::StatusOr<Prepared> PrepareInstruction(const plan::Instruction& instruction, const plan::Chunk* chunk,
                                              std::int64_t slot, std::int64_t at_once,
                                              backend::Launch* before);
  absl::Status ForkStreams();
  absl::Status JoinStreams();
  std::int32_t Resolve(std::int32_t program) const;  // kLargest too
  // Tells of the moment, of the iteration that is under way.
  absl::Status Reach(Moment moment);
  absl::Status ReachExchange();  // each time; the first is told
  // Runs a program that passes forward only; gives the label factor.
  absl::StatusOr<double> RunForward(std::int32_t program, const Feed& feed);
  absl::Status RunProgram(const Running& running);
  absl::Status RunOrReplay(std::int32_t program, const backend::KernelContext& context);
  absl::Status RunStep(const plan::Step& step, std::int64_t index, const Running& running);
  absl::Status RunSegment(const plan::Step& step, const Running& running);
  absl::Status Advance(const Prepared& prepared, Walk* walk);
  absl::Status RunExchange(const Prepared& prepared, const backend::KernelContext& context, Walk* walk);
  absl::Status FinishExchange(Walk* walk, const std::function<bool(const Prepared&)>& wanted);
  absl::Status FinishDetached(const std::function<bool(const plan::Instruction&)>& wanted);
  absl::Status JoinExchange();
  // The microbatch whose values the instruction makes; of both halves, the first.
  static std::int32_t MicrobatchOf(const plan::Step& step, const plan::Instruction& instruction);
  absl::Status RunInstruction(const Prepared& prepared, const plan::Step& step,
                              const backend::KernelContext& context);
  // While profiling: what runs on the stream from its last mark to this one; no part: nothing of interest.
  absl::Status Mark(std::int32_t stream, std::optional<InstructionTiming::Part> part,
                    const plan::Instruction* instruction, const plan::Step* step);
  absl::Status CheckFinite(const Prepared& prepared, const plan::Step& step);
  // Inputs of all microbatches to the incoming buffers, and from there to the staged ones.
  absl::Status FillIncoming(std::int32_t program, const FeedFunction& feed);
  // FillIncoming, and gives the label factor.
  absl::StatusOr<double> ReadInputs(std::int32_t program, const Feed& feed);
  absl::Status TakeIncoming();
  // The inputs of the step's microbatch, from the staged buffer to where the segment reads them.
  absl::Status TakeInputs(const plan::Step& step, plan::FormId form);
  // What the step's microbatch leaves to be kept, to its place among that of all microbatches.
  absl::Status KeepOutputs(const plan::Step& step, plan::FormId form);
  std::vector<double> MetricSums(const std::vector<double>& scalars, double label_factor) const;
  backend::KernelContext Context(std::int64_t iteration) const;
  std::int64_t PeerOf(std::int32_t chunk) const;
  std::span<std::byte> Scratch(const plan::Instruction& instruction, const plan::Chunk* chunk,
                               std::int64_t slot) const;
  const plan::Chunk* ChunkAt(std::int32_t index) const;

  std::unique_ptr<backend::Backend> backend_;
  std::unique_ptr<backend::Communicator> communicator_;
  TracingCommunicator* trace_ = nullptr;  // it, or null
  std::byte* host_ = nullptr;             // StagePlan::host_bytes
  std::unique_ptr<Snapshot> snapshot_;
  std::unique_ptr<MemoryCheckpoint> memory_checkpoint_;
  std::uint64_t seed_ = 0;
  bool parameters_stay_ = false;
  // By segment, then by slot (one entry where the segment touches no slot).
  std::vector<std::vector<std::vector<Prepared>>> prepared_;
  std::vector<std::int64_t> tickets_;                               // of the running program's sends, by step
  std::vector<std::vector<std::int64_t>> targets_;                  // by program: Running::targets
  std::vector<std::pair<const Prepared*, std::int64_t>> detached_;  // exchange under way, and its ticket
  ExecutorOptions options_;
  struct Recorded {
    bool ran = false;  // once launch by launch: libraries load what they need then
    std::unique_ptr<backend::Launch> launch;
  };
  std::vector<Recorded> recorded_;  // by program
  struct Results {
    std::int64_t scalars = -1, control = -1, times = -1;  // tickets
    bool follows = false;                                 // the one before was still under way
    double label_factor = 1;
    double data_wait_ms = 0;
    TracingCommunicator::Taken traced = {};
  };
  std::deque<Results> started_;
  std::int64_t iteration_ = ExecutorOptions::kNoIteration;  // that Reach tells of
  bool has_exchanged_ = false;                              // in it
  std::int64_t ended_ns_ = 0;                               // the last iteration that was waited for
  std::future<absl::StatusOr<double>> prefetch_;
  std::int32_t prefetched_ = kLargest;  // the program that its inputs are for
  struct Marked {
    std::optional<InstructionTiming> timing;
    std::int32_t stream = 0;
    std::int64_t after = -1;  // Backend::Mark
  };
  std::vector<Marked>* marked_ = nullptr;  // while profiling
};

}  // namespace engine::executor
