#include "engine/compile/slots.h"

#include <absl/container/flat_hash_set.h>

#include <algorithm>

#include "engine/graph/op.h"
#include "engine/plan/arena.h"

namespace engine::compile {
namespace {

using graph::ValueKind;
using NodeList = std::vector<std::int32_t>;

class SlotBuilder {
 public:
  SlotBuilder(const plan::Plan& plan, const CutGraph& graph, std::int32_t chunk, std::int64_t hosted_layers)
      : plan_(plan), graph_(graph), chunk_(chunk), hosted_layers_(hosted_layers) {
    for (std::int32_t n : graph_.weights[static_cast<size_t>(chunk_)]) {
      const LocalNode& node = graph_.local.nodes[static_cast<size_t>(n)];
      late_.insert(node.inputs.begin(), node.inputs.end());
    }
  }

  SlotLayout Build() {
    const std::vector<std::int32_t> saved = SavedValues(graph_, chunk_);
    layout_.hosted = FindHosted(plan_, graph_, chunk_, saved, hosted_layers_);
    absl::flat_hash_set<std::int32_t> waiting,
        shared;  // values that wait in the host's memory, and their successors
    for (const HostedValue& hosted : layout_.hosted.values) {
      waiting.insert(hosted.value);
      shared.insert(hosted.successor);
    }
    for (std::int32_t v : saved) {
      if (!MadeBackward(v) && !waiting.contains(graph_.base + v))
        Put(v, ranges_.Allocate(ValueOf(v).local_bytes()));
    }
    // A successor may itself wait there, and have its place from its own.
    for (auto hosted = layout_.hosted.values.rbegin(); hosted != layout_.hosted.values.rend(); ++hosted)
      Put(hosted->value - graph_.base, OffsetOf(hosted->successor - graph_.base));
    if (!late_.empty()) PutBackward(saved);
    for (std::int32_t v : saved) {
      const plan::BufferRef& ref = layout_.values.first.at(graph_.base + v);
      if (ValueOf(v).kind == ValueKind::kInput) layout_.inputs.push_back(ref);
      if (!late_.contains(v) && !reused_.contains(v) && !shared.contains(ref.value))
        layout_.dying[ref.value] = ref;
    }
    layout_.bytes = ranges_.peak();
    if (plan_.halves > 1) LayBeside();
    return std::move(layout_);
  }

 private:
  // The values of both halves lie one behind the other, in the two slots together.
  void LayBeside() {
    std::vector<plan::BufferRef> second_inputs;
    const auto move = [&](plan::BufferRef* ref) { ref->offset *= plan_.halves; };
    const auto second = [&](plan::BufferRef ref) {
      ref.offset += plan::Aligned(ref.bytes());
      return ref;
    };
    for (auto& [value, ref] : layout_.values.first) {
      move(&ref);
      layout_.values.second[value] = second(ref);
    }
    for (auto& [value, ref] : layout_.dying) move(&ref);
    for (plan::BufferRef& ref : layout_.inputs) {
      move(&ref);
      second_inputs.push_back(second(ref));
    }
    layout_.inputs.insert(layout_.inputs.end(), second_inputs.begin(), second_inputs.end());
  }

  const NodeList& Backward() const { return graph_.backward[static_cast<size_t>(chunk_)]; }
  const LocalNode& BackwardNode(size_t i) const {
    return graph_.local.nodes[static_cast<size_t>(Backward()[i])];
  }
  const plan::LocalValue& ValueOf(std::int32_t v) const {
    const std::int32_t id = graph_.base + v;
    return plan_.values[static_cast<size_t>(id)];
  }
  bool MadeBackward(std::int32_t v) const {
    return graph_.producer_chunk[static_cast<size_t>(v)] == chunk_ &&
           graph_.producer_pass[static_cast<size_t>(v)] == plan::Pass::kBackward;
  }
  std::int64_t OffsetOf(std::int32_t v) const { return layout_.values.first.at(graph_.base + v).offset; }

  void Put(std::int32_t v, std::int64_t offset) {
    const plan::LocalValue& value = ValueOf(v);
    layout_.values.first[graph_.base + v] = {.value = graph_.base + v,
                                             .offset = offset,
                                             .elements = value.local.elements(),
                                             .dtype = value.dtype,
                                             .in_slot = true};
  }

