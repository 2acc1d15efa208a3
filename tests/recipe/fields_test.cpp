#include "engine/recipe/fields.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <string>
#include <variant>

namespace engine::recipe {
namespace {

bool IsInRange(const Field& field, const FieldValue& value) {
  if (const auto* integer = std::get_if<std::int64_t>(&value))
    return field.range.Contains(static_cast<double>(*integer));
  if (const auto* number = std::get_if<double>(&value)) return field.range.Contains(*number);
  return true;
}

const void* Address(const FieldPointer& pointer) {
  return std::visit([](const auto* member) -> const void* { return member; }, pointer);
}

}  // namespace

TEST_CASE("each row is one member, in a known table, documented, with a legal default") {
  Recipe recipe;
  std::set<std::string> keys;
  std::set<const void*> members;
  for (const Field& field : Fields()) {
    CAPTURE(field.key);
    CHECK(keys.insert(field.key).second);
    CHECK(members.insert(Address(field.member(recipe))).second);
    CHECK(FindField(field.key) == &field);
    CHECK(std::any_of(Tables().begin(), Tables().end(),
                      [&](const TableDoc& t) { return t.name == field.table(); }));
    CHECK(field.doc.size() > 5);
    CHECK(field.doc.back() == '.');
    const FieldValue initial = DefaultOf(field);
    if (!field.required) CHECK(IsInRange(field, initial));
    if (const auto* word = std::get_if<std::string>(&initial); word != nullptr && !field.words.empty()) {
      CHECK(std::find(field.words.begin(), field.words.end(), *word) != field.words.end());
    }
  }
  CHECK(FindField("model.none") == nullptr);
}

TEST_CASE("conditions are on keys that are there, and words that those may have") {
  for (const Field& field : Fields()) {
    for (const Condition& condition : field.only_where) {
      CAPTURE(field.key);
      CAPTURE(condition.key);
      const Field* other = FindField(condition.key);
      REQUIRE(other != nullptr);
      CHECK((condition.word.empty() ||
             std::find(other->words.begin(), other->words.end(), condition.word) != other->words.end()));
    }
  }
  CHECK(FindField("model.attention.rope_base")->ConditionsText("`") ==
        "Only where `model.family` is `\"decoder\"` and `model.attention.position` is `\"rotary\"`.");
  CHECK(FindField("data.fim.spm_rate")->ConditionsText("") == "Only where data.fim.rate is not 0.0.");
  CHECK(FindField("data.fim.rate")->ConditionsText("").empty());
}

TEST_CASE("a key applies where all of its conditions hold") {
  const Field& base = *FindField("model.attention.rope_base");
  Recipe recipe;
  REQUIRE(UnmetCondition(base, recipe) != nullptr);
  CHECK(UnmetCondition(base, recipe)->key == "model.attention.position");
  recipe.model.attention.position = "rotary";
  CHECK(Applies(base, recipe));
  recipe.model.family = kTextFamily;
  CHECK(!Applies(base, recipe));
}

TEST_CASE("the sections are there") {
  std::string sections;
  for (const TableDoc& table : Tables()) {
    if (table.name.find('.') == std::string::npos) sections += table.name + " ";
  }
  CHECK(sections ==
        "model parallelism data optimizer schedule training lora precision recompute offload checkpoint "
        "evaluation generate guard logging cluster launch check debug ");
}

TEST_CASE("values are set, read and written as TOML") {
  Recipe recipe;
  Set(*FindField("model.layers"), std::int64_t{7}, &recipe);
  CHECK(recipe.model.layers == 7);
  CHECK(std::get<std::int64_t>(Get(*FindField("model.layers"), recipe)) == 7);
  CHECK(ToToml(FieldValue(2.0)) == "2.0");
  CHECK(ToToml(FieldValue(0.1)) == "0.1");
  CHECK(ToToml(FieldValue(1e-5)) == "1e-05");
  CHECK(ToToml(FieldValue(1e22)) == "1e+22");
  CHECK(ToToml(FieldValue(true)) == "true");
  CHECK(ToToml(FieldValue(std::string("a\"\\\n\x01é"))) == "\"a\\\"\\\\\\u000a\\u0001é\"");
  CHECK(ToToml(FieldValue(std::vector<double>{1, 0.5})) == "[1.0, 0.5]");
  CHECK(ToToml(FieldValue(std::vector<std::string>{})) == "[]");
}

TEST_CASE("ranges") {
  const Range open{0, 1, true, true};
  CHECK(!open.Contains(0));
  CHECK(open.Contains(0.5));
  CHECK(!open.Contains(1));
  CHECK(open.ToText() == "greater than 0 and less than 1");
  const Range from{2};
  CHECK(from.Contains(2));
  CHECK(!from.Contains(1.9));
  CHECK(from.ToText() == "at least 2");
  CHECK(Range{}.ToText().empty());
}

}  // namespace engine::recipe
