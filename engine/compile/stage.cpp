#include "engine/compile/stage.h"

#include <algorithm>

#include "engine/compile/buckets.h"
#include "engine/compile/interleave.h"
#include "engine/compile/program.h"
#include "engine/compile/segment.h"
#include "engine/compile/slots.h"
#include "engine/compile/update.h"
#include "engine/plan/arena.h"
#include "engine/plan/control.h"

namespace engine::compile {
namespace {

using graph::ValueKind;
using NodeList = std::vector<std::int32_t>;

class StageBuilder {
 public:
  StageBuilder(const StageInputs& inputs, std::int32_t stage, const ChunkUnits& chunk_units, plan::Plan* plan)
      : in_(inputs), policy_(*inputs.policy), index_(stage), plan_(*plan) {
    for (size_t c = 0; c < chunk_units.size(); ++c) {
      if (plan_.chunk_stage[c] != index_) continue;
      plan::Chunk chunk;
      chunk.index = static_cast<std::int32_t>(c);
      chunk.first_unit = chunk_units[c].first;
      chunk.end_unit = chunk_units[c].second;
      stage_.chunks.push_back(chunk);
    }
  }

  plan::StagePlan Build() {
    const std::vector<std::vector<plan::Turn>> turns = TrainTurns();
    PlaceParameters();
    PlaceStaging();
    const std::int64_t dynamic_base = cursor_;
    if (training()) BuildTraining(turns);
    const std::int64_t train_end = cursor_;
    cursor_ = dynamic_base;
    if (in_.evaluate != nullptr) BuildEvaluation();
    stage_.memory.evaluation = std::max<std::int64_t>(0, cursor_ - train_end);
    stage_.arena_bytes = std::max(train_end, cursor_);
    ENGINE_CHECK(stage_.arena_bytes == stage_.memory.total(), "arena of {} bytes, itemised {}",
                 stage_.arena_bytes, stage_.memory.total());
    for (const plan::Chunk& chunk : stage_.chunks) {
      if (training()) {
        const plan::ChunkPasses& passes = chunk.train();
        stage_.flops += static_cast<double>(plan_.microbatches) *
                        (Flops(passes.forward) + Flops(passes.backward) + Flops(passes.weights));
      }
    }
    return std::move(stage_);
  }

 private:
  bool training() const { return in_.train != nullptr; }
  double Flops(std::int32_t segment) const {
    return segment < 0 ? 0.0 : stage_.segments[static_cast<size_t>(segment)].product_flops;
  }
  const plan::LocalValue& ValueOf(std::int32_t id) const { return plan_.values[static_cast<size_t>(id)]; }

  std::int32_t AddSegment(plan::Segment segment) {
    stage_.segments.push_back(std::move(segment));
    return static_cast<std::int32_t>(stage_.segments.size() - 1);
  }

  std::int64_t Reserve(std::int64_t bytes) {
    const std::int64_t offset = cursor_;
    cursor_ += plan::Aligned(bytes);
    return offset;
  }

  plan::BufferRef ReserveFlat(std::int64_t elements, DType dtype, std::int64_t* item) {
    const std::int64_t bytes = elements * SizeOf(dtype);
    *item += plan::Aligned(bytes);
    return {.offset = Reserve(bytes), .elements = elements, .dtype = dtype};
  }

  plan::BufferRef RefOf(std::int32_t id, std::int64_t offset, bool in_slot) const {
    return {.value = id,
            .offset = offset,
            .elements = ValueOf(id).local.elements(),
            .dtype = ValueOf(id).dtype,
            .in_slot = in_slot};
  }

  // The turns of this stage's training programs; sets how many microbatches each chunk holds at most.
  std::vector<std::vector<plan::Turn>> TrainTurns() {
    std::vector<std::vector<plan::Turn>> turns;
    for (const plan::ProgramSpec& spec : plan_.programs) {
      if (spec.kind == plan::ProgramKind::kTrain) turns.push_back(TrainTurns(spec.microbatches));
    }
    return turns;
  }

