// Token ids as a person or a program writes them.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace engine::data {

// The ids of a text: separated by blanks or line ends ("464 3290"), or a JSON list ("[464, 3290]"). An error
// is located ("name:line:column: error: ..."): what is no id, and an id outside of [0, vocab).
absl::StatusOr<std::vector<std::int32_t>> ParseTokenIds(const std::string& name, std::string_view text,
                                                        std::int64_t vocab);

}  // namespace engine::data
