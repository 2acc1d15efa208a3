// Reading JSON that other programs, or hands, have written.
#pragma once

#include <absl/status/statusor.h>

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace engine {

inline constexpr int kMostJsonDepth = 64;

// Whether lists and objects stand in each other deeper than so many levels. Looks at brackets outside of
// strings alone, so it is right for JSON and safe for any text.
bool IsNestedDeeper(std::string_view json, int levels);

// Parses the whole of `text`, which is called `name` and starts on line `first_line` of it. Errors:
//   "NAME:LINE:COLUMN: error: what", InvalidArgument, where it is not JSON;
//   "NAME:LINE: error: nested deeper than 64 levels", InvalidArgument: the parser's memory grows with the
//   depth, and what walks over a value calls itself;
//   "NAME:LINE: error: number overflow …", OutOfRange: JSON sets numbers no bounds, but the parser makes
//   doubles of them. Both are without LINE where the text has several: where in it is not known.
absl::StatusOr<nlohmann::json> ParseJson(std::string_view text, const std::string& name,
                                         std::int64_t first_line = 1, int most_depth = kMostJsonDepth);

// ParseJson, for what a person has written or asks for: of a key that an object has twice the parser keeps the last
// value without a word, and here it is an error as well, InvalidArgument:
//   "NAME:LINE: error: the key "a" stands twice in one object", without LINE as above. The text is read twice.
absl::StatusOr<nlohmann::json> ParseStrictJson(std::string_view text, const std::string& name,
                                               std::int64_t first_line = 1);

// "an object", "null": what a value is, for a message.
std::string_view TypeOf(const nlohmann::json& value);

}  // namespace engine
