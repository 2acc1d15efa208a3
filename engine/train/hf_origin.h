// Which Hugging Face folders a run's weights came from: what an export may take from them, and must not write over.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/base/status.h"
#include "engine/graph/graph.h"
#include "engine/recipe/recipe.h"

namespace engine::train {

// An import keeps a note of the folder that it read beside that folder's files: RUN/hf/imported_from.json, {"folder": PATH}.
absl::Status WriteImportedFrom(const std::string& source, const std::string& folder);

// Whether a model's graph trains other parameters than adapters.
bool TrainsOthers(const graph::Graph& graph);

struct HfOrigin {
  // Has the model's config.json and its tokenizer's files: RUN/hf of an imported run, or the folder that weights_from names.
  std::optional<std::string> files;
  // Folders that weights came from, whatever was trained in between, the nearest first; some may be gone.
  std::vector<std::string> folders;
  // The one of them that has the weights which the adapters of a run with [lora] stand beside, and has them still. Nothing where
  // a training in between has changed them.
  std::optional<std::string> base;
};

// Of the folder of a run, or of a checkpoint, and the recipe in it. Follows training.weights_from from run to run, as far as
// they are there. Reads manifests and headers, no weights.
HfOrigin OriginOf(const std::string& run, const recipe::Recipe& recipe);

}  // namespace engine::train