  std::vector<plan::Turn> TrainTurns(std::int64_t microbatches) {
    const std::int64_t per_stage = static_cast<std::int64_t>(stage_.chunks.size());
    const std::int64_t together = microbatches / plan_.lanes;
    const bool deferred = plan_.schedule == plan::kZeroBubble;
    std::vector<plan::Turn> turns = plan::InLanes(
        per_stage > 1 ? plan::InterleavedOneForwardOneBackward(plan_.mesh.pp, per_stage, index_, together)
        : deferred    ? plan::ZeroBubble(plan_.mesh.pp, index_, together)
                      : plan::OneForwardOneBackward(plan_.mesh.pp, index_, together),
        plan_.lanes);
    const plan::Pass last = deferred ? plan::Pass::kWeights : plan::Pass::kBackward;
    for (plan::Chunk& chunk : stage_.chunks) {
      std::int64_t held = 0;
      for (const plan::Turn& turn : turns) {
        if (turn.chunk != chunk.index) continue;
        if (turn.pass == plan::Pass::kForward) ++held;
        if (turn.pass == last) --held;
        chunk.slots = std::max(chunk.slots, held);
      }
    }
    return turns;
  }

  std::vector<bool> UsedParameters() const {
    const CutGraph& graph = training() ? *in_.train : *in_.evaluate;
    std::vector<bool> used(plan_.parameters.size(), false);
    for (const plan::Chunk& chunk : stage_.chunks) {
      for (const NodeList* nodes : {&graph.prepare[static_cast<size_t>(chunk.index)],
                                    &graph.forward[static_cast<size_t>(chunk.index)],
                                    &graph.backward[static_cast<size_t>(chunk.index)],
                                    &graph.weights[static_cast<size_t>(chunk.index)]}) {
        for (std::int32_t n : *nodes) {
          for (std::int32_t input : graph.local.nodes[static_cast<size_t>(n)].inputs) {
            const plan::LocalValue& value = ValueOf(graph.base + input);
            if (value.kind == ValueKind::kParameter) used[static_cast<size_t>(value.parameter)] = true;
          }
        }
      }
    }
    return used;
  }

  // By parameter: the unit whose backward pass alone adds to its gradient, where gradients are reduced as
  // soon as their unit has made them; else kNoUnit.
  std::vector<std::int32_t> EarlyUnits() const {
    std::vector<std::int32_t> units(plan_.parameters.size(), kNoUnit);
    if (!training() || (!policy_.exchange.behind && policy_.storage.zero_stage < 2)) return units;
    std::vector<bool> several(plan_.parameters.size(), false);
    for (const LocalNode& node : in_.train->local.nodes) {
      for (std::int32_t output : node.outputs) {
        const plan::LocalValue& value = ValueOf(in_.train->base + output);
        if (value.kind != ValueKind::kAccumulator || value.parameter < 0) continue;
        const size_t p = static_cast<size_t>(value.parameter);
        several[p] = several[p] || (units[p] != kNoUnit && units[p] != node.unit);
        units[p] = node.unit;
      }
    }
    for (size_t p = 0; p < units.size(); ++p) {
      if (units[p] == kNoUnit) continue;
      const graph::Unit::Kind kind = plan_.units[static_cast<size_t>(units[p])].kind;
      const bool entry = kind == graph::Unit::Kind::kEntry;  // its gradient is the last to be made
      // Or kept in shards.
      const bool early = policy_.exchange.behind || kind == graph::Unit::Kind::kBlock;
      if (several[p] || entry || !early) units[p] = kNoUnit;
    }
    return units;
  }

  void PlaceParameters() {
    stage_.buckets = MakeBuckets(plan_, UsedParameters(), EarlyUnits(),
                                 training() ? policy_.storage.zero_stage : 0, index_);
    for (const plan::Bucket& bucket : stage_.buckets) stage_.parameter_count += bucket.elements;
    PlaceBuckets(policy_.storage, &cursor_, &stage_.memory, &stage_.buckets);
    stage_.scalars = ReserveFlat(plan::ScalarsFor(plan_.metrics.size()), DType::kF64, &stage_.memory.control);
    stage_.control = ReserveFlat(plan::kControlNumbers, DType::kF64, &stage_.memory.control);
    MapPersistent();
    if (training()) PlaceDerived();
    PlaceStates();
  }

