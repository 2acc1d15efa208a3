#include "engine/model/layers.h"

#include <memory>
#include <utility>

#include "engine/base/status.h"
#include "engine/recipe/document.h"

namespace engine::model {
namespace {

using recipe::Node;

// The one stack of main; null where there are others.
const Node* OneStack(const Node& text) {
  const Node* main = text.Find("model.main");
  const Node* found = nullptr;
  for (const Node& step : main->items) {
    const Node* module = step.Find("do");
    if (module == nullptr) continue;
    if (module->string == "call") return nullptr;  // its block may have stacks
    if (module->string != "stack") continue;
    if (found != nullptr) return nullptr;
    found = &step;
  }
  return found;
}

}  // namespace

bool HasEqualLayers(const recipe::Recipe& recipe) {
  if (!recipe.is_text()) return true;
  const Node* stack = OneStack(*recipe.text);
  return stack != nullptr && stack->Find("repeat") != nullptr && stack->Find("cycle") == nullptr &&
         stack->Find("ramp") == nullptr;
}

void SetLayers(std::int64_t layers, recipe::Recipe* recipe) {
  recipe->model.layers = layers;
  if (!recipe->is_text()) return;
  auto text = std::make_shared<Node>(*recipe->text);
  const Node* stack = OneStack(*text);
  ENGINE_CHECK(stack != nullptr, "{} layers of a model whose layers differ", layers);
  Node* repeat = const_cast<Node*>(stack)->Find("repeat");
  repeat->kind = Node::Kind::kInteger;
  repeat->integer = layers;
  recipe->text = std::move(text);
}

}  // namespace engine::model
