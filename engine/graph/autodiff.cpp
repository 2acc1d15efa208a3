#include "engine/graph/autodiff.h"

#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>

#include <algorithm>

#include "engine/graph/op.h"

namespace engine::graph {
namespace {

class Differentiator {
 public:
  Differentiator(Graph* graph, const OpDef& add, DType of_bulk)
      : graph_(*graph), add_(add), of_bulk_(of_bulk) {}

  absl::Status Run() {
    const size_t forward_nodes = graph_.nodes().size();
    gradients_.assign(graph_.values().size(), kNoValue);
    accumulators_.assign(graph_.values().size(), kNoValue);
    FindTrained();
    for (size_t i = forward_nodes; i-- > 0;) {
      const Node node = graph_.nodes()[i];
      if (!ReachesObjective(node)) continue;
      if (node.op->gradient == nullptr) {
        return Internal("autodiff: node {} ({}) has no gradient but the loss depends on it", node.name,
                        node.op->name);
      }
      Step(node);
    }
    return absl::OkStatus();
  }

 private:
  // Which values change when a parameter that is trained does: only their gradients are of use.
  void FindTrained() {
    trained_.assign(graph_.values().size(), false);
    for (const Parameter& parameter : graph_.parameters())
      trained_[static_cast<size_t>(parameter.value)] = !parameter.training.frozen;
    for (const Node& node : graph_.nodes()) {
      const bool any = std::any_of(node.inputs.begin(), node.inputs.end(),
                                   [&](ValueId input) { return IsTrained(input); });
      for (ValueId output : node.outputs) trained_[static_cast<size_t>(output)] = any;
    }
  }

  bool IsTrained(ValueId value) const { return trained_[static_cast<size_t>(value)]; }

  bool IsObjective(ValueId value) const {
    return std::any_of(graph_.metrics().begin(), graph_.metrics().end(),
                       [&](const Metric& metric) { return metric.sum == value && metric.weight != 0; });
  }

  bool ReachesObjective(const Node& node) const {
    for (ValueId output : node.outputs) {
      if (IsObjective(output) || Gradient(output) != kNoValue) return true;
    }
    return false;
  }

  ValueId Gradient(ValueId value) const { return gradients_[static_cast<size_t>(value)]; }

  // The accumulator of a parameter's gradient, made on first use.
  ValueId Accumulator(ValueId parameter) {
    ValueId& accumulator = accumulators_[static_cast<size_t>(parameter)];
    if (accumulator == kNoValue) {
      TensorType type = graph_.value(parameter).type;
      const bool bulk = FactsOf(graph_.FindParameter(parameter)->role).bulk;
      if (type.dtype != DType::kF64) type.dtype = bulk ? of_bulk_ : DType::kF32;
      accumulator = graph_.AddAccumulator("d_" + graph_.value(parameter).name, type, parameter);
    }
    return accumulator;
  }

  void Step(const Node& node) {
    graph_.SetPosition(Phase::kBackward, node.unit, node.component);
    GradientContext context{.graph = &graph_, .node = node, .d_outputs = {}, .accumulators = {}};
    for (ValueId output : node.outputs) context.d_outputs.push_back(Gradient(output));
    for (ValueId input : node.inputs) {
      const bool parameter = graph_.value(input).kind == ValueKind::kParameter;
      context.accumulators.push_back(parameter && IsTrained(input) ? Accumulator(input) : kNoValue);
    }
    const size_t before = graph_.nodes().size();
    ValueIds d_inputs = node.op->gradient(context);
    ENGINE_CHECK(d_inputs.size() == node.inputs.size(), "gradient of {} gives {} values for {} inputs",
                 node.name, d_inputs.size(), node.inputs.size());
    bool all = true;
    for (size_t i = 0; i < d_inputs.size(); ++i) {
      if (d_inputs[i] == kNoValue || IsTrained(node.inputs[i])) continue;
      d_inputs[i] = kNoValue;
      all = false;
    }
    if (!all) Prune(before, d_inputs);
    for (size_t i = 0; i < d_inputs.size(); ++i) {
      if (d_inputs[i] != kNoValue) Contribute(node.inputs[i], d_inputs[i], node.name);
    }
  }

  // Removes the nodes from `first` on, which one op's gradient has just emitted, whose outputs nobody needs: they are
  // neither among `wanted` nor sums of a trained parameter nor read by a node that stays. So ops need not ask which of
  // their gradients are of use. What the removed nodes made stays a value of the graph that no node names.
  void Prune(size_t first, const ValueIds& wanted) {
    std::vector<Node>& nodes = graph_.nodes();
    absl::flat_hash_set<ValueId> needed(wanted.begin(), wanted.end());
    std::vector<Node> kept;
    for (size_t n = nodes.size(); n-- > first;) {
      const bool stays = std::any_of(nodes[n].outputs.begin(), nodes[n].outputs.end(), [&](ValueId output) {
        return needed.contains(output) || graph_.value(output).kind != ValueKind::kActivation;
      });
      if (!stays) continue;
      needed.insert(nodes[n].inputs.begin(), nodes[n].inputs.end());
      kept.push_back(std::move(nodes[n]));
    }
    nodes.resize(first);
    for (size_t k = kept.size(); k-- > 0;) {
      for (ValueId output : kept[k].outputs) {
        if (graph_.value(output).kind == ValueKind::kActivation)
          graph_.value(output).producer = static_cast<NodeId>(nodes.size());
      }
      nodes.push_back(std::move(kept[k]));
    }
  }