  // Parameters, their gradients and metrics have one place for both graphs.
  void MapPersistent() {
    std::vector<std::pair<const plan::Bucket*, const plan::Bucket::Item*>> item_of(plan_.parameters.size(),
                                                                                   {nullptr, nullptr});
    for (const plan::Bucket& bucket : stage_.buckets) {
      for (const plan::Bucket::Item& item : bucket.items)
        item_of[static_cast<size_t>(item.parameter)] = {&bucket, &item};
    }
    for (size_t v = 0; v < plan_.values.size(); ++v) {
      const plan::LocalValue& value = plan_.values[v];
      const std::int32_t id = static_cast<std::int32_t>(v);
      if (value.metric >= 0) {
        plan::BufferRef sum = stage_.scalars;
        sum.value = id;
        sum.offset += plan::ScalarOf(value.metric) * SizeOf(sum.dtype);
        sum.elements = 1;
        persistent_[id] = sum;
      }
      if (value.parameter < 0) continue;
      const auto [bucket, item] = item_of[static_cast<size_t>(value.parameter)];
      if (bucket == nullptr) continue;
      const bool gradient = value.kind == ValueKind::kAccumulator;
      if (gradient && bucket->gradient_shard.elements > 0) in_turns_.insert(id);
      persistent_[id] = ItemRef(gradient ? bucket->gradient : bucket->parameter, *item, id);
    }
  }

  // Calls visit(node) for the nodes of this stage's chunks.
  template <typename Visit>
  void ForEachNode(const CutGraph& graph, const Visit& visit) const {
    for (const plan::Chunk& chunk : stage_.chunks) {
      const size_t c = static_cast<size_t>(chunk.index);
      for (const NodeList* nodes :
           {&graph.prepare[c], &graph.forward[c], &graph.backward[c], &graph.weights[c]}) {
        for (std::int32_t n : *nodes) visit(graph.local.nodes[static_cast<size_t>(n)]);
      }
    }
  }

  // Quantised weights.
  void PlaceDerived() {
    ForEachNode(*in_.train, [&](const LocalNode& node) {
      for (std::int32_t output : node.outputs) {
        const std::int32_t id = in_.train->base + output;
        if (ValueOf(id).kind != ValueKind::kDerived || persistent_.contains(id)) continue;
        const std::int64_t bytes = ValueOf(id).local_bytes();
        stage_.memory.parameters += plan::Aligned(bytes);
        persistent_[id] = RefOf(id, Reserve(bytes), false);
        stage_.derived.push_back(persistent_[id]);
      }
    });
  }

  // What nodes of the stage read or move, in their order; of both graphs, which know a state by its name. Those that
  // fp8_update moves lie one behind the other.
  void PlaceStates() {
    for (const CutGraph* graph : {in_.train, in_.evaluate}) {
      if (graph != nullptr) CollectStates(*graph);
    }
    std::int64_t scales = 0;
    for (const plan::State& state : stage_.states) {
      if (state.spec.update == graph::StateUpdate::kScales) scales += state.buffer.elements;
    }
    if (scales > 0) stage_.scales = ReserveFlat(scales, DType::kF32, &stage_.memory.control);
    std::int64_t next = stage_.scales.offset;
    for (plan::State& state : stage_.states) {
      const std::int64_t bytes = state.buffer.bytes();
      if (state.spec.update == graph::StateUpdate::kScales) {
        state.buffer.offset = next;
        next += bytes;
      } else {
        state.buffer.offset = Reserve(bytes);
        stage_.memory.control += plan::Aligned(bytes);
      }
      persistent_[state.buffer.value] = state.buffer;
    }
    for (const auto& [id, first] : same_state_) {
      persistent_[id] = persistent_.at(first);
      persistent_[id].value = id;
    }
  }

