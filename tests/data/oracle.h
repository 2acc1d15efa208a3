// tests/data/oracle_indices.json, made by tests/oracles/data_indices.py.
#pragma once

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/data/temp_dir.h"

namespace engine::data {

inline const nlohmann::json& Oracle() {
  static const nlohmann::json kOracle = [] {
    std::ifstream file(TestData("oracle_indices.json"));
    return nlohmann::json::parse(file);
  }();
  return kOracle;
}

}  // namespace engine::data
