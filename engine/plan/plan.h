// The static execution plan, as plain data: what every rank runs, where every byte lives, who talks to whom
// when. Made by compile/compile.h, checked by verify/verify.h, printed by plan/print.h, run by engine/executor.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "engine/graph/graph.h"
#include "engine/graph/op.h"
#include "engine/plan/collective.h"
#include "engine/plan/device_profile.h"
#include "engine/plan/layout.h"
#include "engine/plan/loss_scaler.h"
#include "engine/plan/mesh.h"
#include "engine/plan/optimizer.h"
#include "engine/plan/programs.h"

namespace engine::plan {

// A tensor of the local program, the same on every rank of a stage but for its coordinates.
struct LocalValue {
  std::string name;
  Shape shape;  // of the whole (one microbatch over all ranks), padding included
  DType dtype = DType::kF32;
  Layout layout;
  Shape local;  // of one rank
  graph::ValueKind kind = graph::ValueKind::kActivation;
  graph::ValueId source = graph::kNoValue;  // in the logical graph
  std::int32_t parameter = -1;  // Plan::parameters, of a parameter or of its gradient's accumulator
  std::int32_t metric = -1;     // Plan::metrics, of its accumulator
  std::int64_t local_bytes() const { return local.elements() * SizeOf(dtype); }
};

// Bytes in the arena. Address on a rank = arena + offset + (in_slot: base of the step's slot) + (index of the rank
// in shard_axes) × shard_stride.
struct BufferRef {
  std::int32_t value = -1;  // LocalValue, or −1 for flat buffers
  std::int64_t offset = 0;
  std::int64_t elements = 0;
  DType dtype = DType::kF32;
  bool in_slot = false;
  AxisSet shard_axes = {};
  std::int64_t shard_stride = 0;
  std::int64_t bytes() const { return elements * SizeOf(dtype); }
  // Whether a rank has both in some of its bytes, of equal slots.
  bool Overlaps(const BufferRef& other) const {
    return in_slot == other.in_slot && offset < other.offset + other.bytes() &&
           other.offset < offset + bytes();
  }
};

// Streams of a stage: computation, one per direction and kind of pipeline traffic, two for collectives
// that run behind computation: of activations, and of buckets, which would hold up the former (one for all
// where NCCL does both), and one for copies to and from the host's memory, likewise behind computation.
enum Stream : std::int32_t {
  kComputeStream,
  kSendNext,
  kReceivePrevious,
  kSendPrevious,
  kReceiveNext,
  kExchangeStream,
  kBucketStream,
  kHostStream,
  kStreams
};
inline bool IsBehind(std::int32_t stream) {
  return stream == kExchangeStream || stream == kBucketStream || stream == kHostStream;
}

// The other rank's term of a sum of two ranks, where the addition is left to the one kernel that reads the sum
// (Addition).
struct OtherTerm {
  std::int32_t input = -1;  // of the kernel: the sum, of which it finds its own rank's term there
  BufferRef place = {};     // where the other rank's term arrives
  // The kernel takes the term from where the other rank has made it, at the sum's place in that rank's arena.
  // Where ranks do not reach each other's memory, the term arrives at `place` as ever.
  bool direct = false;
};

// The launch of a kernel.
struct Kernel {
  std::string name;                  // of the op ("linear"); of one over flat buffers: "adamw", "copy", …
  const graph::OpDef* op = nullptr;  // null: over flat buffers
  graph::Attributes attributes = {};
  std::uint32_t accumulate = 0;  // bit i: add into output i
  // Bit i, within accumulate: the first microbatch of an iteration overwrites output i instead.
  std::uint32_t fresh = 0;
  AxisSet only_first = {};  // run only on ranks with coordinate 0 along these axes
  graph::Work work = {};    // of one rank
  SlowPath slow = {};       // of a kernel that takes much longer than a fast one would
  std::optional<OtherTerm> adds = {};
};

// What ranks of a group do together, as far as conversions and exchanges of buckets have it in common.
struct Exchange {
  Collective collective = Collective::kNone;
  graph::Reduction reduction = graph::Reduction::kSum;
  std::int64_t wire_bytes = 0;  // that a rank sends, by the ring algorithm, whichever is used
  // Pushed into the other members' arenas by copy engines instead of NCCL. All members are on one host.
  bool push = false;
};

// Who adds up what a sum gathers: the exchange itself, in whatever order or, kInOrder, in order of rank, rounded once; or,
// of a pushed sum of two ranks, the one kernel that reads it (OtherTerm). The output is then this rank's term, where the
// input has it, and the other rank's arrives in the scratch; kByDirectReader: its reader, the next instruction, fetches
// that itself.
enum class Addition : std::uint8_t { kInOrder, kByExchange, kByReader, kByDirectReader };

// A value changes its placement along one axis: from input 0 to output 0. A slice exchanges nothing.
struct Conversion : Exchange {
  Axis axis = Axis::kTp;
  Addition addition = Addition::kByExchange;
};

// The exchange of a bucket's flat buffer in place, or of another flat buffer (scalars, states).
struct BucketExchange : Exchange {
  Group group;
  std::int32_t bucket = -1;  // StagePlan::buckets; −1: of another buffer
  bool last_only = false;    // only in the iteration's last microbatch
};

// What the forward pass has made for the backward pass goes to the host's memory, input 0, or comes back from it, output
// 0. In between, its bytes in the slot hold what another layer keeps (compile/offload.h).
struct HostCopy {
  enum class Direction : std::uint8_t { kToHost, kFromHost };
  Direction direction = Direction::kToHost;
  std::int64_t host_offset = 0;  // in what the host keeps of a microbatch (Chunk::host_base)
};

// Of two microbatches that a segment runs at once (Segment::halves): whose values an instruction takes and makes,
// or that it runs once for both. Each input of a kernel of both is the two halves' tensors, one behind the other
// along dim 0. Where a segment runs one microbatch, all are the first's.
enum class Half : std::uint8_t { kFirst, kSecond, kBoth };

// A step of a segment, one of four things. Its place in the segment is what others name it by.
struct Instruction {
  std::string name;  // the node that it carries out
  // Plan::components, of that node; kNoComponent: it belongs to none. It is told, not run: the canonical text leaves it out.
  graph::ComponentId component = graph::kNoComponent;
  std::vector<BufferRef> inputs;
  std::vector<BufferRef> outputs;
  BufferRef scratch;                     // bytes that it alone uses while it runs; elements 0: none
  std::int32_t stream = kComputeStream;  // that it runs on
  Half half = Half::kFirst;
  // Conversions and copies beside computation, before it in the segment, that have to be finished when it runs: it
  // reads what they made, or overwrites what they use. The segment's end waits for all.
  std::vector<std::int32_t> waits = {};
  // The bucket whose exchange beside computation, of this program, must be done before it runs; −1: none.
  std::int32_t waits_for_bucket = -1;
  std::variant<Kernel, Conversion, BucketExchange, HostCopy> what = Kernel{};

