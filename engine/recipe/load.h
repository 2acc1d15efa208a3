// From a file, its `extends` and `--set` to a resolved recipe.
#pragma once

#include <string>
#include <vector>

#include "engine/base/diagnostic.h"
#include "engine/recipe/recipe.h"

namespace engine::recipe {

struct Settings;  // recipe/parse.h

struct LoadOptions {
  std::vector<std::string> sets;  // "section.key=value"; the value is TOML, or a bare word for a string
  std::string root;               // if not empty, no file outside of this folder is read
};

struct LoadResult {
  Recipe recipe;                        // complete and valid only if ok()
  std::vector<Diagnostic> diagnostics;  // sorted by place

  bool ok() const { return !HasErrors(diagnostics); }
};

// Reads the recipe, all files that it extends (paths relative to the file that names them; later entries
// override earlier ones, the file itself overrides them all, key by key), then the sets, in order; then
// validates. The n-th set is located as "--set:n:column".
LoadResult Load(const std::string& path, const LoadOptions& options = {});
// The same with settings that override all others.
LoadResult Load(const std::string& path, const LoadOptions& options, const Settings& overrides);

// The same of a text, which is located as `name` and cannot extend anything, since a checkpoint may bring it.
LoadResult LoadText(const std::string& text, const std::string& name, const LoadOptions& options = {});
// The same of a text that the engine has made, which may extend files: paths relative to `name`, as if it were a file's.
LoadResult LoadExtendingText(const std::string& text, const std::string& name,
                             const LoadOptions& options = {});

}  // namespace engine::recipe
