// A Hugging Face model as a run's folder: a recipe, the files that go with it, and a checkpoint of iteration 0 that any layout
// loads (`engine import hf`).
#pragma once

#include <string>
#include <vector>

#include "engine/base/status.h"
#include "engine/plan/device_profile.h"

namespace engine::train {

// Where a run keeps the files of the model that it was imported from.
inline constexpr const char* kSourceFolder = "hf";

struct HfImport {
  std::string family;
  std::string recipe;  // TOML; its first weights are the folder's, or the run's
  std::vector<std::string>
      notes;  // keys of the config that have no effect on training; what a run still needs
  std::int64_t parameters = 0;
};

// The recipe alone, of a folder whose weights are looked at but not read.
absl::StatusOr<HfImport> RecipeOfHf(const std::string& folder);

// OUT/recipe.toml, OUT/hf/ and OUT/checkpoints/iteration_0000000, all of it or nothing: it is written beside OUT and renamed. The
// largest buffers are of 128 MiB, so the memory that it takes does not grow with the model. Errors: OUT is there; those of
// RecipeOfHf; the system's.
absl::StatusOr<HfImport> ImportHf(const std::string& folder, const std::string& out,
                                  const plan::DeviceProfile& profile);

}  // namespace engine::train
