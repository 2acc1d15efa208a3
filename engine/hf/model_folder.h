// A whole Hugging Face model: the folder's config.json as a text of ours, and its weights under our names.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/checkpoint/tensor_source.h"
#include "engine/graph/graph.h"
#include "engine/hf/family.h"

namespace engine::hf {

inline constexpr const char* kConfigFile = "config.json";

// Beside weights and config.json: what a folder has for those who use the model, and which goes through us as it is.
const std::vector<std::string>& CompanionFiles();

// Whether a folder has a config.json.
bool IsModelFolder(const std::string& folder);

// Errors: the system's; "PATH:LINE:COLUMN: error: …" where it is no object of JSON, or has a key twice.
absl::StatusOr<nlohmann::json> ReadConfig(const std::string& folder);

// The longest sequence that a config.json says the model is made for; nullopt: it does not say.
std::optional<std::int64_t> MostPositions(const nlohmann::json& config);

struct ModelFolder {
  nlohmann::json config;
  ImportedModel model;
  std::unique_ptr<checkpoint::TensorSource>
      weights;  // f32, under our names: exactly the parameters of the text
};
// Errors of ReadConfig, ImportConfig, Folder::Open and OpenWeights.
absl::StatusOr<ModelFolder> OpenModelFolder(const std::string& folder);

// Names and logical shapes of a model's parameters.
std::vector<checkpoint::TensorInfo> ParametersOf(const graph::Graph& graph);

}  // namespace engine::hf
