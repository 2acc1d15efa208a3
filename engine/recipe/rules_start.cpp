#include <string>

#include "engine/recipe/rules.h"

namespace engine::recipe {
namespace {

void UpcyclingHasACheckpoint(const RuleContext& c) {
  const Training& training = c.recipe.training;
  if (!training.upcycle || !training.weights_from.empty()) return;
  c.Error({"training.upcycle"}, "training.upcycle makes experts of a dense checkpoint, and none is named",
          "training.weights_from = the folder of a run");
}

void UpcyclingHasExperts(const RuleContext& c) {
  if (c.recipe.is_text() && c.recipe.model.layers == 0) return;  // its steps have not been read yet
  if (!c.recipe.training.upcycle || c.recipe.model.experts > 0) return;
  c.Error({"training.upcycle"},
          "training.upcycle makes experts of a dense checkpoint, and this model has none",
          "upcycle = false takes the weights as they are");
}

}  // namespace

std::vector<Rule> StartRules() {
  return {
      {{"training.weights_from", "training.upcycle"}, UpcyclingHasACheckpoint},
      {{"training.upcycle"}, UpcyclingHasExperts},
  };
}

}  // namespace engine::recipe