  // Dims of a gradient of which its op does not know what they mean are those of the value. One gradient may be of several values: what it
  // knows stays.
  void HandOnDims(ValueId value, ValueId gradient) {
    const TensorType& of_value = graph_.value(value).type;
    TensorType& type = graph_.value(gradient).type;
    for (int dim = 0; dim < type.shape.rank(); ++dim) {
      if (type.meaning(dim) == Dim::kOther) type.dims.Set(dim, of_value.meaning(dim));
    }
  }

  void Contribute(ValueId value, ValueId gradient, const std::string& by) {
    const Pin pin = graph_.value(value).pin;
    if (pin != Pin::kNone) graph_.value(gradient).pin = pin;
    HandOnDims(value, gradient);
    ValueId& sum = gradients_[static_cast<size_t>(value)];
    if (sum == kNoValue) {
      sum = gradient;
      return;
    }
    const ValueId total = graph_.Emit1(add_, "d_" + graph_.value(value).name + "+" + by, {sum, gradient});
    graph_.value(total).pin = pin;
    HandOnDims(value, total);
    sum = total;
  }

  Graph& graph_;
  const OpDef& add_;
  const DType of_bulk_;
  std::vector<bool> trained_;          // of the forward values, by id
  std::vector<ValueId> gradients_;     // of the forward values, by id
  std::vector<ValueId> accumulators_;  // of the parameters, by id
};

class Recomputer {
 public:
  Recomputer(Graph* graph, const std::function<bool(const Node&)>& again) : graph_(*graph), again_(again) {}

  void Run() {
    old_ = std::move(graph_.nodes());
    graph_.nodes().clear();
    for (size_t i = 0; i < old_.size(); ++i) {
      Node node = old_[i];
      if (node.phase == Phase::kBackward) RedirectInputs(&node);
      Append(std::move(node), /*outputs_move=*/true);
    }
  }

 private:
  void Append(Node node, bool outputs_move) {
    const NodeId id = static_cast<NodeId>(graph_.nodes().size());
    if (outputs_move) {
      for (ValueId output : node.outputs) {
        if (graph_.value(output).kind == ValueKind::kActivation) new_producer_[output] = id;
      }
    }
    graph_.nodes().push_back(std::move(node));
  }

  void RedirectInputs(Node* node) {
    for (ValueId& input : node->inputs) input = Again(input, node->unit);
  }

  // The value to read in the backward phase of `unit` instead of `value`.
  ValueId Again(ValueId value, std::int32_t unit) {
    const NodeId producer = graph_.value(value).producer;
    if (graph_.value(value).kind != ValueKind::kActivation || producer < 0) return value;
    if (auto it = repeated_.find(value); it != repeated_.end()) return it->second;
    if (static_cast<size_t>(producer) >= old_.size()) return value;
    const Node original = old_[static_cast<size_t>(producer)];
    if (original.phase != Phase::kForward || original.unit != unit || !again_(original)) return value;
    Node node = original;
    node.phase = Phase::kBackward;
    node.recomputed = true;
    node.name = "again." + original.name;
    for (ValueId& input : node.inputs) input = Again(input, unit);
    std::vector<TensorType> types;
    for (ValueId& output : node.outputs) {
      ENGINE_CHECK(graph_.value(output).kind == ValueKind::kActivation, "{} cannot be repeated",
                   original.name);
      const ValueId copy = CopyValue(output);
      repeated_[output] = copy;
      output = copy;
    }
    Append(std::move(node), /*outputs_move=*/false);
    for (const ValueId output : graph_.nodes().back().outputs) {
      graph_.value(output).producer = static_cast<NodeId>(graph_.nodes().size() - 1);
    }
    return repeated_.at(value);
  }

  ValueId CopyValue(ValueId of) {
    const Value source = graph_.value(of);
    const ValueId id = graph_.AddInput("again." + source.name, source.type);
    graph_.value(id).kind = ValueKind::kActivation;
    graph_.value(id).pin = source.pin;
    graph_.value(id).repeats = of;
    graph_.value(id).producer = static_cast<NodeId>(old_.size());  // not one of the old nodes
    return id;
  }

 public:
  void FixProducers() {
    for (const auto& [value, producer] : new_producer_) graph_.value(value).producer = producer;
  }

 private:
  Graph& graph_;
  const std::function<bool(const Node&)>& again_;
  std::vector<Node> old_;
  absl::flat_hash_map<ValueId, ValueId> repeated_;
  absl::flat_hash_map<ValueId, NodeId> new_producer_;
};

}  // namespace

absl::Status Differentiate(Graph* graph, const OpDef& add, DType of_bulk) {
  const bool any = std::any_of(graph->metrics().begin(), graph->metrics().end(),
                               [](const Metric& metric) { return metric.weight != 0; });
  if (!any) return Internal("autodiff: the graph has no loss");
  return Differentiator(graph, add, of_bulk).Run();
}

void Recompute(Graph* graph, const std::function<bool(const Node&)>& again) {
  Recomputer recomputer(graph, again);
  recomputer.Run();
  recomputer.FixProducers();
}

}  // namespace engine::graph
