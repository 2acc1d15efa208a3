// A Megatron-LM launch script, or a list of its flags, as a recipe.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "engine/base/diagnostic.h"
#include "engine/recipe/source.h"

namespace engine::import {

struct MegatronOptions {
  std::map<std::string, std::string> variables;  // whatever the script itself sets them to
  std::string cluster;                           // what `extends` names; empty: the recipe stands alone
};

struct MegatronImport {
  std::string recipe;                   // TOML; only if ok()
  std::vector<Diagnostic> diagnostics;  // located in the script, sorted
  std::string summary;                  // one line: how many flags became keys, or how many errors there are

  bool ok() const { return !HasErrors(diagnostics); }
};

// The recipe is complete and valid, but for what the file that it extends says.
MegatronImport ImportMegatron(const recipe::Source& script, const MegatronOptions& options);

}  // namespace engine::import
