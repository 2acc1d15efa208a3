#include "engine/compile/states.h"

#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>

#include <string>
#include <utility>
#include <vector>

namespace engine::compile {
namespace {

// Lists the states of a stage graph by graph, a state that several graphs know once.
class StateList {
 public:
  // A value, and the one of an earlier graph that is the same state.
  using Alias = std::pair<std::int32_t, std::int32_t>;

  StateList(const plan::Plan& plan, const UnfinishedStage& stage) : plan_(plan), stage_(stage) {}

  // Those that nodes of the graph read or move, in their order.
  void Collect(const CutGraph& graph) {
    if (graph.local.states.empty()) return;
    absl::flat_hash_map<std::int32_t, const graph::StateSpec*> specs;  // by local value
    for (const graph::State& state : graph.local.states) specs[state.value] = &state.spec;
    absl::flat_hash_set<std::int32_t> known;
    stage_.ForEachNode(graph, [&](const LocalNode& node) {
      for (const std::vector<std::int32_t>* values : {&node.inputs, &node.outputs}) {
        for (std::int32_t v : *values) {
          const auto spec = specs.find(v);
          if (spec != specs.end() && known.insert(v).second) Add(graph.base + v, *spec->second);
        }
      }
    });
  }

  std::vector<plan::State> TakeStates() { return std::move(states_); }
  const std::vector<Alias>& aliases() const { return aliases_; }

 private:
  void Add(std::int32_t id, const graph::StateSpec& spec) {
    const bool moved_by_node = spec.update == graph::StateUpdate::kNode;  // one value a name in a graph
    for (const plan::State& state : states_) {
      if (!moved_by_node || NameOf(state.buffer.value) != NameOf(id)) continue;
      const plan::LocalValue& known = plan_.values[static_cast<size_t>(state.buffer.value)];
      const plan::LocalValue& again = plan_.values[static_cast<size_t>(id)];
      ENGINE_CHECK(known.shape == again.shape && known.layout == again.layout && known.dtype == again.dtype,
                   "{} is {} in one graph, {} in another", known.name, known.shape.ToString(),
                   again.shape.ToString());
      aliases_.emplace_back(id, state.buffer.value);
      return;
    }
    states_.push_back({.buffer = Unplaced(plan_, id), .spec = spec});
  }
  const std::string& NameOf(std::int32_t id) const { return plan_.values[static_cast<size_t>(id)].name; }

  const plan::Plan& plan_;
  const UnfinishedStage& stage_;
  std::vector<plan::State> states_;
  std::vector<Alias> aliases_;
};

// Gives each its place in the arena.
void GiveAddresses(UnfinishedStage* stage, std::vector<plan::State>* states) {
  const auto is_scales = [](const plan::State& state) {
    return state.spec.update == graph::StateUpdate::kScales;
  };
  const auto item_of = [&](const plan::State& state) {
    return state.spec.split ? &stage->plan.memory.activations : &stage->plan.memory.control;
  };
  std::int64_t scales = 0;
  for (const plan::State& state : *states) scales += is_scales(state) ? state.buffer.elements : 0;
  if (scales > 0) stage->plan.scales = stage->ReserveFlat(scales, DType::kF32, &stage->plan.memory.control);
  std::int64_t next = stage->plan.scales.offset;
  for (plan::State& state : *states) {
    if (is_scales(state)) {
      state.buffer.offset = next;
      next += state.buffer.bytes();
    } else {
      state.buffer = stage->ReserveValue(state.buffer, item_of(state));
    }
  }
}

}  // namespace

void PlaceStates(const StageInputs& inputs, const plan::Plan& plan, UnfinishedStage* stage, Storage* values) {
  StateList list(plan, *stage);
  for (const CutGraph* graph : inputs.Graphs()) list.Collect(*graph);
  std::vector<plan::State> states = list.TakeStates();
  GiveAddresses(stage, &states);
  for (const plan::State& state : states) (*values)[state.buffer.value] = state.buffer;
  for (const auto& [id, first] : list.aliases()) {
    plan::BufferRef same = values->at(first);
    same.value = id;
    (*values)[id] = same;
  }
  stage->plan.states = std::move(states);
}

}  // namespace engine::compile
