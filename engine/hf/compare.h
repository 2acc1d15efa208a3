// What differs between two Hugging Face models: keys of their configurations, and numbers of their tensors (`engine diff`).
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/checkpoint/tensor_difference.h"

namespace engine::hf {

struct ModelDifferences {
  struct Key {
    std::string key;   // "rope_scaling.factor"
    std::string a, b;  // as JSON; empty: it is not there
  };
  std::vector<Key> keys;
  std::vector<checkpoint::TensorDifference> tensors;  // those that differ, by name
  std::int64_t equal = 0;  // tensors with the same numbers, whatever they are stored as

  bool empty() const { return keys.empty() && tensors.empty(); }
};

// Tensors are read side by side, a piece at a time. Types of 8 bits and whole numbers are compared by their bytes. Errors of
// ReadConfig and Folder::Open.
absl::StatusOr<ModelDifferences> CompareModels(const std::string& a, const std::string& b);

std::string ToText(const ModelDifferences& differences, const std::string& a, const std::string& b,
                   bool markdown);
nlohmann::json ToJson(const ModelDifferences& differences);

}  // namespace engine::hf
