#include "engine/model/step_context.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/base/status.h"
#include "engine/model/parameter_table.h"
#include "engine/ops/ops.h"
#include "engine/recipe/text.h"

namespace engine::model {

using graph::Dim;
using graph::ValueId;
using graph::ValueIds;

void ReportText(Diagnostic diagnostic, std::vector<Diagnostic>* diagnostics) {
  diagnostic.code = "E208";
  diagnostics->push_back(std::move(diagnostic));
}

const recipe::Node& PlaceOf(const recipe::Node& step) {
  const recipe::Node* name = step.Find("do");
  return name != nullptr ? *name : step;
}

std::string Named(const recipe::Node& node) {
  return node.kind == recipe::Node::Kind::kString ? fmt::format("'{}'", recipe::Shown(node.string))
                                                  : "called " + Describe(node);
}

const AttributeValue* StepContext::Find(std::string_view name) const {
  const auto found = std::find_if(attributes_.begin(), attributes_.end(),
                                  [&](const AttributeValue& value) { return value.def->name == name; });
  return found == attributes_.end() ? nullptr : &*found;
}

const AttributeValue& StepContext::Get(std::string_view name) const {
  const AttributeValue* value = Find(name);
  ENGINE_CHECK(value != nullptr, "the step {} has no attribute {}", path_, name);
  return *value;
}

// Offsets and sizes are counted in 63 bits; so far below that that no sum of them can overflow.
absl::Status StepContext::CheckCountable(const Shape& shape) {
  constexpr double kMost = 0x1p50;
  double elements = 1;
  for (const std::int64_t size : shape) elements *= static_cast<double>(size);
  if (elements <= kMost) return absl::OkStatus();
  return Error(fmt::format("{} has {:.1e} elements, more than this engine counts ({:.1e})", shape.ToString(),
                           elements, kMost));
}

absl::StatusOr<ValueId> StepContext::Parameter(std::string_view suffix, graph::Role role, const Sizes& sizes,
                                               graph::Initializer initializer) {
  return AddParameter(suffix, role, sizes, initializer, options_.dtype);
}

absl::StatusOr<ValueId> StepContext::ExactParameter(std::string_view suffix, graph::Role role,
                                                    const Sizes& sizes, graph::Initializer initializer) {
  const DType dtype = options_.dtype == DType::kF64 ? DType::kF64 : DType::kF32;
  return AddParameter(suffix, role, sizes, initializer, dtype);
}

absl::StatusOr<ValueId> StepContext::AddParameter(std::string_view suffix, graph::Role role,
                                                  const Sizes& sizes, graph::Initializer initializer,
                                                  DType dtype) {
  const std::string name = suffix.empty() ? path_ : fmt::format("{}.{}", path_, suffix);
  RETURN_IF_ERROR(CheckCountable(sizes.shape));
  const auto [known, fresh] = parameters_->by_name.try_emplace(name);
  if (!fresh) {
    const recipe::Node& other = *known->second.step;
    return ErrorIn("as",
                   fmt::format("the parameter {} is made already, by the step at {}:{}", name,
                               other.source->name(), other.mark.line),
                   "give one of the steps another name by `as`, or one of a layer's blocks: layer = [\"BLOCK "
                   "as NAME\"]");
  }
  known->second = {graph_->AddParameter(name, {.shape = sizes.shape, .dtype = dtype, .dims = sizes.dims},
                                        sizes.logical, initializer, role),
                   &step_};
  return known->second.value;
}

absl::StatusOr<ValueIds> StepContext::Emit(const graph::OpDef& op, const std::string& name, ValueIds inputs,
                                           graph::Attributes attributes) {
  std::vector<graph::TensorType> types;
  for (const ValueId value : inputs) types.push_back(type(value));
  const absl::StatusOr<std::vector<graph::TensorType>> inferred = op.infer(types, attributes);
  if (!inferred.ok()) return Error(Message(inferred.status()));
  for (const graph::TensorType& output : *inferred) RETURN_IF_ERROR(CheckCountable(output.shape));
  return graph_->Emit(op, name, std::move(inputs), std::move(attributes));
}

absl::StatusOr<ValueId> StepContext::Emit1(const graph::OpDef& op, const std::string& name, ValueIds inputs,
                                           graph::Attributes attributes) {
  ASSIGN_OR_RETURN(const ValueIds values, Emit(op, name, std::move(inputs), std::move(attributes)));
  return values[0];
}

absl::Status StepContext::ErrorIn(std::string_view attribute, std::string message, std::string hint) {
  const AttributeValue* value = Find(attribute);
  const recipe::Node* node = value != nullptr ? value->node : nullptr;
  if (node == nullptr) node = step_.Find(attribute);
  if (node == nullptr) node = step_.Find("do");
  const std::string text = fmt::format(
      "{}: {}", recipe::Shown(step_.Find("do") != nullptr ? recipe::StepName(step_) : path_), message);
  ReportText(recipe::ErrorAt(node != nullptr ? *node : step_, text, std::move(hint)), diagnostics_);
  return InvalidArgument("{}", text);
}

ValueId StepContext::OfSequence(ValueId positions) const {
  const bool of_documents = options_.documents && graph_->value(positions).name == kPositions;
  return of_documents ? GraphInput(kSequencePositions) : positions;
}

ValueId StepContext::GraphInput(std::string_view name) const {
  for (std::size_t i = 0; i < graph_->values().size(); ++i) {
    const graph::Value& value = graph_->values()[i];
    if (value.kind == graph::ValueKind::kInput && value.name == name) return static_cast<ValueId>(i);
  }
  ENGINE_CHECK(false, "a model without the input {}", name);
  return graph::kNoValue;
}

int StepContext::LeadingDims(ValueId value) const {
  const graph::TensorType& of = type(value);
  int count = 0;
  while (count < of.shape.rank() &&
         (of.meaning(count) == Dim::kSample || graph::IsSequence(of.meaning(count))))
    ++count;
  return count;
}

Sizes StepContext::TrailingSizes(ValueId value, int first) const {
  const graph::TensorType& of = type(value);
  Sizes sizes;
  for (int dim = first; dim < of.shape.rank(); ++dim)
    sizes.Append(of.shape[dim], of.shape[dim], of.meaning(dim));
  return sizes;
}

std::int64_t StepContext::LogicalClasses(ValueId value) const {
  const graph::TensorType& of = type(value);
  const std::int64_t padded = of.shape[of.shape.rank() - 1];
  if (of.meaning(of.shape.rank() - 1) != Dim::kVocab) return padded;
  for (ValueId at = value; graph_->value(at).producer >= 0;) {
    const graph::Node& node = graph_->nodes()[static_cast<size_t>(graph_->value(at).producer)];
    if (node.op == &ops::kLinear) return graph_->FindParameter(node.inputs[1])->logical_shape[0];
    at = node.inputs[0];
    if (type(at).shape != of.shape) break;
  }
  return padded;
}

void StepContext::PinStream(ValueId value) {
  graph::Value& of = graph_->value(value);
  if (of.pin == graph::Pin::kResidual || of.kind != graph::ValueKind::kActivation) return;
  of.pin = graph::Pin::kResidual;
  const graph::Node& node = graph_->nodes()[static_cast<size_t>(of.producer)];
  if (node.op->family == graph::Family::kProduct) return;
  const ValueIds read = node.inputs;
  for (const ValueId input : read) {
    if (type(input).shape == type(value).shape) PinStream(input);
  }
}

}  // namespace engine::model
