// Which recipe file a run's folder belongs to. The default folder is named after the recipe's file, so that
// two files of one name would share it, and the second would go on with the weights of the first.
#pragma once

#include <string>

#include "engine/base/status.h"
#include "engine/recipe/recipe.h"

namespace engine::train {

// Writes DIR/origin.json: the recipe's file, as an absolute path and as seen from the folder.
absl::Status WriteOrigin(const recipe::Recipe& recipe, const std::string& out);

// An error that names both files where `out` holds a run of another recipe file. It is the same file where
// one of the two paths is the same (the other changes when a repository is moved, with or without its runs),
// and where the recipe says the same as the run's, whatever it is called. A folder that says nothing of a
// file is anybody's.
absl::Status CheckOrigin(const recipe::Recipe& recipe, const std::string& out);

}  // namespace engine::train
