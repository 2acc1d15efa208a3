// The static execution plan, as plain data: what every rank runs, where every byte lives, who talks to whom
// when. Made by compile/compile.h, checked by verify/verify.h, printed by plan/print.h, run by engine/executor.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
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

// Bytes in the arena. Address on a rank = arena + offset + (in_slot: base of the slot, or of the lanes' slots
// where lane_stride > 0) + (in_lane: the microbatch's lane × StagePlan::lane_bytes; or lane_stride > 0: ×
// that)
// + (index of the rank in shard_axes) × shard_stride.
struct BufferRef {
  std::int32_t value = -1;  // LocalValue, or −1 for flat buffers
  std::int64_t offset = 0;
  std::int64_t elements = 0;
  DType dtype = DType::kF32;
  bool in_slot = false;
  bool in_lane = false;
  // From one lane's to the next's, where the values of both lanes lie side by side; else 0.
  std::int64_t lane_stride = 0;
  AxisSet shard_axes = {};
  std::int64_t shard_stride = 0;
  std::int64_t bytes() const { return elements * SizeOf(dtype); }
  // Of both lanes, where they lie side by side.
  std::int64_t span() const { return bytes() + lane_stride; }
  // Whether a rank has both in some of its bytes, of equal slots and lanes (or of any lane, side by side).
  bool Overlaps(const BufferRef& other) const {
    return in_slot == other.in_slot && in_lane == other.in_lane && offset < other.offset + other.span() &&
           other.offset < offset + span();
  }
};

// One collective or kernel launch. `id` is unique in its segment and stable: its index.
struct Instruction {
  std::string kernel;  // op name ("linear"), flat kernel ("sum_squares"), or collective ("all_reduce")
  std::string name;    // the node it carries out
  const graph::OpDef* op = nullptr;  // null for flat kernels and collectives
  graph::Family family() const { return op != nullptr ? op->family : graph::Family::kOther; }
  Collective collective = Collective::kNone;
  Group group;  // of a collective
  Axis axis =
      Axis::kTp;      // along which a conversion of placement happens; flat collectives have one flat buffer
  bool flat = false;  // a collective over a flat buffer, in place, instead of a conversion between two values
  graph::Reduction reduction = graph::Reduction::kSum;
  std::vector<BufferRef> inputs;
  std::vector<BufferRef> outputs;
  BufferRef scratch;  // bytes that only this kernel uses while it runs; elements 0: none
  graph::Attributes attributes;
  std::uint32_t accumulate = 0;  // bit i: add into output i
  // Bit i, within accumulate: the first microbatch of an iteration overwrites output i instead.
  std::uint32_t fresh = 0;
  AxisSet only_first;           // run only on ranks with coordinate 0 along these axes
  graph::Work work = {};        // of one rank
  SlowPath slow = {};           // of a kernel that takes much longer than a fast one would
  std::int64_t wire_bytes = 0;  // a rank sends, by the ring algorithm, of a collective
  std::int32_t stream = 0;      // plan::Stream that it runs on
  // Pushed into the other members' arenas by copy engines instead of NCCL. All members are on one host.
  bool push = false;
  bool last_only = false;  // only in the iteration's last microbatch
  // Once for the microbatches of all lanes, of whose values its inputs are all, one behind the other along
  // dim 0.
  bool joint = false;
  // No instruction behind it waits for it but those that name it, the update segment and the program's end.
  bool detached = false;
  // The detached exchange, by name, of this program, that this one waits for; empty: none.
  std::string joins = {};
  // Of a pushed sum of two ranks: the addition is left to the one instruction that reads it. The output is
  // this rank's part, where the input has it, and the other rank's arrives in the scratch.
  bool unsummed = false;
  // Of such a sum on the computation's stream, and of its reader, the next instruction: the reader takes the
  // other rank's part from where that rank has made it, at the sum's place in its arena. Where ranks do not
  // reach each other's memory, it arrives in the scratch as ever.
  bool direct = false;
  // Of the reader: the other rank's part of its input `part_of`; elements 0: none.
  BufferRef part = {};
  std::int32_t part_of = -1;

  // Whether it is made of what both lanes have made; else, where it is joint, of buffers that they share.
  bool reads_lanes() const { return joint && op != nullptr; }
  // What it takes of an input, or makes of an output.
  std::int64_t BytesOf(const BufferRef& ref) const { return joint ? ref.span() : ref.bytes(); }
  bool RunsIn(std::int64_t microbatch, std::int64_t microbatches) const {
    return !last_only || microbatch + 1 == microbatches;
  }
};