  const Kernel* AsKernel() const { return std::get_if<Kernel>(&what); }
  Kernel* AsKernel() { return std::get_if<Kernel>(&what); }
  const Conversion* AsConversion() const { return std::get_if<Conversion>(&what); }
  Conversion* AsConversion() { return std::get_if<Conversion>(&what); }
  const BucketExchange* AsBucketExchange() const { return std::get_if<BucketExchange>(&what); }
  BucketExchange* AsBucketExchange() { return std::get_if<BucketExchange>(&what); }
  const HostCopy* AsHostCopy() const { return std::get_if<HostCopy>(&what); }
  HostCopy* AsHostCopy() { return std::get_if<HostCopy>(&what); }
  const Exchange* AsExchange() const {
    if (const Conversion* conversion = AsConversion()) return conversion;
    return AsBucketExchange();
  }
  Exchange* AsExchange() { return const_cast<Exchange*>(std::as_const(*this).AsExchange()); }

  // Of what is no kernel: one with nothing set.
  const Kernel& kernel_or_none() const {
    static const Kernel none;
    return AsKernel() != nullptr ? *AsKernel() : none;
  }
  const Exchange& exchange_or_none() const {
    static const Exchange none;
    return AsExchange() != nullptr ? *AsExchange() : none;
  }
  // The kernel's name or the collective's, or where a copy goes.
  std::string_view kernel() const {
    if (const HostCopy* copy = AsHostCopy())
      return copy->direction == HostCopy::Direction::kToHost ? "to_host" : "from_host";
    return AsKernel() != nullptr ? std::string_view(AsKernel()->name) : Name(collective());
  }
  const graph::OpDef* op() const { return kernel_or_none().op; }
  const graph::Attributes& attributes() const { return kernel_or_none().attributes; }
  std::uint32_t accumulate() const { return kernel_or_none().accumulate; }
  std::uint32_t fresh() const { return kernel_or_none().fresh; }
  AxisSet only_first() const { return kernel_or_none().only_first; }
  const graph::Work& work() const { return kernel_or_none().work; }
  const SlowPath& slow() const { return kernel_or_none().slow; }
  graph::Family family() const { return op() != nullptr ? op()->family : graph::Family::kOther; }
  Collective collective() const { return exchange_or_none().collective; }
  // Whether ranks exchange something: a slice is a copy.
  bool Exchanges() const { return collective() != Collective::kNone && collective() != Collective::kSlice; }
  graph::Reduction reduction() const { return exchange_or_none().reduction; }
  std::int64_t wire_bytes() const { return exchange_or_none().wire_bytes; }
  bool push() const { return exchange_or_none().push; }
  // Ranks that must all come to it.
  Group group() const {
    if (const Conversion* conversion = AsConversion()) return AxisSet::Of(conversion->axis);
    return IsBucketExchange() ? AsBucketExchange()->group : Group();
  }
  bool IsBucketExchange() const { return AsBucketExchange() != nullptr; }
  // Whether it is the exchange of a bucket beside computation, which waits_for_bucket names.
  bool detached() const { return IsBucketExchange() && IsBehind(stream); }
  bool last_only() const { return IsBucketExchange() && AsBucketExchange()->last_only; }
  // Whether it is a sum that its reader adds up.
  bool LeavesAddition() const {
    return AsConversion() != nullptr && AsConversion()->addition > Addition::kByExchange;
  }
  bool AddsInOrder() const {
    return AsConversion() != nullptr && AsConversion()->addition == Addition::kInOrder;
  }
  // Of a sum that its reader adds up, and of that reader: whether the term is read where the other rank has made it.
  bool direct() const {
    if (const Conversion* sum = AsConversion()) return sum->addition == Addition::kByDirectReader;
    return kernel_or_none().adds.has_value() && kernel_or_none().adds->direct;
  }
  // The input to which a kernel adds the other rank's term (OtherTerm); −1: to none.
  std::int32_t AddedInput() const { return kernel_or_none().adds ? kernel_or_none().adds->input : -1; }
  bool RunsIn(std::int64_t microbatch, std::int64_t microbatches) const {
    return !last_only() || microbatch + 1 == microbatches;
  }
};

struct Segment {
  std::string name;  // "forward.0", "backward.1", "weights.1", "update"
  std::int32_t chunk = -1;
  std::vector<Instruction> instructions;
  bool halves = false;       // runs two microbatches at once, the second half's being the next one
  double flops = 0;          // of one microbatch and rank, all arithmetic (graph::Work)
  double product_flops = 0;  // of these, as graph::Work::product_flops
};

enum class StepKind : std::uint8_t { kRun, kSend, kReceive };

// One element of a stage's program. Steps of one stream run in order; `waits` are steps of other streams that
// must have completed before.
struct Step {
  StepKind kind = StepKind::kRun;
  std::int32_t segment = -1;   // kRun
  std::int32_t transfer = -1;  // kSend, kReceive: index into Plan::transfers
  // Of two halves, the first one's microbatch and slot; a second half is received into the second of the two slots
  // by its buffer's offset from the first.
  std::int32_t microbatch = -1;
  std::int32_t slot = -1;  // of the chunk, where the step touches one
  std::int32_t chunk = -1;
  std::int32_t stream = 0;
  BufferRef buffer = {};  // kSend, kReceive
  std::vector<std::int32_t> waits = {};
};

// A value that crosses from one chunk to another.
struct Transfer {
  std::int32_t value = -1;
  std::int32_t from_chunk = -1;
  std::int32_t to_chunk = -1;
  std::int64_t bytes = 0;
  bool push = false;  // into the receiver's arena by copy engines: all ranks are on one host
};

using Program = std::vector<Step>;

struct PlanParameter {
  std::int32_t value = -1;  // LocalValue
  // LocalValue of its accumulator; −1 where the plan only evaluates, or it is frozen.
  std::int32_t gradient = -1;
  std::string name;
  Shape logical_shape;  // without padding
  graph::Initializer initializer;
  graph::Role role = graph::Role::kMatrix;
  std::int32_t unit = 0;                               // that reads it first
  graph::ComponentId component = graph::kNoComponent;  // that reads it first
  bool weight_decay = false;                           // whether the optimizer's applies to it
  graph::TrainingSettings training = {};
  // Stages that hold a copy, in the order in which the model reads it: the first owns it.
  std::vector<std::int32_t> holders = {};
  bool tied() const { return holders.size() > 1; }
};

// What is summed over a batch beside gradients (graph::Metric).
struct PlanMetric {
  std::string name;
  double count = 1;  // that the sum over Plan::global_batch is divided by
  double weight = 1;
  std::int32_t unit = 0;     // that makes it
  std::int64_t classes = 0;  // it has a number of each; 0: it is one number
  std::int64_t first = 0;    // where its numbers begin among those of all metrics
  bool of_labels = false;    // its terms are of labels, of which some may not count
  bool has_terms = false;    // graph::Metric
  std::int64_t numbers() const { return classes > 0 ? classes : 1; }
};

// Parameters that are reduced and updated alike lie in one flat buffer: one collective, one kernel.
struct Bucket {
  struct Item {
    std::int32_t parameter = -1;  // Plan::parameters
    std::int64_t offset_elements = 0;
    std::int64_t elements = 0;  // local
  };
  std::vector<Item> items;
  std::int64_t elements = 0;  // padded to a multiple of shards × 128
  AxisSet reduce;             // active axes on which gradients are partial
  AxisSet copies;             // active axes on which the reduced gradient is repeated
  bool weight_decay = false;  // as those of its parameters, and as their settings:
  graph::TrainingSettings training = {};
  bool bulk = false;                  // graph::RoleFacts
  std::vector<std::int32_t> holders;  // of each of the parameters (PlanParameter)
  bool owned = true;                  // false: a copy of another stage's parameters (not counted, not saved)
  bool early = false;                 // reduced behind the backward pass, as soon as its gradients are whole
  std::int64_t shards = 1;            // ZeRO-1: optimizer state is cut into so many, along `reduce`
  DType parameter_dtype = DType::kF32;
  DType gradient_dtype = DType::kF32;
  // gradient: elements 0 of frozen parameters
  // master: elements 0 where the optimizer moves the parameters themselves, or they are frozen
  BufferRef parameter, gradient, master;
  // What the optimizer keeps of them, in the order of Plan::optimizer's states; none where the plan only evaluates, or
  // they are frozen.
  std::vector<BufferRef> states = {};
  bool tied() const { return holders.size() > 1; }
  bool frozen() const { return training.frozen; }
  bool moves_by_sign() const { return training.sign_step > 0; }
  // Of the matrices of a block from ZeRO-2 on: this rank's shard of the gradients, summed over microbatches,
  // and from ZeRO-3 on of the parameters; else elements 0. `gradient` (`parameter`) is then a buffer that
  // the blocks take in turn. Or the shard of the parameters lies in its place among all: those of the other
  // ranks are gathered when a program begins, and are out of date from the update on.
  std::int32_t block = -1;  // the unit whose matrices these are; −1: of none, or of several
  BufferRef gradient_shard, parameter_shard;
  std::int64_t shard_elements() const { return elements / shards; }
  bool gathered_at_begin() const { return !parameter_shard.shard_axes.empty(); }
};

// Words of 4 bytes that an input takes in the buffers in which inputs of any dtype wait to be fed.
constexpr std::int64_t StagedWords(std::int64_t bytes) { return (bytes + 3) / 4; }

// The segments that a chunk runs for a microbatch in programs of one form, and what it is fed for it.
struct ChunkPasses {
  // backward, weights: −1 where there is no such pass. Without one for weights the backward pass makes all gradients.
  std::int32_t forward = -1, backward = -1, weights = -1;
  // For each step of the forward pass, in the slot where the form has slots: of halves those of the first, then
  // those of the second.
  std::vector<BufferRef> inputs;
  // What the forward pass leaves that is kept of every microbatch (Chunk::kept), or read after each run of a form that
  // generates (Plan::TopLogits).
  std::vector<BufferRef> outputs = {};
};

struct Chunk {
  std::int32_t index = 0;                     // in pipeline order
  std::int32_t first_unit = 0, end_unit = 0;  // Plan::units
  ByForm<ChunkPasses> passes;
  std::int64_t slot_base = 0;  // offset of slot 0 in the arena
  std::int64_t slot_bytes = 0;
  std::int64_t slots = 0;  // microbatches in flight, of the program that has most
  // What the host keeps of a microbatch in flight, and where that of slot 0 lies among StagePlan::host_bytes.
  std::int64_t host_base = 0;
  std::int64_t host_bytes = 0;
  // Inputs of all microbatches of an iteration, of the largest program, one microbatch after the other, each in whole
  // words (StagedWords): `incoming` is filled while the iteration before still runs, `staged` is what the running one
  // takes its inputs from.
  BufferRef incoming, staged;
  // Outputs of all microbatches of an evaluation, of the largest program, one microbatch after the other; of f32.
  BufferRef kept;

