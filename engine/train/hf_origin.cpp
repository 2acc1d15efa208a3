#include "engine/train/hf_origin.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/base/write_file.h"
#include "engine/checkpoint/layout.h"
#include "engine/checkpoint/read.h"
#include "engine/checkpoint/store.h"
#include "engine/hf/folder.h"
#include "engine/hf/model_folder.h"
#include "engine/model/build.h"
#include "engine/model/load.h"
#include "engine/train/hf_import.h"
#include "engine/train/run.h"

namespace engine::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kImportedFrom = "imported_from.json";
constexpr int kMostRuns = 32;  // one after another, each with the weights of the one before

// Where the files that a run was imported with are, or nothing. `folder`: the run's, that of its checkpoints, or one of them.
std::optional<std::string> ImportedFilesOf(const std::string& folder) {
  std::error_code error;
  const fs::path at = fs::weakly_canonical(folder, error);
  for (const fs::path& run : {at, at.parent_path(), at.parent_path().parent_path()}) {
    const fs::path root = CheckpointRoot(run.string());
    if (run != at && root != at && root != at.parent_path()) continue;
    const std::string files = (run / kSourceFolder).string();
    if (hf::IsModelFolder(files)) return files;
  }
  return std::nullopt;
}

// What WriteImportedFrom has noted; nothing of a run of a version that did not.
std::optional<std::string> ImportedFrom(const std::string& source) {
  constexpr std::int64_t kMostBytes = 1 << 20;
  const std::string path = (fs::path(source) / kImportedFrom).string();
  const absl::StatusOr<std::string> text = ReadRegular(path, kMostBytes);
  if (!text.ok()) return std::nullopt;
  const absl::StatusOr<nlohmann::json> note = ParseJson(*text, path);
  if (!note.ok() || !note->is_object() || !note->contains("folder") || !(*note)["folder"].is_string())
    return std::nullopt;
  return (*note)["folder"].get<std::string>();
}

// The checkpoint that the weights of `folder`, a run's or a checkpoint, are read from.
std::optional<checkpoint::Reader> CheckpointIn(const std::string& folder) {
  std::error_code error;
  std::vector<std::string> candidates;
  if (fs::exists(fs::path(folder) / checkpoint::kManifestName, error)) {
    candidates.push_back(folder);
  } else {
    const std::string root = CheckpointRootIn(folder);
    const absl::StatusOr<std::vector<std::int64_t>> iterations = checkpoint::ListIterations(root);
    if (!iterations.ok()) return std::nullopt;
    for (const std::int64_t iteration : *iterations)
      candidates.insert(candidates.begin(), checkpoint::IterationPath(root, iteration));
  }
  for (const std::string& candidate : candidates) {
    absl::StatusOr<checkpoint::Reader> reader = checkpoint::Reader::Open(candidate);
    if (reader.ok()) return *std::move(reader);
  }
  return std::nullopt;
}

bool TrainsAdaptersAlone(const recipe::Recipe& recipe) {
  return recipe.lora.rank > 0 &&
         !TrainsOthers(model::BuildModel(recipe, {.batch = 1, .sequence = 4, .dropout = false}));
}

// One run after another, from the last one back to the folder that the first one began with.
class Walk {
 public:
  HfOrigin Run(std::string folder, const recipe::Recipe& recipe) {
    std::optional<recipe::Recipe> of_folder = recipe;
    for (int runs = 0; runs < kMostRuns; ++runs) {
      AddImport(folder);
      if (!of_folder || of_folder->training.weights_from.empty()) break;
      // Layers may have been cut off or drawn, and experts made of dense parts.
      if (of_folder->training.upcycle || of_folder->training.weights_match == "some") same_weights_ = false;
      folder = of_folder->training.weights_from;
      std::error_code error;
      const std::string canonical = fs::weakly_canonical(folder, error).string();
      if (std::find(seen_.begin(), seen_.end(), canonical) != seen_.end()) break;
      seen_.push_back(canonical);
      const bool is_checkpoint = fs::exists(fs::path(folder) / checkpoint::kManifestName, error);
      if (!is_checkpoint && hf::IsModelFolder(folder)) {
        AddFiles(folder);
        AddFolder(folder);
        break;
      }
      of_folder = RecipeIn(folder);
    }
    return std::move(origin_);
  }

 private:
  void AddImport(const std::string& folder) {
    const std::optional<std::string> files = ImportedFilesOf(folder);
    if (!files) return;
    AddFiles(*files);
    origin_.folders.push_back(*files);
    if (const std::optional<std::string> from = ImportedFrom(*files)) AddFolder(*from);
  }

  void AddFiles(const std::string& folder) {
    if (!origin_.files) origin_.files = folder;
  }

  void AddFolder(const std::string& folder) {
    origin_.folders.push_back(folder);
    if (same_weights_ && !origin_.base && hf::Folder::Open(folder).ok()) origin_.base = folder;
  }

  // Of the checkpoint that the weights come from. They are those with which its run began if nothing was trained yet, or
  // adapters alone.
  std::optional<recipe::Recipe> RecipeIn(const std::string& folder) {
    const std::optional<checkpoint::Reader> reader = CheckpointIn(folder);
    if (!reader) {
      if (checkpoint::IterationOfPath(folder) != 0) same_weights_ = false;
      return std::nullopt;
    }
    recipe::LoadResult loaded = model::LoadText(reader->metadata().recipe_toml, reader->folder());
    const bool trained = reader->metadata().iteration > 0;
    if (trained && !(loaded.ok() && TrainsAdaptersAlone(loaded.recipe))) same_weights_ = false;
    if (!loaded.ok()) return std::nullopt;
    return std::move(loaded.recipe);
  }

  HfOrigin origin_;
  bool same_weights_ = true;       // frozen ones of the last run are still those of the folder at hand
  std::vector<std::string> seen_;  // folders that weights_from has named
};

}  // namespace

absl::Status WriteImportedFrom(const std::string& source, const std::string& folder) {
  std::error_code error;
  const std::string canonical = fs::canonical(folder, error).string();
  if (error) return Unavailable("{}: cannot be resolved: {}", folder, error.message());
  // A path is bytes, and JSON is UTF-8: of another path the note leads nowhere.
  const nlohmann::json note = {{"folder", canonical}};
  return WriteFile((fs::path(source) / kImportedFrom).string(),
                   note.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

bool TrainsOthers(const graph::Graph& graph) {
  const std::vector<graph::Parameter>& parameters = graph.parameters();
  return std::any_of(parameters.begin(), parameters.end(), [](const graph::Parameter& parameter) {
    return parameter.role != graph::Role::kAdapter && !parameter.training.frozen;
  });
}

HfOrigin OriginOf(const std::string& run, const recipe::Recipe& recipe) { return Walk().Run(run, recipe); }

}  // namespace engine::train