// Whether a lane's exchange has to be finished before its next one begins: what is left to compute reads its
// scratch, and what the rank keeps of its input, and makes the rest of its output.
inline bool FinishesFirst(const Instruction& exchange, const Instruction& next) {
  if (next.flat) return false;  // of buckets: in places of their own
  if (next.inputs[0].Overlaps(exchange.outputs[0])) return true;
  for (const BufferRef* read : {&exchange.inputs[0], &exchange.scratch}) {
    for (const BufferRef* written : {&next.outputs[0], &next.scratch}) {
      if (read->elements > 0 && written->elements > 0 && written->Overlaps(*read)) return true;
    }
  }
  return false;
}

// Of two microbatches that run at once: in which place of Segment::order what is made of both runs.
inline constexpr std::uint8_t kJointLane = 2;

struct Segment {
  std::string name;  // "forward.0", "backward.1", "weights.1", "update"
  std::int32_t chunk = -1;
  std::vector<Instruction> instructions;
  // Where two microbatches run it at once: lane by lane, whose next instruction it is (compile/interleave.h);
  // kJointLane: the next joint one's.
  std::vector<std::uint8_t> order = {};
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
  std::int32_t microbatch = -1;
  std::int32_t slot = -1;  // of the chunk, where the step touches one
  std::int32_t chunk = -1;
  std::int32_t stream = 0;
  BufferRef buffer = {};  // kSend, kReceive
  std::vector<std::int32_t> waits = {};
  // kRun: in alternation with the next step, which runs the same segment for the microbatch of the other
  // lane.
  bool paired = false;
};

// Streams of a stage: computation, one per direction and kind of pipeline traffic, and two for collectives
// that run behind computation: of activations, and of buckets, which would hold up the former (one for all
// where NCCL does both).
enum Stream : std::int32_t {
  kComputeStream,
  kSendNext,
  kReceivePrevious,
  kSendPrevious,
  kReceiveNext,
  kExchangeStream,
  kBucketStream,
  kStreams
};
inline bool IsBehind(std::int32_t stream) { return stream == kExchangeStream || stream == kBucketStream; }

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
  std::int32_t value = -1;     // LocalValue
  std::int32_t gradient = -1;  // LocalValue of its accumulator; −1 where the plan only evaluates
  std::string name;
  Shape logical_shape;  // without padding
  graph::Initializer initializer;
  graph::Role role = graph::Role::kMatrix;
  std::int32_t unit = 0;  // that reads it first
  bool weight_decay = false;
  // Stages that hold a copy, in the order in which the model reads it: the first owns it.
  std::vector<std::int32_t> holders = {};
  bool tied() const { return holders.size() > 1; }
};

// What is summed over a batch beside gradients (graph::Metric).
struct PlanMetric {
  std::string name;
  double count = 1;  // that the sum over Plan::global_batch is divided by
  double weight = 1;
  std::int32_t unit = 0;  // that makes it
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
  bool weight_decay = false;
  bool bulk = false;                  // graph::RoleFacts
  std::vector<std::int32_t> holders;  // of each of the parameters (PlanParameter)
  bool owned = true;                  // false: a copy of another stage's parameters (not counted, not saved)
  bool early = false;                 // reduced behind the backward pass, as soon as its gradients are whole
  std::int64_t shards = 1;            // ZeRO-1: optimizer state is cut into so many, along `reduce`
  DType parameter_dtype = DType::kF32;
  DType gradient_dtype = DType::kF32;
  // master: elements 0 where the optimizer moves the parameters themselves
  BufferRef parameter, gradient, master;
  // What the optimizer keeps of them, in the order of Plan::optimizer's states; none where the plan only evaluates.
  std::vector<BufferRef> states = {};
  bool tied() const { return holders.size() > 1; }
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

// The segments that a chunk runs for a microbatch in programs of one kind, and what it is fed for it.
struct ChunkPasses {
  // backward, weights: −1 where there is no such pass. Without one for weights the backward pass makes all gradients.
  std::int32_t forward = -1, backward = -1, weights = -1;
  std::vector<BufferRef> inputs;  // in the slot, where the kind has slots
};

struct Chunk {
  std::int32_t index = 0;                     // in pipeline order
  std::int32_t first_unit = 0, end_unit = 0;  // Plan::units
  ByKind<ChunkPasses> passes;
  std::int64_t slot_base = 0;  // offset of slot 0 in the arena
  std::int64_t slot_bytes = 0;
  std::int64_t slots = 0;  // microbatches in flight, of the program that has most
  // Inputs of all microbatches of an iteration, of the largest program, one microbatch after the other, each in whole
  // words (StagedWords): `incoming` is filled while the iteration before still runs, `staged` is what the running one
  // takes its inputs from.
  BufferRef incoming, staged;