  void CollectStates(const CutGraph& graph) {
    if (graph.local.states.empty()) return;
    absl::flat_hash_map<std::int32_t, const graph::StateSpec*> specs;  // by local value
    for (const graph::State& state : graph.local.states) specs[state.value] = &state.spec;
    absl::flat_hash_set<std::int32_t> known;
    ForEachNode(graph, [&](const LocalNode& node) {
      for (const std::vector<std::int32_t>* values : {&node.inputs, &node.outputs}) {
        for (std::int32_t v : *values) {
          const auto spec = specs.find(v);
          if (spec != specs.end() && known.insert(v).second) AddState(graph.base + v, *spec->second);
        }
      }
    });
  }

  void AddState(std::int32_t id, const graph::StateSpec& spec) {
    const bool moved_by_node = spec.update == graph::StateUpdate::kNode;  // one value a name in a graph
    for (const plan::State& state : stage_.states) {
      if (!moved_by_node || ValueOf(state.buffer.value).name != ValueOf(id).name) continue;
      same_state_[id] = state.buffer.value;
      return;
    }
    stage_.states.push_back({.buffer = RefOf(id, 0, false), .spec = spec});
  }

  std::int64_t FedWords(const CutGraph& graph, const plan::Chunk& chunk) const {
    std::int64_t words = 0;
    for (std::int32_t v : SavedValues(graph, chunk.index)) {
      const plan::LocalValue& value = graph.local.values[static_cast<size_t>(v)];
      if (value.kind == ValueKind::kInput) words += plan::StagedWords(value.local_bytes());
    }
    return words;
  }

  void PlaceStaging() {
    for (plan::Chunk& chunk : stage_.chunks) {
      std::int64_t elements = in_.evaluate != nullptr ? FedWords(*in_.evaluate, chunk) : 0;
      if (training()) elements = std::max(elements, FedWords(*in_.train, chunk));
      elements *= plan_.microbatches;
      if (elements == 0) continue;
      chunk.incoming = ReserveFlat(elements, DType::kI32, &stage_.memory.control);
      chunk.staged = ReserveFlat(elements, DType::kI32, &stage_.memory.control);
    }
  }

  void PlaceSlots() {
    for (plan::Chunk& chunk : stage_.chunks) {
      const SlotLayout& slot = slots_[chunk.index] = LayOutSlot(plan_, *in_.train, chunk.index);
      chunk.train().inputs = slot.inputs;
      chunk.slot_bytes = slot.bytes;
      chunk.slot_base = Reserve(slot.bytes * chunk.slots);
      stage_.memory.activations += slot.bytes * chunk.slots;
    }
  }

  // Buffers of the pipeline for one graph's transfers, of each lane one behind the other. Values that the slot keeps
  // are received there and sent from there; what a chunk relays is sent from where it was received.
  TransferBuffers PlaceTransfers(const CutGraph& graph, std::int64_t lanes, std::int64_t* item) {
    TransferBuffers buffers;
    absl::flat_hash_map<std::pair<std::int32_t, std::int32_t>, plan::BufferRef> arrived;  // by value, chunk
    const std::int32_t end = graph.base + static_cast<std::int32_t>(graph.local.values.size());
    for (size_t t = 0; t < plan_.transfers.size(); ++t) {
      const plan::Transfer& transfer = plan_.transfers[t];
      if (transfer.value < graph.base || transfer.value >= end) continue;
      const auto place = [&]() {
        plan::BufferRef ref = RefOf(transfer.value, cursor_, false);
        const std::int64_t bytes = plan::Aligned(ref.bytes());
        if (lanes > 1) ref.lane_stride = bytes;
        Reserve(lanes * bytes);
        *item += lanes * bytes;
        return ref;
      };
      const std::int32_t id = static_cast<std::int32_t>(t);
      // Where the chunk has the value already: in its slot, or where an earlier hop has brought it.
      const auto place_in = [&](std::int32_t chunk) {
        const auto slot = slots_.find(chunk);
        const bool kept = slot != slots_.end() && slot->second.values.contains(transfer.value);
        if (kept) return slot->second.values.at(transfer.value);
        const auto hop = arrived.find({transfer.value, chunk});
        return hop != arrived.end() ? hop->second : place();
      };
      if (plan_.chunk_stage[static_cast<size_t>(transfer.from_chunk)] == index_)
        buffers.send[id] = place_in(transfer.from_chunk);
      if (plan_.chunk_stage[static_cast<size_t>(transfer.to_chunk)] != index_) continue;
      buffers.receive[id] = place_in(transfer.to_chunk);
      arrived[{transfer.value, transfer.to_chunk}] = buffers.receive[id];
    }
    return buffers;
  }