  ChunkPasses& train() { return passes[kTrainForm]; }
  const ChunkPasses& train() const { return passes[kTrainForm]; }
  const ChunkPasses& evaluate() const { return passes[kEvaluateForm]; }
};

// What the arena is made of, bytes of one rank.
struct MemoryBreakdown {
  std::int64_t parameters = 0;
  std::int64_t gradients = 0;
  std::int64_t optimizer = 0;
  std::int64_t control = 0;        // scalars, control block, staged inputs
  std::int64_t activations = 0;    // slots × their saved values
  std::int64_t communication = 0;  // send and receive buffers of the pipeline
  std::int64_t transients = 0;     // the largest segment's
  std::int64_t evaluation = 0;     // what evaluation needs beyond the above
  std::int64_t total() const {
    return parameters + gradients + optimizer + control + activations + communication + transients +
           evaluation;
  }
};

// A value that outlives iterations without being a parameter. Stages that have copies of it have states of one name.
struct State {
  BufferRef buffer;
  graph::StateSpec spec;
};

struct StagePlan {
  std::vector<Chunk> chunks;
  std::vector<Segment> segments;
  // The segments with which every program of a form begins and ends; −1: there is no program of that form.
  struct Ends {
    std::int32_t first = -1, last = -1;
  };
  ByForm<Ends> ends;
  std::vector<Bucket> buckets;
  BufferRef
      scalars;  // f64: the metrics' first number, the sum of squared gradients, their other numbers (ScalarOf)
  BufferRef control;  // f64[kControlNumbers], plan/control.h
  // Quantised weights and others that are made when an iteration begins, and read by all its microbatches.
  std::vector<BufferRef> derived;
  std::vector<State> states;
  BufferRef scales;  // states that fp8_update moves (graph::StateUpdate::kScales), one behind the other
  std::vector<Program> programs;  // of Plan::programs, in their order
  // Transients of the training segments; those of a microbatch's passes reach so far. Behind these, pushed
  // gradients arrive.
  std::int64_t transient_base = 0, pass_bytes = 0;
  MemoryBreakdown memory;
  std::int64_t arena_bytes = 0;
  std::int64_t host_bytes = 0;       // of the host's memory that a rank keeps activations in (HostCopy)
  std::int64_t parameter_count = 0;  // local elements, padding included
  // FLOPs of matrix products and attention in one iteration on one rank, recomputation included.
  double flops = 0;  // of the largest program

