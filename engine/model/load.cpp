#include "engine/model/load.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/graph/op.h"
#include "engine/model/build.h"
#include "engine/model/check.h"
#include "engine/model/step_context.h"
#include "engine/ops/ops.h"
#include "engine/recipe/text.h"
#include "engine/recipe/validate.h"

namespace engine::model {
namespace {

BuildOptions OptionsOf(const recipe::Recipe& recipe) {
  const recipe::Parallelism& p = recipe.parallelism;
  return {.batch = std::max<std::int64_t>(1, recipe.training.micro_batch * p.dp * p.ep),
          .sequence = std::max<std::int64_t>(1, recipe.data.sequence_length),
          .vocab_multiple = recipe.model.vocab_multiple * p.tp,
          .init_std = recipe.model.init_std};
}

void Complete(recipe::LoadResult* result) {
  recipe::Recipe& recipe = result->recipe;
  if (!recipe.is_text() || recipe.text == nullptr || recipe.text->Find("model.main") == nullptr) return;
  std::vector<Diagnostic>& diagnostics = result->diagnostics;
  const bool good = result->ok();
  std::vector<Diagnostic> mistakes;
  const graph::Graph graph = BuildText(*recipe.text, OptionsOf(recipe), &mistakes);
  if (mistakes.empty()) CheckTrainable(*recipe.text, graph, &mistakes);
  if (mistakes.empty()) CheckSplits(recipe, graph, &mistakes);
  if (mistakes.empty()) {
    recipe.model.layers = CountBlocks(graph);
    recipe.model.vocab = VocabularyOf(graph);
    recipe.model.hidden = StreamWidth(graph);
    if (good) mistakes = recipe::Validate(recipe);
  }
  diagnostics.insert(diagnostics.end(), mistakes.begin(), mistakes.end());
  SortAndUnique(&diagnostics);
}

}  // namespace

recipe::LoadResult Load(const std::string& path, const recipe::LoadOptions& options) {
  return model::Load(path, options, {});
}

recipe::LoadResult Load(const std::string& path, const recipe::LoadOptions& options,
                        const recipe::Settings& overrides) {
  recipe::LoadResult result = recipe::Load(path, options, overrides);
  Complete(&result);
  return result;
}

recipe::LoadResult LoadText(const std::string& text, const std::string& name,
                            const recipe::LoadOptions& options) {
  recipe::LoadResult result = recipe::LoadText(text, name, options);
  Complete(&result);
  return result;
}

recipe::StudyResult LoadStudy(const std::string& path, const recipe::LoadOptions& options) {
  const auto load = [](const std::string& recipe, const recipe::LoadOptions& with,
                       const recipe::Settings& overrides) { return model::Load(recipe, with, overrides); };
  return recipe::LoadStudy(path, options, load);
}

}  // namespace engine::model
