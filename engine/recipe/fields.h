// The table of recipe fields: one row per key, from which the parser, the JSON Schema, the reference page,
// the printed recipe and the differences between two recipes all follow. A field's default is its initialiser
// in recipe.h.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "engine/recipe/recipe.h"

namespace engine::recipe {

using FieldValue = std::variant<std::int64_t, double, bool, std::string, std::vector<std::int64_t>,
                                std::vector<double>, std::vector<std::string>>;
using FieldPointer = std::variant<std::int64_t*, double*, bool*, std::string*, std::vector<std::int64_t>*,
                                  std::vector<double>*, std::vector<std::string>*>;

// The legal values of a number, or of each number of a list.
struct Range {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool min_excluded = false;
  bool max_excluded = false;

  bool Contains(double value) const;
  std::string ToText() const;  // "at least 1", "at least 0 and less than 1"; empty if there is no limit
};

// What another key must be for a key to have a meaning.
struct Condition {
  std::string key;   // "precision.compute"
  std::string word;  // the value that it must have; empty: any but its default

  // "`precision.compute` is `"fp8"`", with `quote` around names and values.
  std::string ToText(std::string_view quote) const;
};

struct Field {
  std::string key;                    // dotted: "model.attention.heads"
  FieldPointer (*member)(Recipe&);    // where the typed recipe keeps it
  bool bytes = false;                 // an integer that may also be written "141 GB"
  bool required = false;              // has no usable default
  std::vector<Condition> only_where;  // has a meaning only where all of them hold
  std::string unit;                   // may be empty
  Range range;
  std::vector<std::string> words;  // the legal strings; empty: any
  std::string pattern;  // of the legal strings, as editors check it (ECMA 262); the rules say more of them
  std::string doc;

  std::string table() const { return key.substr(0, key.rfind('.')); }  // "model.attention"
  std::string name() const { return key.substr(key.rfind('.') + 1); }  // "heads"
  std::string type_name() const;                                       // "integer", "list of strings", …
  const Condition* ConditionOn(std::string_view other) const;          // on that key; null if there is none
  // "Only where `a` is `"b"` and `c` is not `0`."; empty where the key always has a meaning.
  std::string ConditionsText(std::string_view quote) const;
};

// A table of the recipe: "[model]", "[model.attention]".
struct TableDoc {
  std::string name;
  std::string doc;
};

const std::vector<TableDoc>& Tables();         // in the order of the reference page
const std::vector<Field>& Fields();            // grouped by table, in that order
const Field* FindField(std::string_view key);  // null if there is none
// The name that a key of earlier versions has now, and any other key as it is: recipes that runs have kept are read with it.
std::string_view CurrentKey(std::string_view key);

FieldValue Get(const Field& field, const Recipe& recipe);
void Set(const Field& field, const FieldValue& value, Recipe* recipe);
FieldValue DefaultOf(const Field& field);
// The first condition of the field that the recipe does not meet; null if it meets all.
const Condition* UnmetCondition(const Field& field, const Recipe& recipe);
// Whether the field has a meaning in the recipe: it meets all conditions.
bool Applies(const Field& field, const Recipe& recipe);

// As TOML writes it; a double always as a float ("1.0", "1e-05"), a string quoted and escaped.
std::string ToToml(const FieldValue& value);
std::string QuoteToml(std::string_view text);

}  // namespace engine::recipe
