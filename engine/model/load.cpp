#include "engine/model/load.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "engine/model/build.h"
#include "engine/model/check.h"
#include "engine/model/groups.h"
#include "engine/model/lora.h"
#include "engine/recipe/expand.h"
#include "engine/recipe/set_argument.h"
#include "engine/recipe/text.h"
#include "engine/recipe/validate.h"

namespace engine::model {
namespace {

BuildOptions OptionsOf(const recipe::Recipe& recipe) {
  const recipe::Parallelism& p = recipe.parallelism;
  return {.batch = std::max<std::int64_t>(1, recipe.training.micro_batch * p.dp * p.ep),
          .rank_samples = std::max<std::int64_t>(1, recipe.training.micro_batch),
          .sequence = std::max<std::int64_t>(1, recipe.data.sequence_length),
          .vocab_multiple = recipe.model.vocab_multiple * p.tp,
          .whole_experts = p.expert_tp == 1,
          .ep = p.ep,
          .expert_rows = p.expert_rows,
          .init_std = recipe.model.init_std,
          .documents = recipe.data.documents == "masked",
          .lora = recipe.lora};
}

// What follows from the steps, and the rules that read it.
void CompleteText(const graph::Graph& graph, bool good, recipe::Recipe* recipe,
                  std::vector<Diagnostic>* mistakes) {
  CheckTrainable(*recipe->text, graph, mistakes);
  CheckSplits(*recipe, graph, mistakes);
  CheckOneOrder(*recipe, graph, mistakes);
  if (!mistakes->empty()) return;
  recipe->model.layers = CountBlocks(graph);
  recipe->model.vocab = VocabularyOf(graph);
  recipe->model.hidden = StreamWidth(graph);
  recipe->model.experts = ExpertsOf(graph);
  recipe->model.sample_group = SampleGroupOf(graph);
  if (good) *mistakes = recipe::Validate(*recipe);
}

// Files that a recipe extends may have blocks and dims for others that do: notes are on its own lines and on --set alone. A text
// that a run has kept has all of them in one file.
void AddNotes(const std::vector<Diagnostic>& notes, const std::string& path,
              std::vector<Diagnostic>* diagnostics) {
  for (const Diagnostic& note : notes) {
    if (note.span.file == path || note.span.file == recipe::kSetSource) diagnostics->push_back(note);
  }
}

void Complete(recipe::LoadResult* result, bool is_of_files) {
  recipe::Recipe& recipe = result->recipe;
  const bool good = result->ok();
  const bool has_steps =
      recipe.is_text() && recipe.text != nullptr && recipe.text->Find("model.main") != nullptr;
  const bool has_groups = recipe.text != nullptr && recipe.text->Find("optimizer.group") != nullptr;
  const bool has_lora = recipe.lora.rank > 0;
  // The keys of a decoder are checked by their rules.
  if (!has_steps && !((has_groups || has_lora) && good)) return;
  std::vector<Diagnostic> mistakes;
  std::vector<Diagnostic> notes;
  graph::Graph graph = BuildText(has_steps ? *recipe.text : ExpandedText(recipe), OptionsOf(recipe),
                                 &mistakes, /*origins=*/nullptr, &notes);
  if (mistakes.empty()) FreezeForLora(recipe, &graph, &mistakes);
  if (mistakes.empty()) ApplyGroups(recipe, &graph, &mistakes);
  if (mistakes.empty() && has_steps) CompleteText(graph, good, &recipe, &mistakes);
  result->diagnostics.insert(result->diagnostics.end(), mistakes.begin(), mistakes.end());
  if (has_steps && is_of_files) AddNotes(notes, recipe.path, &result->diagnostics);
  SortAndUnique(&result->diagnostics);
}

}  // namespace

recipe::LoadResult Load(const std::string& path, const recipe::LoadOptions& options) {
  return model::Load(path, options, {});
}

recipe::LoadResult Load(const std::string& path, const recipe::LoadOptions& options,
                        const recipe::Settings& overrides) {
  recipe::LoadResult result = recipe::Load(path, options, overrides);
  Complete(&result, /*is_of_files=*/true);
  return result;
}

recipe::LoadResult LoadText(const std::string& text, const std::string& name,
                            const recipe::LoadOptions& options) {
  recipe::LoadResult result = recipe::LoadText(text, name, options);
  Complete(&result, /*is_of_files=*/false);
  return result;
}

recipe::LoadResult LoadExtendingText(const std::string& text, const std::string& name,
                                     const recipe::LoadOptions& options) {
  recipe::LoadResult result = recipe::LoadExtendingText(text, name, options);
  Complete(&result, /*is_of_files=*/false);
  return result;
}

recipe::StudyResult LoadStudy(const std::string& path, const recipe::LoadOptions& options) {
  const auto load = [](const std::string& recipe, const recipe::LoadOptions& with,
                       const recipe::Settings& overrides) { return model::Load(recipe, with, overrides); };
  return recipe::LoadStudy(path, options, load);
}

}  // namespace engine::model
