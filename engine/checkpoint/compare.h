// The differences of two checkpoints, in whatever layouts they were written (`engine diff`): where their trainings stand, and the numbers
// of their tensors. study::Compare compares their recipes.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/checkpoint/read.h"
#include "engine/checkpoint/tensor_difference.h"

namespace engine::checkpoint {

struct Differences {
  struct Entry {
    std::string name;  // as `engine checkpoint info` calls it: "iteration"
    std::string a, b;  // empty: it is not there
  };
  std::vector<Entry> metadata;            // that differ
  std::vector<TensorDifference> tensors;  // that differ, in the order of a, then those that b alone has
  std::int64_t equal = 0;                 // tensors with the same numbers, whatever they are stored as

  bool empty() const { return metadata.empty() && tensors.empty(); }
};

// Tensors are read side by side, a piece at a time. Errors of Reader::Read.
absl::StatusOr<Differences> Compare(const Reader& a, const Reader& b);

std::string ToText(const Differences& differences, bool markdown);
nlohmann::json ToJson(const Differences& differences);

}  // namespace engine::checkpoint