  // Storage of one chunk: parameters, slot values, and the pipeline buffers on its borders.
  Storage ChunkStorage(const plan::Chunk& chunk, const TransferBuffers& buffers, bool with_slots) const {
    Storage storage = persistent_;
    if (with_slots) {
      for (const auto& [id, ref] : slots_.at(chunk.index).values) storage[id] = ref;
    }
    for (const auto& [t, ref] : buffers.send) {
      const plan::Transfer& transfer = plan_.transfers[static_cast<size_t>(t)];
      if (transfer.from_chunk == chunk.index) storage[transfer.value] = ref;
    }
    for (const auto& [t, ref] : buffers.receive) {
      const plan::Transfer& transfer = plan_.transfers[static_cast<size_t>(t)];
      if (transfer.to_chunk == chunk.index) storage[transfer.value] = ref;
    }
    return storage;
  }

  // The start of an iteration: sums to zero, weights quantised.
  plan::Segment Begin(std::int64_t transient_base, std::int64_t* transients) const {
    plan::Segment begin = BeginSegment("begin", plan_, stage_, policy_.exchange);
    for (const plan::Chunk& chunk : stage_.chunks) {
      const SegmentInputs inputs{.plan = &plan_,
                                 .graph = &in_.train->local,
                                 .base = in_.train->base,
                                 .nodes = &in_.train->prepare[static_cast<size_t>(chunk.index)],
                                 .storage = &persistent_,
                                 .transient_base = transient_base,
                                 .profile = in_.profile,
                                 .dying = nullptr,
                                 .in_turns = nullptr,
                                 .summed = nullptr};
      TransientBytes bytes;
      plan::Segment prepare = BuildSegment(inputs, "begin", -1, &bytes);
      *transients = std::max(*transients, bytes.own);
      for (plan::Instruction& instruction : prepare.instructions)
        begin.instructions.push_back(std::move(instruction));
    }
    return begin;
  }

  // Where the parts of pushed gradients arrive: one place, as each is added up before the next arrives. Its
  // bytes.
  std::int64_t PlaceSumScratch(std::int64_t offset) {
    std::int64_t bytes = 0;
    for (plan::Segment& segment : stage_.segments) {
      for (plan::Instruction& instruction : segment.instructions) {
        if (!instruction.flat || instruction.scratch.elements == 0) continue;
        instruction.scratch.offset = offset;
        bytes = std::max(bytes, plan::Aligned(instruction.scratch.bytes()));
      }
    }
    return bytes;
  }

  // Gradients to which a chunk behind this one adds, on this stage: a microbatch passes backward through that first.
  absl::flat_hash_set<std::int32_t> SummedBehind(const plan::Chunk& chunk) const {
    absl::flat_hash_set<std::int32_t> summed;
    for (const plan::Chunk& behind : stage_.chunks) {
      if (behind.index <= chunk.index) continue;
      const size_t c = static_cast<size_t>(behind.index);
      for (const NodeList* nodes : {&in_.train->backward[c], &in_.train->weights[c]}) {
        for (std::int32_t n : *nodes) {
          for (std::int32_t output : in_.train->local.nodes[static_cast<size_t>(n)].outputs) {
            const std::int32_t id = in_.train->base + output;
            if (ValueOf(id).kind == ValueKind::kAccumulator && ValueOf(id).parameter >= 0) summed.insert(id);
          }
        }
      }
    }
    return summed;
  }

