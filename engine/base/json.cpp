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
  const std::size_t at = what.find(front_ends);
  if (at != std::string_view::npos) what.remove_prefix(at + front_ends.size());
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
  const bool is_line = text.find('\n') == std::string_view::npos;
  const std::string where = is_line ? fmt::format("{}:{}", name, first_line) : name;
  if (IsNestedDeeper(text, most_depth))
    return InvalidArgument("{}: error: nested deeper than {} levels", where, most_depth);
  try {
    return nlohmann::json::parse(text.begin(), text.end());
  } catch (const nlohmann::json::parse_error& error) {
    const auto [line, column] = LineAndColumn(text, error.byte > 0 ? error.byte - 1 : 0);
    return InvalidArgument("{}:{}:{}: error: {}", name, first_line - 1 + line, column, ReasonOf(error, ": "));
  } catch (const nlohmann::json::exception& error) {
    return absl::OutOfRangeError(fmt::format("{}: error: {}", where, ReasonOf(error, "] ")));
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
