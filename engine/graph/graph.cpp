#include "engine/graph/graph.h"

#include <algorithm>

#include "engine/graph/op.h"

namespace engine::graph {

void Attributes::Set(std::string_view name, Item item) {
  for (auto& [known, old] : items_) {
    if (known == name) {
      old = std::move(item);
      return;
    }
  }
  items_.emplace_back(std::string(name), std::move(item));
}

const Attributes::Item* Attributes::Find(std::string_view name) const {
  for (const auto& [known, item] : items_) {
    if (known == name) return &item;
  }
  return nullptr;
}

std::int64_t Attributes::Int(std::string_view name) const {
  const Item* item = Find(name);
  ENGINE_CHECK(item != nullptr, "attribute {} is missing in {}", name, ToString());
  return std::get<std::int64_t>(*item);
}

std::int64_t Attributes::Int(std::string_view name, std::int64_t fallback) const {
  const Item* item = Find(name);
  return item == nullptr ? fallback : std::get<std::int64_t>(*item);
}

double Attributes::Float(std::string_view name) const {
  const Item* item = Find(name);
  ENGINE_CHECK(item != nullptr, "attribute {} is missing in {}", name, ToString());
  return std::get<double>(*item);
}

double Attributes::Float(std::string_view name, double fallback) const {
  const Item* item = Find(name);
  return item == nullptr ? fallback : std::get<double>(*item);
}

const std::string& Attributes::String(std::string_view name) const {
  const Item* item = Find(name);
  ENGINE_CHECK(item != nullptr, "attribute {} is missing in {}", name, ToString());
  return std::get<std::string>(*item);
}

std::string Attributes::ToString() const {
  if (items_.empty()) return "";
  std::string text = "{";
  for (const auto& [name, item] : items_) {
    if (text.size() > 1) text += ", ";
    text += name + "=";
    if (const auto* integer = std::get_if<std::int64_t>(&item)) {
      text += std::to_string(*integer);
    } else if (const auto* real = std::get_if<double>(&item)) {
      text += fmt::format("{}", *real);
    } else {
      text += std::get<std::string>(item);
    }
  }
  return text + "}";
}

ValueId Graph::AddValue(Value value) {
  values_.push_back(std::move(value));
  return static_cast<ValueId>(values_.size() - 1);
}

ValueId Graph::AddInput(std::string name, TensorType type) {
  return AddValue({.name = std::move(name), .type = std::move(type), .kind = ValueKind::kInput});
}

ValueId Graph::AddParameter(std::string name, TensorType type, Shape logical_shape, Initializer initializer,
                            Role role) {
  const ValueId id =
      AddValue({.name = std::move(name), .type = std::move(type), .kind = ValueKind::kParameter});
  parameters_.push_back({id, std::move(logical_shape), initializer, role, FactsOf(role).decays});
  return id;
}

void Graph::SetTraining(ValueId parameter, const TrainingSettings& training) {
  const auto found = std::find_if(parameters_.begin(), parameters_.end(),
                                  [&](const Parameter& known) { return known.value == parameter; });
  ENGINE_CHECK(found != parameters_.end(), "{} is no parameter", value(parameter).name);
  found->training = training;
}

ValueId Graph::AddAccumulator(std::string name, TensorType type, ValueId gradient_of) {
  return AddValue({.name = std::move(name),
                   .type = std::move(type),
                   .kind = ValueKind::kAccumulator,
                   .gradient_of = gradient_of});
}

ValueId Graph::AddState(std::string name, TensorType type, StateSpec spec) {
  const ValueId id = AddValue({.name = std::move(name), .type = std::move(type), .kind = ValueKind::kState});
  states_.push_back({.value = id, .spec = std::move(spec)});
  return id;
}

ValueId Graph::AddMetric(std::string name, double count, double weight, bool of_labels, bool has_terms) {
  const ValueId sum = AddAccumulator(name, {.shape = {}, .dtype = DType::kF64}, kNoValue);
  metrics_.push_back({.name = std::move(name),
                      .sum = sum,
                      .count = count,
                      .weight = weight,
                      .classes = 0,
                      .of_labels = of_labels,
                      .has_terms = has_terms});
  return sum;
}

ValueId Graph::AddCounts(std::string name, std::int64_t classes, double count) {
  const ValueId sum = AddAccumulator(name, {.shape = {classes}, .dtype = DType::kF64}, kNoValue);
  metrics_.push_back({.name = std::move(name),
                      .sum = sum,
                      .count = count,
                      .weight = 0,
                      .classes = classes,
                      .of_labels = false,
                      .has_terms = false});
  return sum;
}

ValueIds Graph::Emit(const OpDef& op, std::string name, ValueIds inputs, Attributes attributes,
                     std::span<const ValueId> into) {
  std::vector<TensorType> types;
  for (ValueId input : inputs) types.push_back(value(input).type);
  absl::StatusOr<std::vector<TensorType>> inferred = op.infer(types, attributes);
  ENGINE_CHECK(inferred.ok(), "{} ({}): {}", name, op.name, Message(inferred.status()));
  Node node{.op = &op,
            .name = std::move(name),
            .inputs = std::move(inputs),
            .outputs = {},
            .attributes = std::move(attributes),
            .phase = phase_,
            .unit = unit_,
            .component = component_};
  for (size_t i = 0; i < inferred->size(); ++i) {
    if (i < into.size() && into[i] != kNoValue) {
      const Value& receiver = value(into[i]);
      const bool adds = receiver.kind == ValueKind::kAccumulator;
      ENGINE_CHECK(adds || receiver.kind == ValueKind::kState, "{}: {} receives nothing", node.name,
                   receiver.name);
      ENGINE_CHECK(!adds || ((op.accumulates >> i) & 1), "{} cannot add into output {}", op.name, i);
      ENGINE_CHECK(receiver.type.shape == (*inferred)[i].shape, "{}: {} into {} of {}", node.name,
                   (*inferred)[i].shape.ToString(), receiver.name, receiver.type.shape.ToString());
      node.outputs.push_back(into[i]);
      continue;
    }
    std::string output = node.name + (i == 0 ? "" : fmt::format(":{}", i));
    node.outputs.push_back(AddValue(
        {.name = std::move(output), .type = (*inferred)[i], .producer = static_cast<NodeId>(nodes_.size())}));
  }
  ValueIds outputs = node.outputs;
  nodes_.push_back(std::move(node));
  return outputs;
}

ValueId Graph::Emit1(const OpDef& op, std::string name, ValueIds inputs, Attributes attributes) {
  return Emit(op, std::move(name), std::move(inputs), std::move(attributes))[0];
}

const Parameter* Graph::FindParameter(ValueId value) const {
  for (const Parameter& parameter : parameters_) {
    if (parameter.value == value) return &parameter;
  }
  return nullptr;
}

absl::Status Graph::Verify() const {
  std::vector<bool> produced(values_.size(), false);
  bool backward = false;
  for (const Node& node : nodes_) {
    if (node.phase == Phase::kBackward) backward = true;
    if (node.phase == Phase::kForward && backward) {
      return Internal("graph: forward node {} after a backward node", node.name);
    }
    std::vector<TensorType> types;
    for (ValueId input : node.inputs) {
      if (value(input).kind == ValueKind::kActivation && !produced[static_cast<size_t>(input)]) {
        return Internal("graph: node {} reads {} before it is produced", node.name, value(input).name);
      }
      types.push_back(value(input).type);
    }
    absl::StatusOr<std::vector<TensorType>> inferred = node.op->infer(types, node.attributes);
    if (!inferred.ok()) return WithContext(inferred.status(), "graph: node " + node.name);
    if (inferred->size() != node.outputs.size()) {
      return Internal("graph: node {} has {} outputs, its op gives {}", node.name, node.outputs.size(),
                      inferred->size());
    }
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      const Value& output = value(node.outputs[i]);
      if (output.type.shape != (*inferred)[i].shape) {
        return Internal("graph: node {} output {} is {}, its op gives {}", node.name, i,
                        output.type.shape.ToString(), (*inferred)[i].shape.ToString());
      }
      if (output.kind == ValueKind::kAccumulator) continue;
      if (produced[static_cast<size_t>(node.outputs[i])]) {
        return Internal("graph: value {} is produced twice", output.name);
      }
      produced[static_cast<size_t>(node.outputs[i])] = true;
    }
  }
  return absl::OkStatus();
}

std::string Graph::ToString() const {
  std::string text;
  for (const Node& node : nodes_) {
    std::string outputs;
    for (ValueId output : node.outputs) {
      const Value& v = value(output);
      outputs += fmt::format("{}{}: {}{}", outputs.empty() ? "" : ", ", v.name, Name(v.type.dtype),
                             v.type.shape.ToString());
      if (v.kind == ValueKind::kAccumulator) outputs += " +=";
    }
    std::string inputs;
    for (ValueId input : node.inputs) inputs += (inputs.empty() ? "" : ", ") + value(input).name;
    text += fmt::format("{}{} = {}({}){}\n", node.phase == Phase::kBackward ? "  " : "", outputs,
                        node.op->name, inputs, node.attributes.ToString());
  }
  return text;
}

}  // namespace engine::graph