  // `turns`: of each training program.
  void BuildTraining(const std::vector<std::vector<plan::Turn>>& turns) {
    PlaceSlots();
    const TransferBuffers buffers = PlaceTransfers(*in_.train, plan_.lanes, &stage_.memory.communication);
    const std::int64_t transient_base = cursor_;
    std::int64_t transients = 0;  // of begin and update, which run alone
    TransientBytes lane;          // of the segments of a microbatch
    plan::StagePlan::Ends& ends = stage_.ends[plan::ProgramKind::kTrain];
    ends.first = AddSegment(Begin(transient_base, &transients));
    for (plan::Chunk& chunk : stage_.chunks) {
      plan::ChunkPasses& passes = chunk.train();
      const Storage storage = ChunkStorage(chunk, buffers, true);
      const absl::flat_hash_set<std::int32_t> summed = SummedBehind(chunk);
      const auto build = [&](const char* phase, const NodeList& nodes, const Storage* dying) {
        SegmentInputs inputs{.plan = &plan_,
                             .graph = &in_.train->local,
                             .base = in_.train->base,
                             .nodes = &nodes,
                             .storage = &storage,
                             .transient_base = transient_base,
                             .profile = in_.profile,
                             .dying = dying,
                             .keep = -1,
                             .in_lane = plan_.lanes > 1,
                             .pushed = policy_.exchange.pushed,
                             .direct = policy_.exchange.direct,
                             .in_turns = &in_turns_,
                             .summed = &summed};
        TransientBytes bytes;
        const std::int32_t id =
            AddSegment(BuildSegment(inputs, fmt::format("{}.{}", phase, chunk.index), chunk.index, &bytes));
        lane = {.own = std::max(lane.own, bytes.own), .joint = std::max(lane.joint, bytes.joint)};
        return id;
      };
      const size_t c = static_cast<size_t>(chunk.index);
      passes.forward = build("forward", in_.train->forward[c], nullptr);
      const SlotLayout& slot = slots_.at(chunk.index);
      passes.backward = build("backward", in_.train->backward[c], &slot.dying);
      if (plan_.schedule == plan::kZeroBubble) {
        passes.weights = build("weights", in_.train->weights[c], &slot.values);
      }
      ReduceEarly(plan_, chunk, *in_.profile, policy_.exchange, &stage_);
      // In a pipeline transfers keep the links awake.
      if (plan_.mesh.pp == 1)
        ReduceLate(policy_.rates, &stage_.segments[static_cast<size_t>(passes.backward)]);
      for (std::int32_t segment : {passes.forward, passes.backward}) {
        GatherParameters(plan_, stage_, policy_.exchange, plan_.lanes > 1,
                         &stage_.segments[static_cast<size_t>(segment)]);
      }
      JoinGathers(plan_, stage_,
                  {&stage_.segments[static_cast<size_t>(passes.forward)],
                   &stage_.segments[static_cast<size_t>(passes.backward)]});
    }
    stage_.lane_base = transient_base;
    stage_.lane_bytes = plan::Aligned(lane.own);
    stage_.joint_bytes = plan::Aligned(lane.joint);
    std::int64_t lanes = stage_.lane_bytes * plan_.lanes;
    if (plan_.lanes > 1) {
      for (plan::Segment& segment : stage_.segments) {
        if (segment.chunk < 0) continue;
        ShiftJoint(transient_base + lanes, &segment);
        segment.order = Interleave(segment, policy_.rates).order;
      }
    }
    lanes += stage_.joint_bytes;
    transients = std::max(transients, lanes + PlaceSumScratch(transient_base + lanes));
    std::int64_t update_bytes = 0;
    ends.last = AddSegment(UpdateSegment(plan_, stage_, policy_.optimizer, policy_.exchange, *in_.profile,
                                         transient_base, &update_bytes));
    transients = std::max(transients, update_bytes);
    stage_.memory.transients = plan::Aligned(transients);
    Reserve(transients);
    const ProgramInputs program{
        .plan = &plan_, .stage = &stage_, .buffers = &buffers, .kind = plan::ProgramKind::kTrain};
    for (const std::vector<plan::Turn>& of_one : turns)
      stage_.programs.push_back(UnrollProgram(program, of_one));
  }

  bool MakesLogits(const plan::Chunk& chunk) const {
    const CutGraph& graph = *in_.evaluate;
    return graph.producer_chunk[static_cast<size_t>(plan_.logits - graph.base)] == chunk.index;
  }

