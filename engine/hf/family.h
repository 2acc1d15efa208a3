// A family of Hugging Face models: what the keys of its config.json mean, and how its tensors are called. Each is a file in
// families/ and a line of families.list (family_def.h says what such a file holds).
#pragma once

#include <absl/status/statusor.h>

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "engine/hf/weights.h"
#include "engine/recipe/recipe.h"

namespace engine::hf {

// What a config.json comes to.
struct ImportedModel {
  std::string family;              // of ours: "llama"
  std::string recipe;              // TOML: `extends = "engine:…"`, [model] and blocks; no training, no data
  std::vector<std::string> notes;  // keys that were looked at and have no effect on training
  std::vector<WeightRow> rows;
  Sizes sizes;
  std::vector<std::string> ignored;  // patterns of tensors that are no parameters: "*.rotary_emb.inv_freq"
  // Rows of the same parameters for other forms that files come in: without a prefix, or with all experts in one tensor.
  std::vector<WeightRow> other_rows;
};

// The rows by which a folder with tensors of these names is read: of a parameter that has rows for several forms, the first one
// whose tensors are there; where none are, the row of the usual form.
std::vector<WeightRow> RowsFor(const ImportedModel& model, const std::vector<std::string>& names);

// Accounts for every key of `config`: used, known to be irrelevant, or named. Errors, InvalidArgument: "PATH: error: …" with
// the keys that ask for what is not supported, all of them at once, and what would be right; an unknown model_type with the
// nearest known one.
absl::StatusOr<ImportedModel> ImportConfig(const nlohmann::json& config, const std::string& path);

// The config.json of a model that the engine has trained. `source`: the config that it was imported from, or null: its keys
// stay where they still hold; where all of them do, the result is the source, but for a quantisation, which is not written.
// `family`: which one it is to be; empty: that of the source if it expresses the recipe exactly, else the first that does.
// Error, FailedPrecondition: no family does, with each difference from the nearest one.
//
// Without a source, keys that say nothing of the model (ids of special tokens) are left out. The elements' type is "dtype" (or
// "torch_dtype" where the source says that): who writes the weights sets it.
struct ExportedModel {
  std::string family;
  nlohmann::json config;
  std::vector<WeightRow> rows;
  Sizes sizes;
};
absl::StatusOr<ExportedModel> ExportConfig(const recipe::Recipe& recipe, const nlohmann::json* source,
                                           const std::string& family);

// "bfloat16", under the key that the config has for it.
void SetDtype(std::string_view dtype, nlohmann::json* config);

// As transformers writes files: sorted keys, indent 2, ASCII, a newline at the end.
std::string ConfigText(const nlohmann::json& config);

std::vector<std::string_view> FamilyNames();

}  // namespace engine::hf
