// A small model of a family as tests/oracles/hf_families.py describes it: its config.json, its tensors under the hub's
// names, and the logits that a computation in float64 which shares nothing with the engine gives.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/base/shape.h"

namespace engine::hf::testing {

// A tensor of a file, row-major. Every number is one of bfloat16.
struct OracleTensor {
  Shape shape;
  std::vector<float> values;
};
using OracleTensors = std::map<std::string, OracleTensor>;

class OracleFile {
 public:
  OracleFile();  // tests/oracles/hf_families.json; ends the test where it cannot be read

  std::vector<std::string> names() const;
  const nlohmann::json& config(const std::string& name) const { return file_["cases"][name]["config"]; }
  OracleTensors Tensors(const std::string& name) const;

  std::int64_t samples() const { return static_cast<std::int64_t>(file_["tokens"].size()); }
  std::int64_t sequence() const { return static_cast<std::int64_t>(file_["tokens"][0].size()); }
  std::int32_t Token(std::int64_t sample, std::int64_t column) const {
    return file_["tokens"][static_cast<size_t>(sample)][static_cast<size_t>(column)];
  }

  // How far logits [sample, column, class] are off at the places that the file has, as a part of the largest of its numbers;
  // infinite where one is no number.
  double Error(const std::string& name, const std::vector<float>& logits) const;

 private:
  nlohmann::json file_;
};

// config.json and model.safetensors, in float32 or in bfloat16.
void WriteModel(const std::string& folder, const nlohmann::json& config, const OracleTensors& tensors,
                bool bfloat16);

}  // namespace engine::hf::testing