  // What the backward pass makes for the weights pass, in the order in which it is made.
  void PutBackward(const std::vector<std::int32_t>& saved) {
    absl::flat_hash_map<std::int32_t, size_t> last_use;  // in the backward pass
    for (size_t i = 0; i < Backward().size(); ++i) {
      for (std::int32_t input : BackwardNode(i).inputs) last_use[input] = i;
    }
    std::vector<std::vector<std::int32_t>> dies(Backward().size());
    for (std::int32_t v : saved) {
      if (late_.contains(v)) continue;
      const auto last = last_use.find(v);
      if (last != last_use.end()) {
        dies[last->second].push_back(v);
      } else {
        Release(v);
      }
    }
    const absl::flat_hash_set<std::int32_t> kept(saved.begin(), saved.end());
    for (size_t i = 0; i < Backward().size(); ++i) {
      const LocalNode& node = BackwardNode(i);
      for (size_t k = 0; k < node.outputs.size(); ++k) {
        const std::int32_t v = node.outputs[k];
        if (!kept.contains(v)) continue;
        const std::int32_t donor = k == 0 ? InPlace(node, dies[i]) : -1;
        if (donor >= 0) {
          Put(v, OffsetOf(donor));
          reused_.insert(donor);
          std::erase(dies[i], donor);
        } else {
          Put(v, ranges_.Allocate(ValueOf(v).local_bytes()));
          Overwrite(v);
        }
      }
      for (std::int32_t v : dies[i]) Release(v);
    }
  }

  // The input that dies here and whose bytes output 0 may take over, or −1.
  std::int32_t InPlace(const LocalNode& node, const std::vector<std::int32_t>& dying) const {
    if (node.op == nullptr || node.op->in_place_input < 0) return -1;
    const std::int32_t v = node.inputs[static_cast<size_t>(node.op->in_place_input)];
    const bool dies = std::find(dying.begin(), dying.end(), v) != dying.end();
    const bool once = std::count(node.inputs.begin(), node.inputs.end(), v) == 1;
    return dies && once && ValueOf(v).local_bytes() == ValueOf(node.outputs[0]).local_bytes() ? v : -1;
  }

  void Release(std::int32_t v) {
    ranges_.Free(OffsetOf(v));
    released_.push_back(v);
  }

  // Notes whose bytes value v takes.
  void Overwrite(std::int32_t v) {
    const std::int64_t begin = OffsetOf(v);
    const std::int64_t end = begin + ValueOf(v).local_bytes();
    for (std::int32_t dead : released_) {
      const std::int64_t at = OffsetOf(dead);
      if (at < end && begin < at + ValueOf(dead).local_bytes()) reused_.insert(dead);
    }
  }

  const plan::Plan& plan_;
  const CutGraph& graph_;
  const std::int32_t chunk_;
  const std::int64_t hosted_layers_;
  SlotLayout layout_;
  plan::RangeAllocator ranges_;
  absl::flat_hash_set<std::int32_t> late_;    // the weights pass reads them
  absl::flat_hash_set<std::int32_t> reused_;  // their bytes hold another value before the backward pass ends
  std::vector<std::int32_t> released_;
};

}  // namespace

std::vector<std::int32_t> SavedValues(const CutGraph& graph, std::int32_t chunk) {
  std::vector<bool> seen(graph.local.values.size(), false);
  std::vector<std::int32_t> saved;
  const auto visit = [&](const NodeList& nodes, plan::Pass pass) {
    for (std::int32_t n : nodes) {
      for (std::int32_t input : graph.local.nodes[static_cast<size_t>(n)].inputs) {
        const size_t v = static_cast<size_t>(input);
        const plan::LocalValue& value = graph.local.values[v];
        const std::int32_t producer = graph.producer_chunk[v];
        const plan::Pass made = graph.producer_pass[v];
        const bool fed = value.kind == ValueKind::kInput;
        const bool received =
            producer >= 0 && producer != chunk && (made == plan::Pass::kForward || made < pass);
        const bool kept = producer == chunk && made < pass;
        if (seen[v] || !(fed || received || kept)) continue;
        seen[v] = true;
        saved.push_back(input);
      }
    }
  };
  const size_t c = static_cast<size_t>(chunk);
  visit(graph.forward[c], plan::Pass::kForward);
  visit(graph.backward[c], plan::Pass::kBackward);
  visit(graph.weights[c], plan::Pass::kWeights);
  return saved;
}

SlotLayout LayOutSlot(const plan::Plan& plan, const CutGraph& graph, std::int32_t chunk,
                      std::int64_t hosted_layers) {
  return SlotBuilder(plan, graph, chunk, hosted_layers).Build();
}

}  // namespace engine::compile