  void BuildEvaluation() {
    constexpr plan::ProgramKind kKind = plan::ProgramKind::kEvaluate;
    const CutGraph& graph = *in_.evaluate;
    slots_.clear();
    std::int64_t ignored = 0;
    std::vector<Storage> fed(stage_.chunks.size());
    for (size_t c = 0; c < stage_.chunks.size(); ++c) {
      for (std::int32_t v : SavedValues(graph, stage_.chunks[c].index)) {
        if (graph.local.values[static_cast<size_t>(v)].kind != ValueKind::kInput) continue;
        const plan::BufferRef ref = RefOf(graph.base + v, cursor_, false);
        Reserve(ref.bytes());
        fed[c][graph.base + v] = ref;
        stage_.chunks[c].passes[kKind].inputs.push_back(ref);
      }
    }
    const TransferBuffers buffers = PlaceTransfers(graph, 1, &ignored);
    const std::int64_t transient_base = cursor_;
    std::int64_t transients = 0;
    for (size_t c = 0; c < stage_.chunks.size(); ++c) {
      plan::Chunk& chunk = stage_.chunks[c];
      Storage storage = ChunkStorage(chunk, buffers, false);
      storage.insert(fed[c].begin(), fed[c].end());
      const SegmentInputs inputs{.plan = &plan_,
                                 .graph = &graph.local,
                                 .base = graph.base,
                                 .nodes = &graph.forward[static_cast<size_t>(chunk.index)],
                                 .storage = &storage,
                                 .transient_base = transient_base,
                                 .profile = in_.profile,
                                 .dying = nullptr,
                                 .keep = in_.keep_logits && MakesLogits(chunk) ? plan_.logits : -1,
                                 .in_lane = false,
                                 .pushed = policy_.exchange.pushed,
                                 .direct = policy_.exchange.direct,
                                 .in_turns = nullptr,
                                 .summed = nullptr};
      TransientBytes bytes;
      chunk.passes[kKind].forward = AddSegment(BuildSegment(inputs, fmt::format("evaluate.{}", chunk.index),
                                                            chunk.index, &bytes, &plan_.logits_buffer));
      FlatExchange exchange = policy_.exchange;
      exchange.behind = exchange.behind && exchange.beside_conversions;
      GatherParameters(plan_, stage_, exchange, /*lanes=*/false, &stage_.segments.back());
      JoinGathers(plan_, stage_, {&stage_.segments.back()});
      transients = std::max(transients, bytes.own);
    }
    Reserve(transients);
    plan::StagePlan::Ends& ends = stage_.ends[kKind];
    ends.first = AddSegment(BeginSegment("evaluate_begin", plan_, stage_, policy_.exchange));
    plan::Segment end;
    end.name = "evaluate_end";
    if (plan_.mesh.world() > 1) end.instructions.push_back(ReduceScalars(plan_, stage_));
    ends.last = AddSegment(std::move(end));
    const ProgramInputs program{.plan = &plan_, .stage = &stage_, .buffers = &buffers, .kind = kKind};
    stage_.programs.push_back(UnrollProgram(
        program, plan::ForwardOnly(plan_.mesh.pp, static_cast<std::int64_t>(stage_.chunks.size()), index_,
                                   plan_.microbatches)));
  }

  const StageInputs& in_;
  const Policy& policy_;
  const std::int32_t index_;
  plan::Plan& plan_;
  plan::StagePlan stage_;
  std::int64_t cursor_ = 0;
  Storage persistent_;
  absl::flat_hash_map<std::int32_t, std::int32_t> same_state_;  // evaluation's value of a state → training's
  absl::flat_hash_set<std::int32_t> in_turns_;                  // gradients that go on to a shard
  absl::flat_hash_map<std::int32_t, SlotLayout> slots_;         // by chunk
};

}  // namespace

void BuildStage(const StageInputs& inputs, std::int32_t stage, const ChunkUnits& chunk_units,
                plan::Plan* plan) {
  plan->stages.push_back(StageBuilder(inputs, stage, chunk_units, plan).Build());
}

}  // namespace engine::compile
