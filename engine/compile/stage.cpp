#include "engine/compile/stage.h"

#include <algorithm>

#include "engine/compile/buckets.h"
#include "engine/compile/halves.h"
#include "engine/compile/place.h"
#include "engine/compile/program.h"
#include "engine/compile/select.h"
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

  // Whether the halves would wait for each other in a segment (Halved::stuck).
  bool halves_stuck() const { return halves_stuck_; }

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
    const std::int64_t together = microbatches / plan_.halves;
    const bool deferred = plan_.schedule == plan::kZeroBubble;
    std::vector<plan::Turn> turns =
        per_stage > 1 ? plan::InterleavedOneForwardOneBackward(plan_.mesh.pp, per_stage, index_, together)
        : deferred    ? plan::ZeroBubble(plan_.mesh.pp, index_, together)
                      : plan::OneForwardOneBackward(plan_.mesh.pp, index_, together);
    const plan::Pass last = deferred ? plan::Pass::kWeights : plan::Pass::kBackward;
    for (plan::Chunk& chunk : stage_.chunks) {
      std::int64_t held = 0;
      for (const plan::Turn& turn : turns) {
        if (turn.chunk != chunk.index) continue;
        if (turn.pass == plan::Pass::kForward) ++held;
        if (turn.pass == last) --held;
        chunk.slots = std::max(chunk.slots, held * plan_.halves);
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

  // Buffers of the pipeline for one graph's transfers, of each half one behind the other. Values that the slot keeps
  // are received there and sent from there; what a chunk relays is sent from where it was received.
  TransferBuffers PlaceTransfers(const CutGraph& graph, std::int64_t halves, std::int64_t* item) {
    TransferBuffers buffers;
    absl::flat_hash_map<std::pair<std::int32_t, std::int32_t>, HalfBuffers> arrived;  // by value, chunk
    const std::int32_t end = graph.base + static_cast<std::int32_t>(graph.local.values.size());
    for (size_t t = 0; t < plan_.transfers.size(); ++t) {
      const plan::Transfer& transfer = plan_.transfers[t];
      if (transfer.value < graph.base || transfer.value >= end) continue;
      const auto place = [&]() {
        HalfBuffers buffer;
        for (std::int64_t half = 0; half < halves; ++half) {
          plan::BufferRef& ref = buffer[static_cast<size_t>(half)];
          ref = RefOf(transfer.value, cursor_, false);
          Reserve(ref.bytes());
          *item += plan::Aligned(ref.bytes());
        }
        return buffer;
      };
      const std::int32_t id = static_cast<std::int32_t>(t);
      // Where the chunk has the value already: in its slot, or where an earlier hop has brought it.
      const auto place_in = [&](std::int32_t chunk) {
        const auto slot = slots_.find(chunk);
        if (slot != slots_.end() && slot->second.values.first.contains(transfer.value)) {
          HalfBuffers kept;
          kept[0] = slot->second.values.first.at(transfer.value);
          if (halves > 1) kept[1] = slot->second.values.second.at(transfer.value);
          return kept;
        }
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
  HalfStorage ChunkStorage(const plan::Chunk& chunk, const TransferBuffers& buffers, bool trains) const {
    HalfStorage storage{.first = persistent_, .second = {}};
    const bool halves = trains && plan_.halves > 1;
    if (halves) storage.second = persistent_;
    if (trains) {
      const HalfStorage& values = slots_.at(chunk.index).values;
      for (const auto& [id, ref] : values.first) storage.first[id] = ref;
      for (const auto& [id, ref] : values.second) storage.second[id] = ref;
    }
    const auto add = [&](const plan::Transfer& transfer, const HalfBuffers& refs) {
      storage.first[transfer.value] = refs[0];
      if (halves) storage.second[transfer.value] = refs[1];
    };
    for (const auto& [t, refs] : buffers.send) {
      const plan::Transfer& transfer = plan_.transfers[static_cast<size_t>(t)];
      if (transfer.from_chunk == chunk.index) add(transfer, refs);
    }
    for (const auto& [t, refs] : buffers.receive) {
      const plan::Transfer& transfer = plan_.transfers[static_cast<size_t>(t)];
      if (transfer.to_chunk == chunk.index) add(transfer, refs);
    }
    return storage;
  }

  // The start of an iteration: sums to zero, weights quantised.
  plan::Segment Begin(std::int64_t transient_base, std::int64_t* transients) const {
    plan::Segment begin = BeginSegment("begin", plan_, stage_, policy_.exchange);
    for (const plan::Chunk& chunk : stage_.chunks) {
      const SelectInputs select{.plan = &plan_,
                                .graph = &in_.train->local,
                                .base = in_.train->base,
                                .nodes = &in_.train->prepare[static_cast<size_t>(chunk.index)],
                                .storage = &persistent_,
                                .profile = in_.profile};
      const HalfStorage storage{.first = persistent_, .second = {}};
      const PlaceInputs place{.plan = &plan_, .storage = &storage, .transient_base = transient_base};
      std::int64_t bytes = 0;
      plan::Segment prepare = Place(place, Select(select, "begin", -1), &bytes);
      *transients = std::max(*transients, bytes);
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
        if (!instruction.IsBucketExchange() || instruction.scratch.elements == 0) continue;
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

  // A microbatch's passes through a chunk, without addresses.
  struct Passes {
    DraftSegment forward, backward, weights;
  };

  Passes SelectPasses(const plan::Chunk& chunk, const Storage& storage) const {
    const absl::flat_hash_set<std::int32_t> summed = SummedBehind(chunk);
    const auto select = [&](const char* phase, const NodeList& nodes, bool values_die) {
      const SelectInputs inputs{.plan = &plan_,
                                .graph = &in_.train->local,
                                .base = in_.train->base,
                                .nodes = &nodes,
                                .storage = &storage,
                                .profile = in_.profile,
                                .values_die = values_die,
                                .pushed = policy_.exchange.pushed,
                                .direct = policy_.exchange.direct && plan_.halves == 1,
                                .in_turns = &in_turns_,
                                .summed = &summed};
      return Select(inputs, fmt::format("{}.{}", phase, chunk.index), chunk.index);
    };
    const size_t c = static_cast<size_t>(chunk.index);
    Passes passes{.forward = select("forward", in_.train->forward[c], false),
                  .backward = select("backward", in_.train->backward[c], true),
                  .weights = {}};
    if (plan_.schedule == plan::kZeroBubble) passes.weights = select("weights", in_.train->weights[c], true);
    return passes;
  }

  // Puts reductions and gathers of buckets into the passes.
  void ExchangeBuckets(Passes* passes) const {
    ReduceEarly(plan_, stage_, *in_.profile, policy_.exchange, {&passes->backward, &passes->weights});
    // In a pipeline transfers keep the links awake.
    if (plan_.mesh.pp == 1) ReduceLate(policy_.rates, &passes->backward);
    for (DraftSegment* pass : {&passes->forward, &passes->backward})
      GatherParameters(plan_, stage_, policy_.exchange, pass);
    JoinGathers(plan_, stage_, {&passes->forward, &passes->backward});
  }

  // The pass with addresses: that of a microbatch, or of both halves in turns.
  std::int32_t PlacePass(DraftSegment pass, const HalfStorage& storage, const Storage* dying) {
    PlaceInputs place{
        .plan = &plan_, .storage = &storage, .dying = dying, .transient_base = stage_.transient_base};
    std::int64_t bytes = 0;
    if (plan_.halves == 1) {
      const std::int32_t id = AddSegment(Place(place, std::move(pass), &bytes));
      stage_.pass_bytes = std::max(stage_.pass_bytes, bytes);
      return id;
    }
    const HalvesInputs inputs{.plan = &plan_,
                              .profile = in_.profile,
                              .storage = &storage,
                              .dying = dying,
                              .transient_base = stage_.transient_base,
                              .rates = policy_.rates};
    Halved halved = Halve(inputs, pass);
    halves_stuck_ = halves_stuck_ || halved.stuck;
    HalfStorage all = storage;
    all.first.insert(halved.beside.first.begin(), halved.beside.first.end());
    all.second.insert(halved.beside.second.begin(), halved.beside.second.end());
    place.storage = &all;
    place.dying = nullptr;  // what takes their bytes has its place by now
    place.transient_base += halved.beside_bytes;
    const std::int32_t id = AddSegment(Place(place, std::move(halved.segment), &bytes));
    stage_.pass_bytes = std::max(stage_.pass_bytes, halved.beside_bytes + bytes);
    return id;
  }

  // `turns`: of each training program.
  void BuildTraining(const std::vector<std::vector<plan::Turn>>& turns) {
    PlaceSlots();
    const TransferBuffers buffers = PlaceTransfers(*in_.train, plan_.halves, &stage_.memory.communication);
    stage_.transient_base = cursor_;
    std::int64_t transients = 0;  // of begin and update, which run alone
    plan::StagePlan::Ends& ends = stage_.ends[plan::ProgramKind::kTrain];
    ends.first = AddSegment(Begin(stage_.transient_base, &transients));
    for (plan::Chunk& chunk : stage_.chunks) {
      const HalfStorage storage = ChunkStorage(chunk, buffers, true);
      const SlotLayout& slot = slots_.at(chunk.index);
      Passes drafts = SelectPasses(chunk, storage.first);
      ExchangeBuckets(&drafts);
      plan::ChunkPasses& passes = chunk.train();
      passes.forward = PlacePass(std::move(drafts.forward), storage, nullptr);
      passes.backward = PlacePass(std::move(drafts.backward), storage, &slot.dying);
      if (plan_.schedule == plan::kZeroBubble)
        passes.weights = PlacePass(std::move(drafts.weights), storage, &slot.values.first);
    }
    stage_.pass_bytes = plan::Aligned(stage_.pass_bytes);
    const std::int64_t transient_base = stage_.transient_base;
    transients =
        std::max(transients, stage_.pass_bytes + PlaceSumScratch(transient_base + stage_.pass_bytes));
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
      HalfStorage storage = ChunkStorage(chunk, buffers, false);
      storage.first.insert(fed[c].begin(), fed[c].end());
      const std::int32_t keep = in_.keep_logits && MakesLogits(chunk) ? plan_.logits : -1;
      const SelectInputs select{.plan = &plan_,
                                .graph = &graph.local,
                                .base = graph.base,
                                .nodes = &graph.forward[static_cast<size_t>(chunk.index)],
                                .storage = &storage.first,
                                .profile = in_.profile,
                                .keep = keep,
                                .pushed = policy_.exchange.pushed,
                                .direct = policy_.exchange.direct};
      DraftSegment pass = Select(select, fmt::format("evaluate.{}", chunk.index), chunk.index);
      FlatExchange exchange = policy_.exchange;
      exchange.behind = exchange.behind && exchange.beside_conversions;
      GatherParameters(plan_, stage_, exchange, &pass);
      JoinGathers(plan_, stage_, {&pass});
      const PlaceInputs place{
          .plan = &plan_, .storage = &storage, .keep = keep, .transient_base = transient_base};
      std::int64_t bytes = 0;
      chunk.passes[kKind].forward = AddSegment(Place(place, std::move(pass), &bytes, &plan_.logits_buffer));
      transients = std::max(transients, bytes);
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
  bool halves_stuck_ = false;
  plan::Plan& plan_;
  plan::StagePlan stage_;
  std::int64_t cursor_ = 0;
  Storage persistent_;
  absl::flat_hash_map<std::int32_t, std::int32_t> same_state_;  // evaluation's value of a state → training's
  absl::flat_hash_set<std::int32_t> in_turns_;                  // gradients that go on to a shard
  absl::flat_hash_map<std::int32_t, SlotLayout> slots_;         // by chunk
};

}  // namespace

bool BuildStage(const StageInputs& inputs, std::int32_t stage, const ChunkUnits& chunk_units,
                plan::Plan* plan) {
  StageBuilder builder(inputs, stage, chunk_units, plan);
  plan->stages.push_back(builder.Build());
  return !builder.halves_stuck();
}

}  // namespace engine::compile