  ChunkPasses& train() { return passes[ProgramKind::kTrain]; }
  const ChunkPasses& train() const { return passes[ProgramKind::kTrain]; }
  const ChunkPasses& evaluate() const { return passes[ProgramKind::kEvaluate]; }
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
  // The segments with which every program of a kind begins and ends; −1: there is no program of that kind.
  struct Ends {
    std::int32_t first = -1, last = -1;
  };
  ByKind<Ends> ends;
  std::vector<Bucket> buckets;
  BufferRef
      scalars;  // f64: the first metric's sum, the sum of squared gradients, the other metrics' (ScalarOf)
  BufferRef control;  // f64[kControlNumbers], plan/control.h
  // Quantised weights and others that are made when an iteration begins, and read by all its microbatches.
  std::vector<BufferRef> derived;
  std::vector<State> states;
  BufferRef scales;  // states that fp8_update moves (graph::StateUpdate::kScales), one behind the other
  std::vector<Program> programs;  // of Plan::programs, in their order
  // Transients of the training segments: one lane for each microbatch that runs at once.
  // Behind them `joint_bytes` of transients that lie side by side.
  std::int64_t lane_base = 0, lane_bytes = 0, joint_bytes = 0;
  MemoryBreakdown memory;
  std::int64_t arena_bytes = 0;
  std::int64_t parameter_count = 0;  // local elements, padding included
  // FLOPs of matrix products and attention in one iteration on one rank, recomputation included.
  double flops = 0;  // of the largest program

  std::int32_t begin() const { return ends[ProgramKind::kTrain].first; }
  std::int32_t update() const { return ends[ProgramKind::kTrain].last; }
};

// Which of StagePlan::scalars is a metric's sum, and how many there are.
inline constexpr std::int32_t kSquaresScalar = 1;
constexpr std::int32_t ScalarOf(std::int32_t metric) { return metric == 0 ? 0 : metric + 1; }
constexpr std::int64_t ScalarsFor(std::size_t metrics) {
  return std::max<std::int64_t>(2, static_cast<std::int64_t>(metrics) + 1);
}

inline constexpr std::string_view kZeroBubble = "zero_bubble";

struct Plan {
  Mesh mesh;
  std::vector<graph::Unit> units;  // of the model, in order of execution
  std::vector<LocalValue> values;
  std::vector<PlanParameter> parameters;
  std::vector<PlanMetric> metrics;
  std::vector<StagePlan> stages;
  std::vector<Transfer> transfers;
  std::vector<std::int32_t> chunk_stage;  // stage of each chunk, in pipeline order
  std::string schedule;                   // "1f1b", "interleaved" or kZeroBubble
  // Those of a kind one behind the other, from the smallest to that of the whole global batch.
  std::vector<ProgramSpec> programs;
  std::int64_t microbatches = 1;        // of the largest program
  std::int64_t microbatch_samples = 1;  // over all data-parallel ranks
  // Microbatches that run at once, one's exchange behind the other's computation: each is 1 / lanes of the
  // recipe's.
  std::int64_t lanes = 1;
  std::int64_t global_batch = 1;  // of the largest program
  std::int64_t sequence = 1;
  std::int64_t vocab = 0, vocab_rows = 0;
  std::int64_t parameter_count = 0;  // logical
  std::int32_t logits = -1;          // LocalValue, kept to the end of evaluate where asked for
  BufferRef logits_buffer;
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
  // The largest program of a kind, or that of so many samples; −1: there is none.
  std::int32_t ProgramOf(ProgramKind kind, std::int64_t batch = 0) const {
    for (size_t p = programs.size(); p-- > 0;) {
      if (programs[p].kind == kind && (batch == 0 || programs[p].global_batch == batch))
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
  // "train"; of one that is not the largest of its kind, "train of 16 samples".
  std::string ProgramName(std::int32_t program) const;
  // Microbatches of such a program that run at once.
  std::int64_t LanesOf(ProgramKind kind) const { return FactsOf(kind).trains ? lanes : 1; }
  // The mean of a metric, of its sum over so many samples.
  double MeanOf(size_t metric, double sum, std::int64_t samples) const {
    return sum / (metrics[metric].count * static_cast<double>(samples) / static_cast<double>(global_batch));
  }
  // What gradients are of: Σ weight · mean over the metrics, of their sums over so many samples.
  double Objective(const std::vector<double>& sums, std::int64_t samples) const {
    double objective = 0;
    for (size_t m = 0; m < metrics.size(); ++m) {
      if (metrics[m].weight != 0) objective += metrics[m].weight * MeanOf(m, sums[m], samples);
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
