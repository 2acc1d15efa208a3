#include "engine/recipe/study_variants.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <optional>
#include <string_view>
#include <utility>

#include "engine/recipe/fields.h"
#include "engine/recipe/text.h"

namespace engine::recipe {
namespace {

constexpr std::size_t kMostVariants = 1000;
constexpr std::size_t kLongestName = 100;  // bytes; file systems take 255

// One value, or table of values, that a list of the study gives to a key.
struct FactorLevel {
  Settings settings;
  Mark mark;
};
using Factor = std::vector<FactorLevel>;

bool IsFolderName(std::string_view name) {
  const auto allowed = [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '-' || c == '+' || c == '=' || c == ',' || c == '.';
  };
  return !name.empty() && name.size() <= kLongestName && name.front() != '.' &&
         std::all_of(name.begin(), name.end(), allowed);
}

// "model.dims.F" and what it is set to, of each value below a text's key.
void AddLeaves(const std::string& key, const Node& node,
               std::vector<std::pair<std::string, std::string>>* leaves) {
  if (node.kind != Node::Kind::kTable) {
    leaves->emplace_back(key, InlineToml(node));
    return;
  }
  for (const Entry& entry : node.entries)
    AddLeaves(key.empty() ? entry.key : key + "." + entry.key, entry.value, leaves);
}

// "activation=swiglu,hidden=341": the last words of keys, values without quotes.
std::string NameOf(const Settings& settings) {
  std::vector<std::pair<std::string, std::string>> set;
  for (const auto& [key, setting] : settings.values) set.emplace_back(key, ToToml(setting.value));
  AddLeaves("", settings.text, &set);
  std::string name;
  for (const auto& [key, value] : set) {
    std::string kept;
    for (const char c : value) {
      if (c == '"' || c == '[' || c == ']' || c == ' ') continue;
      kept += IsFolderName(std::string("x") + c) ? c : '-';
    }
    name += fmt::format("{}{}={}", name.empty() ? "" : ",", key.substr(key.rfind('.') + 1), kept);
  }
  return name;
}

// Adds a variant that is called after what it sets.
void AddUnnamed(const Settings& settings, const Mark& mark, StudyReader* reader,
                std::vector<NamedSettings>* variants) {
  std::string name = NameOf(settings);
  if (!IsFolderName(name)) {
    reader->Error(mark,
                  fmt::format("the variant would be called '{}', which is no name for a folder", Shown(name)),
                  "give it a name: [variants.NAME]");
    return;
  }
  variants->push_back({std::move(name), settings, mark});
}

std::vector<NamedSettings> ParseNamed(const Node& table, StudyReader* reader) {
  std::vector<NamedSettings> variants;
  for (const Entry& entry : table.entries) {
    if (!IsFolderName(entry.key)) {
      reader->Error(
          entry.key_mark, fmt::format("'{}' is no name for a variant", Shown(entry.key)),
          fmt::format("letters, digits and _ - + = , . and at most {} of them: a folder is called so",
                      kLongestName));
      continue;
    }
    if (entry.value.kind != Node::Kind::kTable) {
      reader->Error(entry.value.mark,
                    fmt::format("variants.{} must be a table, found {}", entry.key, Describe(entry.value)),
                    fmt::format("write [variants.{}], and keys of a recipe below", entry.key));
      continue;
    }
    if (std::optional<Settings> settings = reader->Checked(entry.value)) {
      variants.push_back({entry.key, *std::move(settings), entry.key_mark});
    }
  }
  if (table.entries.empty())
    reader->Error(table.mark, "[variants] is empty", "write [variants.NAME], and keys of a recipe below");
  return variants;
}

// Lists anywhere below a table: each is a factor, with the keys that lead to it.
void FindFactors(const Node& table, StudyReader* reader, std::vector<std::string>* keys,
                 std::vector<Factor>* factors) {
  for (const Entry& entry : table.entries) {
    keys->push_back(entry.key);
    if (entry.value.kind == Node::Kind::kTable) {
      FindFactors(entry.value, reader, keys, factors);
    } else if (entry.value.kind != Node::Kind::kArray || entry.value.items.empty()) {
      reader->Error(
          entry.value.mark,
          fmt::format("{} must be a list of the values to try, found {}", entry.key,
                      entry.value.kind == Node::Kind::kArray ? "an empty one" : Describe(entry.value)));
    } else {
      Factor& factor = factors->emplace_back();
      for (const Node& item : entry.value.items) {
        if (std::optional<Settings> settings = reader->SettingsOf(*keys, entry.key_mark, item)) {
          factor.push_back({*std::move(settings), item.mark});
        }
      }
    }
    keys->pop_back();
  }
}

// Every combination of one level of each factor; `mark` is where the grid is.
std::vector<NamedSettings> GridOf(const std::vector<Factor>& factors, const Mark& mark, StudyReader* reader) {
  std::size_t count = 1;
  for (const Factor& factor : factors) {
    count *= factor.size();
    if (count <= kMostVariants) continue;
    reader->Error(mark, fmt::format("the grid has more than {} variants", kMostVariants));
    return {};
  }
  std::vector<NamedSettings> variants;
  for (std::size_t i = 0; i < count; ++i) {  // the last factor varies fastest
    Settings settings;
    std::size_t rest = i;
    for (auto factor = factors.rbegin(); factor != factors.rend(); ++factor) {
      settings.Override((*factor)[rest % factor->size()].settings);
      rest /= factor->size();
    }
    AddUnnamed(settings, mark, reader, &variants);
  }
  return variants;
}

}  // namespace

StudyVariants ParseStudyVariants(const Entry& section, StudyReader* reader) {
  if (section.key == "variants") return {ParseNamed(section.value, reader), /*adds_base=*/true, false};
  std::vector<Factor> factors;
  std::vector<std::string> keys;
  FindFactors(section.value, reader, &keys, &factors);
  if (reader->broken()) return {};
  if (factors.empty()) {
    reader->Error(section.key_mark, fmt::format("[{}] is empty", section.key),
                  "such as optimizer.learning_rate = [1e-3, 3e-3]");
    return {};
  }
  if (section.key == "grid") return {GridOf(factors, section.key_mark, reader), false, false};
  StudyVariants variants{{}, /*adds_base=*/true, /*skips_base=*/true};
  for (const Factor& factor : factors) {
    for (const FactorLevel& choice : factor) AddUnnamed(choice.settings, choice.mark, reader, &variants.list);
  }
  return variants;
}

}  // namespace engine::recipe
