#include "engine/compile/weights.h"

#include <absl/container/flat_hash_map.h>

#include <algorithm>

namespace engine::compile {
namespace {

using graph::ValueKind;
using NodeList = std::vector<std::int32_t>;

class Deferrer {
 public:
  Deferrer(const plan::Plan& plan, CutGraph* cut)
      : plan_(plan),
        cut_(*cut),
        readers_(cut->local.values.size()),
        deferred_(cut->local.nodes.size(), false) {
    for (size_t n = 0; n < cut_.local.nodes.size(); ++n) {
      for (std::int32_t input : cut_.local.nodes[n].inputs) {
        readers_[static_cast<size_t>(input)].push_back(static_cast<std::int32_t>(n));
      }
    }
  }

  void Chunk(size_t chunk) {
    for (std::int32_t n : cut_.backward[chunk]) {
      deferred_[static_cast<size_t>(n)] = true;
      for (std::int32_t output : NodeAt(n).outputs) producer_of_.insert_or_assign(output, n);
    }
    // Nodes leave the set until those left make gradients, or operands for others of it alone.
    for (bool changed = true; changed;) {
      changed = false;
      for (std::int32_t n : cut_.backward[chunk]) {
        if (!deferred_[static_cast<size_t>(n)] || MakesGradients(n) || MakesOperands(n)) continue;
        deferred_[static_cast<size_t>(n)] = false;
        changed = true;
      }
    }
    Move(chunk);
  }

 private:
  const LocalNode& NodeAt(std::int32_t n) const { return cut_.local.nodes[static_cast<size_t>(n)]; }
  ValueKind KindOf(std::int32_t v) const { return cut_.local.values[static_cast<size_t>(v)].kind; }

  bool IsGradient(std::int32_t v) const {
    const std::int32_t id = cut_.base + v;
    return KindOf(v) == ValueKind::kAccumulator && plan_.values[static_cast<size_t>(id)].parameter >= 0;
  }

  bool MakesGradients(std::int32_t n) const {
    const std::vector<std::int32_t>& outputs = NodeAt(n).outputs;
    return std::all_of(outputs.begin(), outputs.end(),
                       [&](std::int32_t output) { return IsGradient(output); });
  }

  bool MakesOperands(std::int32_t n) const {
    const LocalNode& node = NodeAt(n);
    const auto deferred = [&](std::int32_t i) { return deferred_[static_cast<size_t>(i)]; };
    const bool of_saved = std::all_of(node.inputs.begin(), node.inputs.end(), [&](std::int32_t input) {
      if (KindOf(input) != ValueKind::kActivation) return true;
      const auto producer = producer_of_.find(input);
      if (producer != producer_of_.end()) return deferred(producer->second);
      return cut_.producer_pass[static_cast<size_t>(input)] == plan::Pass::kForward;
    });
    const bool gathers = node.collective == plan::Collective::kAllGather;
    return (of_saved || gathers) &&
           std::all_of(node.outputs.begin(), node.outputs.end(), [&](std::int32_t output) {
             const NodeList& readers = readers_[static_cast<size_t>(output)];
             return KindOf(output) == ValueKind::kActivation && !readers.empty() &&
                    std::all_of(readers.begin(), readers.end(), deferred);
           });
  }

  void Move(size_t chunk) {
    NodeList backward;
    for (std::int32_t n : cut_.backward[chunk]) {
      const bool late = deferred_[static_cast<size_t>(n)];
      (late ? cut_.weights[chunk] : backward).push_back(n);
      deferred_[static_cast<size_t>(n)] = false;  // other chunks' nodes wait for nobody here
      if (!late) continue;
      for (std::int32_t output : NodeAt(n).outputs) {
        cut_.producer_pass[static_cast<size_t>(output)] = plan::Pass::kWeights;
      }
    }
    cut_.backward[chunk] = std::move(backward);
    producer_of_.clear();
  }

  const plan::Plan& plan_;
  CutGraph& cut_;
  std::vector<NodeList> readers_;                                // nodes, by value
  std::vector<bool> deferred_;                                   // nodes of this chunk
  absl::flat_hash_map<std::int32_t, std::int32_t> producer_of_;  // nodes of this chunk, by value
};

}  // namespace

void DeferWeights(const plan::Plan& plan, CutGraph* cut) {
  Deferrer deferrer(plan, cut);
  for (size_t chunk = 0; chunk < cut->backward.size(); ++chunk) deferrer.Chunk(chunk);
}

}  // namespace engine::compile
