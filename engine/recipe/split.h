// The split string of data sets (Megatron-LM: --split).
#pragma once

#include <absl/status/statusor.h>

#include <array>
#include <string_view>

namespace engine::recipe {

// Shares of training, validation and test, not normalised: "969,30,1" → {969, 30, 1}; missing ones are 0. An
// error where a share is no number, there are more than three, or all are 0.
absl::StatusOr<std::array<double, 3>> ParseSplit(std::string_view text);

}  // namespace engine::recipe
