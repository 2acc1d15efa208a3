#include "engine/base/json.h"

#include <algorithm>
#include <optional>
#include <set>
#include <vector>

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

// Where an error stands whose place in the text is not known.
std::string WhereIn(std::string_view text, const std::string& name, std::int64_t first_line) {
  const bool is_line = text.find('\n') == std::string_view::npos;
  return is_line ? fmt::format("{}:{}", name, first_line) : name;
}

// A key that an object of the text has twice.
std::optional<std::string> TwiceIn(std::string_view text) {
  using Json = nlohmann::json;
  std::vector<std::set<std::string>> keys;  // of the objects that are open
  std::optional<std::string> twice;
  const auto look = [&](int /*depth*/, Json::parse_event_t event, Json& value) {
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.back().insert(value.get<std::string>()).second)
      twice = value.get<std::string>();
    return true;
  };
  [[maybe_unused]] const Json parsed =
      Json::parse(text.begin(), text.end(), look, /*allow_exceptions=*/false);
  return twice;
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
  const std::string where = WhereIn(text, name, first_line);
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

absl::StatusOr<nlohmann::json> ParseStrictJson(std::string_view text, const std::string& name,
                                               std::int64_t first_line) {
  absl::StatusOr<nlohmann::json> parsed = ParseJson(text, name, first_line);
  if (!parsed.ok()) return parsed;
  if (const std::optional<std::string> twice = TwiceIn(text))
    return InvalidArgument("{}: error: the key \"{}\" stands twice in one object",
                           WhereIn(text, name, first_line), Shown(*twice));
  return parsed;
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