  std::int32_t begin() const { return ends[kTrainForm].first; }
  std::int32_t update() const { return ends[kTrainForm].last; }
};

// Which of StagePlan::scalars is a number of the metrics (PlanMetric::first), and how many there are. The first metric is one
// number, so that those of each lie one behind the other.
inline constexpr std::int32_t kSquaresScalar = 1;
constexpr std::int64_t ScalarOf(std::int64_t number) { return number == 0 ? 0 : number + 1; }
constexpr std::int64_t ScalarsFor(std::int64_t numbers) { return std::max<std::int64_t>(2, numbers + 1); }

inline constexpr std::string_view kZeroBubble = "zero_bubble";

struct Plan {
  Mesh mesh;
  std::vector<graph::Unit> units;  // of the model, in order of execution
  std::vector<graph::Component> components;
  std::vector<LocalValue> values;
  std::vector<PlanParameter> parameters;
  std::vector<PlanMetric> metrics;
  std::vector<StagePlan> stages;
  std::vector<Transfer> transfers;
  std::vector<std::int32_t> chunk_stage;  // stage of each chunk, in pipeline order
  std::string schedule;                   // "1f1b", "interleaved" or kZeroBubble
  std::vector<Form> forms = {{.kind = ProgramKind::kTrain}, {.kind = ProgramKind::kEvaluate}};
  // Those of a form one behind the other, from the smallest to that of the whole global batch.
  std::vector<ProgramSpec> programs;
  std::int64_t microbatches = 1;        // of the largest program
  std::int64_t microbatch_samples = 1;  // over all data-parallel ranks
  // Microbatches that run at once, one's exchange behind the other's computation: 1, or 2, each half of the
  // recipe's.
  std::int64_t halves = 1;
  std::int64_t global_batch = 1;  // of the largest program
  std::int64_t sequence = 1;
  std::int64_t vocab = 0, vocab_rows = 0;
  std::int64_t parameter_count = 0;  // logical
  // By form: the logits' LocalValue, and where they lie when the last chunk's forward segment has run, where they are kept
  // (CompileOptions::keep_logits, and in every form that generates); elements 0: nowhere.
  struct Logits {
    std::int32_t value = -1;
    BufferRef buffer = {};
  };
  ByForm<Logits> logits;
  // By form: LocalValues that are read after each run of a form that generates, beside its logits; −1 in other forms.
  struct TopLogits {
    std::int32_t tokens = -1, values = -1, log_sums = -1;
    std::int32_t row_log_sums = -1;  // only where they are made (graph::TopLogits)
  };
  ByForm<TopLogits> top_logits;
  // LocalValues that evaluating chunks keep, where asked for and the model has them; else −1 (graph::TokenScores).
  graph::TokenScores scores = {.log_probability = -1, .rank = -1};
  std::string compute;  // precision
  LossScaler loss_scaler;
  const OptimizerDef* optimizer = nullptr;  // of AllOptimizers(); Compile sets it
  // Of the canonical text, 32 hex digits: model, layout, memory, schedule. Seed, data and learning rate are
  // the resolved recipe's.
  std::string hash;
  std::vector<std::string> notes;  // choices that the user should know of (padding, …)

