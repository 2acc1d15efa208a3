#include "engine/compile/stage_passes.h"

#include <absl/container/flat_hash_set.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "engine/compile/flat_exchange.h"
#include "engine/compile/halves.h"
#include "engine/compile/offload.h"
#include "engine/compile/place.h"
#include "engine/compile/select.h"

namespace engine::compile {
namespace {

using NodeList = std::vector<std::int32_t>;

// Builds the passes of one chunk: instructions are selected, exchanges of buckets and copies to and from the host put
// between them, halves interleaved, and then all get their addresses.
class PassesBuilder {
 public:
  PassesBuilder(const PassesInputs& inputs, size_t chunk, UnfinishedStage* stage)
      : in_(*inputs.stage),
        policy_(*in_.policy),
        plan_(*inputs.plan),
        persistent_(*inputs.persistent),
        stage_(*stage),
        chunk_(stage->plan.chunks[chunk].index),
        slot_(inputs.slots->at(chunk_)),
        storage_(StorageOf(inputs)) {}

  void Build(plan::ChunkPasses* passes) {
    Drafts drafts = SelectPasses();
    ExchangeBuckets(&drafts);
    CopyToHost(slot_.hosted, plan_, &drafts.forward);
    CopyFromHost(slot_.hosted, plan_, &drafts.backward);
    passes->forward = PlacePass(std::move(drafts.forward), nullptr);
    passes->backward = PlacePass(std::move(drafts.backward), &slot_.dying);
    if (defers()) passes->weights = PlacePass(std::move(drafts.weights), &slot_.values.first);
  }

  // Whether the halves would wait for each other in a segment (Halved::stuck).
  bool halves_stuck() const { return halves_stuck_; }

 private:
  // The passes without addresses.
  struct Drafts {
    DraftSegment forward, backward, weights;
  };

  bool defers() const { return plan_.schedule == plan::kZeroBubble; }

  // Where the chunk's values lie: what is persistent, what is in the slot, the pipeline's buffers on its borders.
  HalfStorage StorageOf(const PassesInputs& inputs) const {
    HalfStorage storage{.first = persistent_.values, .second = {}};
    if (plan_.halves > 1) storage.second = persistent_.values;
    for (const auto& [id, ref] : slot_.values.first) storage.first[id] = ref;
    for (const auto& [id, ref] : slot_.values.second) storage.second[id] = ref;
    AddTransfers(plan_, *inputs.buffers, chunk_, plan_.halves, &storage);
    return storage;
  }

  // Gradients to which a chunk behind this one adds, on this stage: a microbatch passes backward through that first.
  absl::flat_hash_set<std::int32_t> SummedBehind() const {
    absl::flat_hash_set<std::int32_t> summed;
    const CutGraph& graph = *in_.train;
    for (const plan::Chunk& behind : stage_.plan.chunks) {
      if (behind.index <= chunk_) continue;
      const size_t c = static_cast<size_t>(behind.index);
      for (const NodeList* nodes : {&graph.backward[c], &graph.weights[c]}) {
        for (std::int32_t n : *nodes) {
          for (std::int32_t output : graph.local.nodes[static_cast<size_t>(n)].outputs) {
            const std::int32_t id = graph.base + output;
            const plan::LocalValue& value = plan_.values[static_cast<size_t>(id)];
            if (value.kind == graph::ValueKind::kAccumulator && value.parameter >= 0) summed.insert(id);
          }
        }
      }
    }
    return summed;
  }

  // A sum of halves is read later than by the next instruction.
  plan::Addition AdditionOfSums() const {
    const plan::Addition addition = policy_.exchange.addition;
    return plan_.halves == 1 ? addition : std::min(addition, plan::Addition::kByReader);
  }

