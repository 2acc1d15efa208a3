// How far two tensors of one name are apart: what `engine diff` says of checkpoints and of Hugging Face models.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/base/dtype.h"

namespace engine::checkpoint {

struct TensorDifference {
  std::string name;
  std::string what;    // other shapes or types, or that one side lacks it; empty: numbers alone
  double largest = 0;  // difference of two numbers; infinite where one is a NaN and the other is none
  double of = 0;       // the largest number of a, without its sign
  std::int64_t differ = 0, elements = 0;
};

// Whether AddDifferences compares the numbers of tensors of this type; those of other types are compared by their bytes.
constexpr bool IsFloat(DType dtype) {
  return dtype == DType::kF64 || dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16;
}

// Adds what differs between `count` numbers of a and of b, which lie at any alignment.
void AddDifferences(DType type_a, const std::byte* a, DType type_b, const std::byte* b, std::int64_t count,
                    TensorDifference* difference);

// The table of tensors, with its heading; empty where there are none.
std::string ToText(const std::vector<TensorDifference>& tensors, bool markdown);
nlohmann::json ToJson(const std::vector<TensorDifference>& tensors);

}  // namespace engine::checkpoint
