#include "engine/base/json.h"

#include <algorithm>

#include "engine/base/shown.h"
#include "engine/base/status.h"

namespace engine {
namespace {

constexpr std::size_t kMostReasonBytes = 200;

// The parser's reason without what it puts in front: "[json.exception.parse_error.101] parse error at line 1,
// column 5: ".
std::string ReasonOf(const nlohmann::json::exception& error, std::string_view front_ends) {
  std::string_view what = error.what();
  what.remove_prefix(std::min(what.find(front_ends) + front_ends.size(), what.size()));
  return Shown(what, kMostReasonBytes);
}

}  // namespace

bool IsNestedDeeper(std::string_view json, int levels) {
  int depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > levels) return true;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return false;
}

absl::StatusOr<nlohmann::json> ParseJson(std::string_view text, const std::string& name,
                                         std::int64_t first_line, int most_depth) {
  if (IsNestedDeeper(text, most_depth)) {
    return InvalidArgument("{}:{}: error: nested deeper than {} levels", name, first_line, most_depth);
  }
  try {
    return nlohmann::json::parse(text.begin(), text.end());
  } catch (const nlohmann::json::parse_error& error) {
    const std::string_view before = text.substr(0, error.byte > 0 ? error.byte - 1 : 0);
    const auto line = first_line + std::count(before.begin(), before.end(), '\n');
    const std::size_t column = before.size() - (before.rfind('\n') + 1) + 1;
    return InvalidArgument("{}:{}:{}: error: {}", name, line, column, ReasonOf(error, ": "));
  } catch (const nlohmann::json::exception& error) {
    return absl::OutOfRangeError(fmt::format("{}:{}: error: {}", name, first_line, ReasonOf(error, "] ")));
  }
}

std::string_view TypeOf(const nlohmann::json& value) {
  switch (value.type()) {
    case nlohmann::json::value_t::null:
      return "null";
    case nlohmann::json::value_t::object:
      return "an object";
    case nlohmann::json::value_t::array:
      return "a list";
    case nlohmann::json::value_t::string:
      return "a string";
    case nlohmann::json::value_t::boolean:
      return "a boolean";
    default:
      return "a number";
  }
}

}  // namespace engine
