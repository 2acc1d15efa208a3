#include "engine/train/resume.h"

#include <filesystem>

#include "engine/checkpoint/store.h"
#include "engine/recipe/load.h"
#include "engine/recipe/print.h"
#include "engine/train/run.h"

namespace engine::train {
namespace {

// Keys of [model] that change no tensor and no meaning of one.
bool MayChangeInModel(const std::string& key) {
  return key.starts_with("model.dropout.") || key == "model.vocab_multiple" || key == "model.init_std";
}

absl::Status CompareRecipes(const recipe::Recipe& recipe, const checkpoint::Reader& reader,
                            std::vector<std::string>* notes) {
  const recipe::LoadResult before =
      recipe::LoadText(reader.metadata().recipe_toml, reader.folder() + " (recipe)");
  if (!before.ok()) return DataLoss("{}: the recipe in the checkpoint cannot be read", reader.folder());
  std::string clashes;
  for (const recipe::Change& change : recipe::Diff(before.recipe, recipe)) {
    const std::string text = fmt::format("{}: {} → {}", change.key, change.before, change.after);
    if (change.key.starts_with("model.") && !MayChangeInModel(change.key)) {
      clashes += "\n    " + text;
    } else {
      notes->push_back("changed since the checkpoint: " + text);
    }
  }
  if (clashes.empty()) return absl::OkStatus();
  return FailedPrecondition(
      "checkpoint {} is of another model, so its weights do not fit this recipe:{}\n"
      "    hint: give the recipe's model back its values, or another --out",
      reader.folder(), clashes);
}

absl::Status RefuseOldRun(const std::string& out) {
  std::error_code error;
  for (const char* name : {"checkpoints", "metrics.jsonl"}) {
    const std::filesystem::path path = std::filesystem::path(out) / name;
    const bool holds = std::filesystem::is_directory(path, error) ? !std::filesystem::is_empty(path, error)
                                                                  : std::filesystem::exists(path, error);
    if (holds) {
      return FailedPrecondition("--fresh: {} already holds a run ({}); remove it, or give another --out", out,
                                path.string());
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::optional<ResumePoint>> FindResumePoint(const recipe::Recipe& recipe,
                                                           const std::string& out, bool fresh) {
  if (fresh) {
    RETURN_IF_ERROR(RefuseOldRun(out));
    return std::nullopt;
  }
  const std::string root = CheckpointRoot(out);
  RETURN_IF_ERROR(checkpoint::RemoveLeftovers(root));
  std::vector<std::string> notes;
  ASSIGN_OR_RETURN(const std::optional<std::string> folder, checkpoint::FindNewestWhole(root, &notes));
  if (!folder) {
    if (notes.empty()) return std::nullopt;
    std::string reasons;
    for (const std::string& note : notes) reasons += "\n    " + note;
    return DataLoss(
        "{} holds no whole checkpoint:{}\n    hint: remove it to start anew, or give another --out", root,
        reasons);
  }
  ASSIGN_OR_RETURN(checkpoint::Reader reader, checkpoint::Reader::Open(*folder));
  RETURN_IF_ERROR(CompareRecipes(recipe, reader, &notes));
  return ResumePoint{std::move(reader), std::move(notes)};
}

}  // namespace engine::train
