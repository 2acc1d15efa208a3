// Low-rank adapters in the form of PEFT's: adapter_config.json and adapter_model.safetensors, with
// base_model.model.<module>.lora_A.weight [rank, in] and lora_B.weight [out, rank] of each linear module; and merged into the
// weights that they stand beside.
#pragma once

#include <absl/status/statusor.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/checkpoint/tensor_source.h"
#include "engine/hf/weights.h"
#include "engine/recipe/recipe.h"

namespace engine::hf {

inline constexpr const char* kAdapterConfigFile = "adapter_config.json";
inline constexpr const char* kAdapterWeightsFile = "adapter_model.safetensors";

struct AdapterModel {
  nlohmann::json config;
  std::vector<Mapping> mappings;
};

// What a family's rows make of the adapters among `parameters`. Of a matrix of ours that is several modules there (queries, keys
// and values; gate and up), each module gets the same A, and its rows of B. `parameters`: of the whole model. `base`: name or path of the model that they are
// for. InvalidArgument: an adapter whose module has several of them.
absl::StatusOr<AdapterModel> AdapterOf(const recipe::Lora& lora, const std::vector<WeightRow>& rows,
                                       const Sizes& sizes,
                                       const std::vector<checkpoint::TensorInfo>& parameters,
                                       const std::string& base);

// The weights of `source`, which outlives this, with W + (alpha / rank) · B A in the place of each W that has an adapter (sums
// in float32), and without the adapters.
std::unique_ptr<checkpoint::TensorSource> Merged(const recipe::Lora& lora,
                                                 const checkpoint::TensorSource& source);

}  // namespace engine::hf
