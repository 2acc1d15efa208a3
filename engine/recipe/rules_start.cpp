#include <string>

#include "engine/recipe/rules.h"

namespace engine::recipe {
namespace {

void UpcyclingHasACheckpoint(const RuleContext& c) {
  const Start& start = c.recipe.start;
  if (!start.upcycle || !start.checkpoint.empty()) return;
  c.Error({"start.upcycle"}, "start.upcycle makes experts of a dense checkpoint, and none is named",
          "start.checkpoint = the folder of a run");
}

void UpcyclingHasExperts(const RuleContext& c) {
  if (c.recipe.is_text() && c.recipe.model.layers == 0) return;  // its steps have not been read yet
  if (!c.recipe.start.upcycle || c.recipe.model.experts > 0) return;
  c.Error({"start.upcycle"}, "start.upcycle makes experts of a dense checkpoint, and this model has none",
          "upcycle = false takes the weights as they are");
}

}  // namespace

std::vector<Rule> StartRules() {
  return {
      {{"start"}, UpcyclingHasACheckpoint},
      {{"start.upcycle"}, UpcyclingHasExperts},
  };
}

}  // namespace engine::recipe
