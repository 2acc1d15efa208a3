#include "engine/train/model_evaluation.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>

#include "engine/base/status.h"
#include "engine/base/units.h"
#include "engine/checkpoint/layout.h"
#include "engine/checkpoint/read.h"
#include "engine/checkpoint/store.h"
#include "engine/driver/check_device.h"
#include "engine/driver/compile_recipe.h"
#include "engine/evaluate/examples.h"
#include "engine/evaluate/score_rows.h"
#include "engine/hf/model_folder.h"
#include "engine/model/load.h"
#include "engine/recipe/print.h"
#include "engine/state/state.h"
#include "engine/train/bucket_copy.h"
#include "engine/train/hf_import.h"
#include "engine/train/run.h"
#include "engine/train/start.h"

namespace engine::train {
namespace {

namespace fs = std::filesystem;

absl::StatusOr<recipe::Recipe> LoadedRecipe(recipe::LoadResult loaded, const std::string& name) {
  if (loaded.ok()) return std::move(loaded.recipe);
  return DataLoss("{} cannot be read: {}", name, Format(loaded.diagnostics.front()));
}

// Empty where the folder holds none.
absl::StatusOr<std::string> NewestCheckpointIn(const std::string& folder, std::vector<std::string>* notes) {
  std::error_code error;
  if (fs::exists(fs::path(folder) / checkpoint::kManifestName, error)) return folder;
  const std::string root = CheckpointRootIn(folder);
  if (!fs::is_directory(root, error)) return std::string();
  ASSIGN_OR_RETURN(const std::optional<std::string> newest, checkpoint::FindNewestWhole(root, notes));
  return newest.value_or("");
}

// Whatever layout it was trained on, and on whatever cluster.
absl::Status PutOn(const driver::ModelLayout& layout, recipe::Recipe* recipe) {
  const std::string device = recipe->cluster.device;
  recipe->parallelism = {};
  recipe->cluster = {};
  recipe->cluster.device = device;
  const std::string asked = driver::SetLayout(layout, recipe);
  if (asked.empty()) return absl::OkStatus();
  recipe->training.micro_batch = 1;
  recipe->training.global_batch = recipe->parallelism.dp * recipe->parallelism.ep;
  recipe->training.rampup = {};
  recipe::LoadResult loaded = model::LoadText(recipe::ToToml(*recipe), "the model's recipe");
  if (!loaded.ok()) return InvalidArgument("{}: {}", asked, loaded.diagnostics.front().message);
  *recipe = std::move(loaded.recipe);
  return absl::OkStatus();
}

// The longest row of any task, in multiples of 64, which kernels of attention like, where that is less than the recipe's.
std::int64_t SequenceFor(const std::vector<evaluate::Task>& tasks, const recipe::Recipe& recipe) {
  if (!recipe.has_one_rank()) return recipe.data.sequence_length;
  std::size_t longest = 1;
  for (const evaluate::Task& task : tasks) {
    for (const evaluate::Row& row : task.rows) longest = std::max(longest, row.tokens.size() - 1);
  }
  return std::min(recipe.data.sequence_length, RoundUp(static_cast<std::int64_t>(longest), 64));
}

// Rows of a rank at a time, a multiple of the samples that routers count together.
std::int64_t BatchFor(std::int64_t wanted, std::int64_t rows, const recipe::Recipe& recipe) {
  constexpr std::int64_t kLogitsBytes = std::int64_t{512} << 20;
  constexpr std::int64_t kMostRows = 64;
  const std::int64_t of_row = recipe.data.sequence_length * recipe.model.vocab * SizeOf(DType::kF32);
  const std::int64_t ranks = recipe.parallelism.dp * recipe.parallelism.ep;
  std::int64_t batch = wanted;
  if (batch == 0) batch = std::clamp<std::int64_t>(kLogitsBytes / of_row, 1, kMostRows);
  batch = std::min(batch, std::max<std::int64_t>(1, (rows + ranks - 1) / ranks));
  return RoundUp(batch, recipe.model.sample_group);
}

// What evaluation needs of the recipe, and nothing of its training.
recipe::Recipe ForTasks(recipe::Recipe recipe, const std::vector<evaluate::Task>& tasks, std::int64_t batch,
                        const state::Device& device) {
  std::size_t rows = 1;
  for (const evaluate::Task& task : tasks) rows = std::max(rows, task.rows.size());
  recipe.data.sequence_length = SequenceFor(tasks, recipe);
  recipe.training.micro_batch = BatchFor(batch, static_cast<std::int64_t>(rows), recipe);
  recipe.training.global_batch = recipe.training.micro_batch * recipe.parallelism.dp * recipe.parallelism.ep;
  recipe.training.rampup = {};
  recipe.evaluation.tasks = {};
  recipe.data.documents = "across";  // a row is one document
  if (device.profile.name == "cpu") recipe.precision.compute = "fp32";
  return recipe;
}

// Where the layout runs, and with what.
struct Prepared {
  plan::Plan plan;
  std::unique_ptr<state::Ranks> ranks;
};

absl::Status LoadModel(const EvaluatedModel& model, const recipe::Recipe& recipe,
                       const ModelEvaluationOptions& options, const Prepared& prepared) {
  const auto note = [&](const std::string& text) {
    if (options.note) options.note(text);
  };
  if (!model.checkpoint.empty()) {
    ASSIGN_OR_RETURN(const checkpoint::Reader reader, checkpoint::Reader::Open(model.checkpoint));
    note(fmt::format("weights of {} after iteration {}", model.checkpoint, reader.metadata().iteration));
    return prepared.ranks->Run([&](executor::RankExecutor& rank) {
      return state::LoadCheckpoint(prepared.plan, reader, /*with_optimizer=*/false, rank);
    });
  }
  ASSIGN_OR_RETURN(const std::optional<StartPoint> start, FindStart(recipe, prepared.plan));
  if (start) {
    for (const std::string& text : start->notes) note(text);
    note(fmt::format("weights of {}", start->folder));
  } else {
    note("there is no checkpoint: the weights are those with which training would begin");
  }
  return prepared.ranks->Run([&](executor::RankExecutor& rank) -> absl::Status {
    RETURN_IF_ERROR(
        state::InitializeParameters(prepared.plan, static_cast<std::uint64_t>(recipe.training.seed), rank));
    if (!start) return absl::OkStatus();
    return state::LoadWeights(prepared.plan, *start->weights, start->sources, rank);
  });
}

}  // namespace

absl::StatusOr<EvaluatedModel> ModelOfFolder(const std::string& name, const driver::ModelLayout& layout) {
  EvaluatedModel model;
  ASSIGN_OR_RETURN(const std::string folder, LocalCheckpoint(name, &model.notes));
  ASSIGN_OR_RETURN(model.checkpoint, NewestCheckpointIn(folder, &model.notes));
  if (!model.checkpoint.empty()) {
    ASSIGN_OR_RETURN(const checkpoint::Reader reader, checkpoint::Reader::Open(model.checkpoint));
    const std::string called = model.checkpoint + " (recipe)";
    ASSIGN_OR_RETURN(model.recipe,
                     LoadedRecipe(model::LoadText(reader.metadata().recipe_toml, called), called));
  } else if (hf::IsModelFolder(folder)) {
    ASSIGN_OR_RETURN(HfImport import, RecipeOfHf(folder));
    const std::string called = folder + " (recipe)";
    ASSIGN_OR_RETURN(model.recipe, LoadedRecipe(model::LoadExtendingText(import.recipe, called), called));
    model.notes.insert(model.notes.end(), import.notes.begin(), import.notes.end());
  } else {
    return NotFound("{} holds neither a whole checkpoint nor a Hugging Face model", folder);
  }
  RETURN_IF_ERROR(PutOn(layout, &model.recipe));
  return model;
}

absl::StatusOr<EvaluatedModel> ModelOfRecipe(recipe::Recipe recipe, const std::string& run) {
  EvaluatedModel model{.recipe = std::move(recipe)};
  ASSIGN_OR_RETURN(model.checkpoint, NewestCheckpointIn(run, &model.notes));
  return model;
}

absl::Status EvaluateModel(const EvaluatedModel& model, const ModelEvaluationOptions& options,
                           const state::Device& device, const std::function<void(const AskedTask&)>& emit) {
  ASSIGN_OR_RETURN(const std::vector<evaluate::Task> tasks,
                   evaluate::MakeTasks(options.tasks, "--task", model.recipe, options.limit));
  const recipe::Recipe recipe = ForTasks(model.recipe, tasks, options.batch, device);
  RETURN_IF_ERROR(ErrorOf(driver::CheckDevice(recipe, device.profile)));
  Prepared prepared;
  ASSIGN_OR_RETURN(
      prepared.plan,
      driver::CompileRecipe(recipe, {.profile = device.profile, .training = false, .keep_scores = true}));
  RETURN_IF_ERROR(evaluate::CheckScores(prepared.plan));
  ASSIGN_OR_RETURN(prepared.ranks, state::Ranks::Create(prepared.plan, device,
                                                        static_cast<std::uint64_t>(recipe.training.seed)));
  RETURN_IF_ERROR(LoadModel(model, recipe, options, prepared));
  const evaluate::Scorer scorer{.plan = prepared.plan, .ranks = *prepared.ranks};
  for (const evaluate::Task& task : tasks) {
    absl::StatusOr<std::vector<evaluate::RowScore>> scores =
        evaluate::ScoreRows(scorer, task.rows, task.settings.name);
    if (!scores.ok()) return WithContext(scores.status(), "task " + task.settings.name);
    emit({.result = evaluate::Summarize(task, *scores), .samples = evaluate::SamplesText(task, *scores)});
  }
  return absl::OkStatus();
}

}  // namespace engine::train
