#include "engine/model/inputs.h"

#include <fmt/format.h>

#include <array>
#include <optional>
#include <utility>

#include "engine/base/status.h"
#include "engine/model/step_context.h"

namespace engine::model {
namespace {

using recipe::Node;

// "i32[B,S]" → i32, ["B", "S"].
std::optional<std::pair<DType, Node>> Parse(const Node& node) {
  constexpr std::array<std::pair<std::string_view, DType>, 2> kTypes = {
      {{"i32", DType::kI32}, {"f32", DType::kF32}}};
  const std::string& text = node.string;
  const std::size_t bracket = text.find('[');
  if (node.kind != Node::Kind::kString || bracket == std::string::npos || !text.ends_with(']'))
    return std::nullopt;
  for (const auto& [name, dtype] : kTypes) {
    if (std::string_view(text).substr(0, bracket) != name) continue;
    Node shape = node;
    shape.kind = Node::Kind::kArray;
    std::size_t begin = bracket + 1;
    while (begin < text.size()) {
      const std::size_t end = std::min(text.find(',', begin), text.size() - 1);
      Node dim = node;
      dim.string = text.substr(begin, end - begin);
      while (dim.string.starts_with(' ')) dim.string.erase(0, 1);
      while (dim.string.ends_with(' ')) dim.string.pop_back();
      shape.items.push_back(std::move(dim));
      begin = end + 1;
    }
    return std::pair(dtype, std::move(shape));
  }
  return std::nullopt;
}

}  // namespace

void AddInputs(const Node* inputs, const DimTable& dims, graph::Graph* graph, Scope* scope,
               std::vector<Diagnostic>* diagnostics) {
  if (inputs == nullptr) return;
  for (const recipe::Entry& entry : inputs->entries) {
    const auto parsed = Parse(entry.value);
    const absl::StatusOr<Sizes> sizes =
        parsed.has_value() ? dims.SizesOf(parsed->second)
                           : InvalidArgument("{} is no type, i32 or f32, and shape", Named(entry.value));
    if (!sizes.ok()) {
      ReportText(ErrorAt(entry.value,
                         fmt::format("inputs.{}: {}", recipe::Shown(entry.key), Message(sizes.status())),
                         "such as \"i32[B,S]\""),
                 diagnostics);
      scope->values[entry.key] = {};
      continue;
    }
    const graph::ValueId value =
        graph->AddInput(entry.key, {.shape = sizes->shape, .dtype = parsed->first, .dims = sizes->dims});
    scope->values[entry.key] = {value, nullptr};
  }
}

void AddDocumentInputs(const Node* inputs, const DimTable& dims, graph::Graph* graph,
                       std::vector<Diagnostic>* diagnostics) {
  for (const auto& [name, text] :
       {std::pair(kSequencePositions, "i32[B,S]"), std::pair(kDocumentSpans, "i32[B,S,2]")}) {
    if (const Node* taken = inputs == nullptr ? nullptr : inputs->Find(name); taken != nullptr) {
      ReportText(ErrorAt(*taken, fmt::format("data.documents = \"masked\" adds an input '{}' itself", name),
                         "another name"),
                 diagnostics);
      continue;
    }
    Node type;
    type.kind = Node::Kind::kString;
    type.string = text;
    const auto parsed = Parse(type);
    const absl::StatusOr<Sizes> sizes = dims.SizesOf(parsed->second);
    ENGINE_CHECK(sizes.ok(), "{}: {}", text, Message(sizes.status()));
    graph->AddInput(name, {.shape = sizes->shape, .dtype = parsed->first, .dims = sizes->dims});
  }
}

}  // namespace engine::model
