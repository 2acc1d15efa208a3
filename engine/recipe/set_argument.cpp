#include "engine/recipe/set_argument.h"

#include <algorithm>
#include <cctype>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace engine::recipe {
namespace {

// A number of TOML without a sign, which TOML refuses only where it is too large.
bool IsNumber(std::string_view text) {
  constexpr std::string_view kDecimal = "0123456789_";
  const auto take = [&](std::string_view digits) {
    const std::size_t count = std::min(text.find_first_not_of(digits), text.size());
    text.remove_prefix(count);
    return count > 0;
  };
  for (const auto& [prefix, digits] : std::initializer_list<std::pair<std::string_view, std::string_view>>{
           {"0x", "0123456789abcdefABCDEF_"}, {"0o", "01234567_"}, {"0b", "01_"}}) {
    if (!text.starts_with(prefix)) continue;
    text.remove_prefix(prefix.size());
    return take(digits) && text.empty();
  }
  if (!take(kDecimal)) return false;
  if (text.starts_with('.')) {
    text.remove_prefix(1);
    if (!take(kDecimal)) return false;
  }
  if (text.starts_with('e') || text.starts_with('E')) {
    text.remove_prefix(1);
    if (text.starts_with('+') || text.starts_with('-')) text.remove_prefix(1);
    if (!take(kDecimal)) return false;
  }
  return text.empty();
}

// A value that TOML would refuse, but that can only mean a string: it begins like a word, a number ("969,30,1", "0.0.0.0", "80GB") or a path.
bool IsBareWord(std::string_view text) {
  if (text.empty()) return false;
  const unsigned char first = static_cast<unsigned char>(text[0]);
  if (std::isalnum(first) == 0 && text[0] != '_' && text[0] != '/' && text[0] != '.' && text[0] != '~')
    return false;
  if (IsNumber(text.substr(0, text.find_last_not_of(" \t") + 1))) return false;  // too large
  return text.find_first_of("\n\r\"'[]{}=#\\") == std::string_view::npos;
}

// The argument as a document: TOML reads "a.b=value" as it stands, and columns stay the argument's own.
std::optional<Document> ParseArgument(const std::string& argument, std::size_t equals, int ordinal,
                                      std::vector<Diagnostic>* diagnostics) {
  const auto source = std::make_shared<const Source>(kSetSource, argument, ordinal);
  std::vector<Diagnostic> problems;
  std::optional<Document> document = ParseToml(source, &problems);
  if (document.has_value()) return document;
  if (IsBareWord(std::string_view(argument).substr(equals + 1))) {
    const std::string quoted = argument.substr(0, equals + 1) + "\"" + argument.substr(equals + 1) + "\"";
    std::vector<Diagnostic> ignored;
    document = ParseToml(std::make_shared<const Source>(kSetSource, quoted, ordinal), &ignored);
    if (document.has_value()) {
      document->source = source;  // shown without the quotes that we added
      return document;
    }
  }
  diagnostics->insert(diagnostics->end(), problems.begin(), problems.end());
  return std::nullopt;
}

}  // namespace

Settings ParseSetArgument(const std::string& argument, int ordinal, std::vector<Diagnostic>* diagnostics) {
  const Source source(kSetSource, argument, ordinal);
  const std::size_t equals = argument.find('=');
  const Mark whole = {ordinal, 1, static_cast<int>(argument.size())};
  if (equals == std::string::npos || equals == 0) {
    diagnostics->push_back(source.Error(whole, "--set needs section.key=value", "such as parallelism.tp=2"));
    diagnostics->back().code = "E102";
    return {};
  }
  if (argument.find('\n') != std::string::npos) {
    diagnostics->push_back(source.Error(whole, "--set sets one key, and its argument is one line"));
    diagnostics->back().code = "E102";
    return {};
  }
  const std::optional<Document> document = ParseArgument(argument, equals, ordinal, diagnostics);
  if (!document.has_value()) return {};
  return ParseSettings(*document, Provenance::Origin::kSet, nullptr, diagnostics);
}

}  // namespace engine::recipe