  Drafts SelectPasses() const {
    const absl::flat_hash_set<std::int32_t> summed = SummedBehind();
    const CutGraph& graph = *in_.train;
    const auto select = [&](const char* phase, const NodeList& nodes, bool values_die) {
      const SelectInputs inputs{.plan = &plan_,
                                .graph = &graph.local,
                                .base = graph.base,
                                .nodes = &nodes,
                                .storage = &storage_.first,
                                .profile = in_.profile,
                                .values_die = values_die,
                                .pushed = policy_.exchange.pushed,
                                .addition = AdditionOfSums(),
                                .in_turns = &persistent_.in_turns,
                                .summed = &summed};
      return Select(inputs, fmt::format("{}.{}", phase, chunk_), chunk_);
    };
    const size_t c = static_cast<size_t>(chunk_);
    Drafts drafts{.forward = select("forward", graph.forward[c], false),
                  .backward = select("backward", graph.backward[c], true),
                  .weights = {}};
    if (defers()) drafts.weights = select("weights", graph.weights[c], true);
    return drafts;
  }

  // Puts reductions and gathers of buckets into the passes.
  void ExchangeBuckets(Drafts* drafts) const {
    const plan::StagePlan& stage = stage_.plan;
    ReduceEarly(plan_, stage, *in_.profile, policy_.exchange, {&drafts->backward, &drafts->weights});
    // In a pipeline transfers keep the links awake.
    if (plan_.mesh.pp == 1) ReduceLate(policy_.rates, &drafts->backward);
    for (DraftSegment* pass : {&drafts->forward, &drafts->backward})
      GatherParameters(plan_, stage, policy_.exchange, pass);
    JoinGathers(plan_, stage, {&drafts->forward, &drafts->backward});
  }

  // The pass with addresses: that of a microbatch, or of both halves in turns.
  std::int32_t PlacePass(DraftSegment pass, const Storage* dying) {
    if (plan_.halves > 1) return PlaceHalves(pass, dying);
    const PlaceInputs place{
        .plan = &plan_, .storage = &storage_, .dying = dying, .transient_base = stage_.plan.transient_base};
    std::int64_t bytes = 0;
    const std::int32_t id = stage_.AddSegment(Place(place, std::move(pass), &bytes));
    stage_.plan.pass_bytes = std::max(stage_.plan.pass_bytes, bytes);
    return id;
  }

  std::int32_t PlaceHalves(const DraftSegment& pass, const Storage* dying) {
    const std::int64_t transient_base = stage_.plan.transient_base;
    const HalvesInputs inputs{.plan = &plan_,
                              .profile = in_.profile,
                              .storage = &storage_,
                              .dying = dying,
                              .transient_base = transient_base,
                              .rates = policy_.rates};
    Halved halved = Halve(inputs, pass);
    halves_stuck_ = halves_stuck_ || halved.stuck;
    HalfStorage all = storage_;
    all.first.insert(halved.beside.first.begin(), halved.beside.first.end());
    all.second.insert(halved.beside.second.begin(), halved.beside.second.end());
    // Nothing dies here: what takes their bytes has its place by now.
    const PlaceInputs place{
        .plan = &plan_, .storage = &all, .transient_base = transient_base + halved.beside_bytes};
    std::int64_t bytes = 0;
    const std::int32_t id = stage_.AddSegment(Place(place, std::move(halved.segment), &bytes));
    stage_.plan.pass_bytes = std::max(stage_.plan.pass_bytes, halved.beside_bytes + bytes);
    return id;
  }

  const StageInputs& in_;
  const Policy& policy_;
  const plan::Plan& plan_;
  const Persistent& persistent_;
  UnfinishedStage& stage_;
  const std::int32_t chunk_;  // in pipeline order
  const SlotLayout& slot_;
  const HalfStorage storage_;
  bool halves_stuck_ = false;
};

}  // namespace

bool BuildPasses(const PassesInputs& inputs, std::size_t chunk, UnfinishedStage* stage) {
  PassesBuilder builder(inputs, chunk, stage);
  builder.Build(&stage->plan.chunks[chunk].train());
  return !builder.halves_stuck();
}

}  // namespace engine::compile
