#include "engine/recipe/reference.h"

#include <fmt/format.h>

#include "engine/recipe/fields.h"

namespace engine::recipe {
namespace {

constexpr const char* kIntroduction = R"(# Recipe reference

Every key that a recipe may have. This page is written by `engine schema --reference` from the table of
fields, and a test fails when they differ.

A recipe is a TOML file. Its top-level key `extends` (a path or a list of paths, relative to the file) names
recipes that it builds on: later ones override earlier ones, and the file itself overrides them all, key by
key. `engine:configs/models/llama3-8b.toml` names a file that comes with the program, wherever that is installed. On the command line, `--set section.key=value` overrides the files. `engine resolve FILE` shows the
result, and where each value comes from.
)";

std::string DefaultCell(const Field& field) {
  if (!field.required) return fmt::format("`{}`", ToToml(DefaultOf(field)));
  return "required";
}

std::string MeaningCell(const Field& field) {
  const std::string conditions = field.ConditionsText("`");
  return conditions.empty() ? field.doc : field.doc + " " + conditions;
}

std::string LegalCell(const Field& field) {
  std::string text = field.range.ToText();
  for (const std::string& word : field.words)
    text += fmt::format("{}`\"{}\"`", text.empty() ? "" : ", ", word);
  return text;
}

}  // namespace

std::string ReferencePage() {
  std::string page = kIntroduction;
  for (const TableDoc& table : Tables()) {
    page += fmt::format(
        "\n## [{}]\n\n{}\n\n| key | type | default | legal | unit | meaning |\n|---|---|---|---|---|---|\n",
        table.name, table.doc);
    for (const Field& field : Fields()) {
      if (field.table() != table.name) continue;
      page += fmt::format("| `{}` | {} | {} | {} | {} | {} |\n", field.name(), field.type_name(),
                          DefaultCell(field), LegalCell(field), field.unit, MeaningCell(field));
    }
  }
  return page;
}

}  // namespace engine::recipe
