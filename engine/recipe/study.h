// A study: variants of one recipe, seeds to train each with, and the number that decides (docs/ablations.md).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/base/diagnostic.h"
#include "engine/recipe/load.h"
#include "engine/recipe/recipe.h"

namespace engine::recipe {

struct Variant {
  std::string name;  // unique; a folder is called so
  SourceSpan span;   // where the study names it
  Recipe recipe;
};

struct Study {
  std::string path;   // as the user named it
  std::string title;  // of the report
  Recipe base;
  std::vector<Variant> variants;    // in the study's order, all different
  std::vector<std::int64_t> seeds;  // training.seed of the runs of each variant; at least one
  std::string metric;               // validation_loss: the last one | train_loss: mean of the last iterations
  std::int64_t metric_iterations = 20;
};

// The code of mistakes of the study itself (recipe/codes.h).
inline constexpr const char* kBadStudy = "E105";

struct StudyResult {
  Study study;                          // complete and valid only if ok()
  std::vector<Diagnostic> diagnostics;  // sorted by place

  bool ok() const { return !HasErrors(diagnostics); }
};

// Whether a file says that it is a study. False, too, where it cannot be read.
bool IsStudy(const std::string& path, const LoadOptions& options = {});

// How a recipe is loaded, with settings that override all others.
using Loader =
    std::function<LoadResult(const std::string& path, const LoadOptions&, const Settings& overrides)>;

// Reads a study and its base, with `options` (--set, --root) for the base, and validates every variant. `load`: recipe::Load
// or what stands on it.
StudyResult LoadStudy(const std::string& path, const LoadOptions& options, const Loader& load);
StudyResult LoadStudy(const std::string& path, const LoadOptions& options = {});

}  // namespace engine::recipe
