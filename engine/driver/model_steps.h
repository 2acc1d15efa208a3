// A part of driver/advise.h: the steps of a model, a decoder's or a text's, for warnings that are about one of them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/graph/graph.h"
#include "engine/model/origins.h"
#include "engine/recipe/expand.h"
#include "engine/recipe/recipe.h"
#include "engine/recipe/rules.h"

namespace engine::driver {

// What a step says: an attribute of the step that a node comes from.
struct Saying {
  graph::NodeId node = -1;
  std::string_view attribute;
};

// The graph that a recipe's model is, and what its steps say: in the words of a decoder's keys where these say it, else in
// those of the text.
class ModelSteps {
 public:
  // The recipe must have passed model::Load.
  explicit ModelSteps(const recipe::Recipe& recipe);

  const graph::Graph& graph() const { return graph_; }  // the forward pass
  const graph::Node& node(graph::NodeId id) const { return graph_.nodes()[static_cast<std::size_t>(id)]; }

  // What a decoder calls it, "dropout.attention"; empty where no key of a decoder says it.
  std::string_view KeyName(const Saying& saying) const;
  // How one would write it: "dropout.attention", or of a text "dropout".
  std::string_view Written(const Saying& saying) const;
  // "dropout.attention 0.1"; of a text "dropout 0.1 of layers.0.attention.core".
  std::string Said(const Saying& saying, std::string_view value) const;

  // Those that stand in different places, the first of each: layers repeat what one step says.
  std::vector<Saying> OnePerPlace(std::vector<Saying> sayings) const;

  // Other keys that a warning is about; `before`: that are named before the step's where they are as near.
  struct OtherKeys {
    std::vector<std::string_view> before = {};
    std::vector<std::string_view> behind = {};
  };
  // A warning at a decoder's keys, or where the text says it.
  void Warn(std::string_view code, const Saying& saying, const OtherKeys& others, std::string message,
            std::string hint, const recipe::RuleContext& report) const;

  // The keys of a decoder that say it; none of a text.
  std::vector<std::string_view> KeysThatSay(const Saying& saying) const;
  // Where the text says it, or, where it leaves that out, its step; null of a decoder.
  const recipe::Place* PlaceInText(const Saying& saying) const {
    return is_text_ ? &OriginOf(saying).PlaceOf(saying.attribute) : nullptr;
  }

 private:
  const model::Origin& OriginOf(const Saying& saying) const {
    return *origins_[static_cast<std::size_t>(saying.node)];
  }
  const recipe::ExpandedAttribute* KeysOf(const Saying& saying) const;  // null of a text

  bool is_text_;
  model::Origins origins_;
  graph::Graph graph_;
};

}  // namespace engine::driver
