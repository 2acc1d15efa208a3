// `engine data show`.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <string>

#include "engine/recipe/load.h"

namespace engine::cli {

struct ShowArguments {
  std::string what;  // a recipe, or the prefix of a data set
  std::int64_t sample = 0;
  std::string split = "train";                     // of a recipe
  recipe::Tokenizer tokenizer = {.kind = "none"};  // of a data set
  recipe::LoadOptions load;                        // of a recipe
};

// Prints the sample; the exit code.
absl::StatusOr<int> Show(const ShowArguments& arguments);

}  // namespace engine::cli