  std::int64_t StageOfRank(std::int64_t rank) const { return mesh.CoordinatesOf(rank).pp; }
  // How many units from `first` to before `end` are of this kind.
  std::int64_t CountUnits(std::int32_t first, std::int32_t end, graph::Unit::Kind kind) const {
    return std::count_if(units.begin() + first, units.begin() + end,
                         [&](const graph::Unit& unit) { return unit.kind == kind; });
  }
  FormId FormsEnd() const { return static_cast<FormId>(forms.size()); }
  const Form& FormAt(FormId form) const { return forms[static_cast<size_t>(form)]; }
  KindFacts FactsAt(FormId form) const { return FactsOf(FormAt(form).kind); }
  // Of a microbatch of the form, over all ranks.
  std::int64_t SamplesOf(FormId form) const {
    return FactsAt(form).generates ? FormAt(form).samples : microbatch_samples;
  }
  // The largest program of a form, or that of so many samples; −1: there is none.
  std::int32_t ProgramOf(FormId form, std::int64_t batch = 0) const {
    for (size_t p = programs.size(); p-- > 0;) {
      if (programs[p].form == form && (batch == 0 || programs[p].global_batch == batch))
        return static_cast<std::int32_t>(p);
    }
    return -1;
  }
  const ProgramSpec& ProgramAt(std::int32_t program) const { return programs[static_cast<size_t>(program)]; }
  // What the gradients of a training program are multiplied by: its segments make them as if their sums were divided by
  // the counts of the largest one, which they share.
  double GradientFactor(std::int32_t program) const {
    return static_cast<double>(global_batch) / static_cast<double>(ProgramAt(program).global_batch);
  }
  // By which checkpoints know it: "state/steps", "fp8/layers.3.mlp.fc1.scale".
  std::string StateName(const State& state) const {
    return state.spec.folder + "/" + values[static_cast<size_t>(state.buffer.value)].name;
  }
  // "train"; of one that is not the largest of its form, "train of 16 samples"; "prefill of 1 × 512 tokens".
  std::string ProgramName(std::int32_t program) const;
  std::string FormName(FormId form) const;
  // Microbatches of a program of this form that run at once.
  std::int64_t HalvesOf(FormId form) const { return FactsAt(form).trains ? halves : 1; }
  // How many numbers all metrics have together.
  std::int64_t numbers() const {
    return metrics.empty() ? 0 : metrics.back().first + metrics.back().numbers();
  }
  // The mean of a metric, of its sum over so many samples.
  double MeanOf(size_t metric, double sum, std::int64_t samples) const {
    return sum / (metrics[metric].count * static_cast<double>(samples) / static_cast<double>(global_batch));
  }
  // What gradients are of: Σ weight · mean over the metrics, of the sums of all numbers over so many samples.
  double Objective(const std::vector<double>& sums, std::int64_t samples) const {
    double objective = 0;
    for (size_t m = 0; m < metrics.size(); ++m) {
      if (metrics[m].weight == 0) continue;
      objective += metrics[m].weight * MeanOf(m, sums[static_cast<size_t>(metrics[m].first)], samples);
    }
    return objective;
  }
  std::int64_t BlocksIn(const Chunk& chunk) const {
    return CountUnits(chunk.first_unit, chunk.end_unit, graph::Unit::Kind::kBlock);
  }
  std::int64_t BlocksBefore(const Chunk& chunk) const {
    return CountUnits(0, chunk.first_unit, graph::Unit::Kind::kBlock);
  }
};

}  // namespace engine::plan
