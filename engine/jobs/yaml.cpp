#include "engine/jobs/yaml.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>

namespace engine::jobs {
namespace {

using Json = nlohmann::ordered_json;

bool IsPlain(const std::string& text) {
  constexpr std::array<std::string_view, 10> kWords = {"y",   "n",    "yes",   "no",   "on",
                                                       "off", "true", "false", "null", "none"};
  std::string small = text;
  std::transform(small.begin(), small.end(), small.begin(), [](unsigned char c) { return std::tolower(c); });
  const auto is_plain = [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '-' || c == '.' || c == '/';
  };
  return !text.empty() && std::isalpha(static_cast<unsigned char>(text[0])) != 0 &&
         std::all_of(text.begin(), text.end(), is_plain) &&
         std::find(kWords.begin(), kWords.end(), small) == kWords.end();
}

std::string Scalar(const Json& value) {
  return value.is_string() && IsPlain(value) ? value.get<std::string>()
                                             : value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

bool IsBlock(const Json& value) { return value.is_structured() && !value.empty(); }

// Its lines; the first without indentation, as it follows a key or a hyphen.
void Append(const Json& value, const std::string& indent, std::string* text) {
  bool first = true;
  const auto begin = [&] {
    if (!first) *text += indent;
    first = false;
  };
  for (const auto& [key, member] : value.items()) {
    begin();
    if (value.is_array()) {
      *text += "- ";
      if (IsBlock(member)) {
        Append(member, indent + "  ", text);
        continue;
      }
    } else {
      *text += Scalar(key) + ":";
      if (IsBlock(member)) {
        // A list begins below its key without more indentation, as Kubernetes' own files have it.
        const std::string deeper = member.is_array() ? indent : indent + "  ";
        *text += "\n" + deeper;
        Append(member, deeper, text);
        continue;
      }
      *text += " ";
    }
    *text += Scalar(member) + "\n";
  }
}

}  // namespace

std::string ToYaml(const Json& value) {
  if (!IsBlock(value)) return Scalar(value) + "\n";
  std::string text;
  Append(value, "", &text);
  return text;
}

}  // namespace engine::jobs
