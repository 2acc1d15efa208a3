#include "engine/recipe/validate.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/base/status.h"
#include "engine/recipe/fields.h"
#include "engine/recipe/rules.h"
#include "engine/recipe/set_argument.h"

namespace engine::recipe {
namespace {

// The smaller, the more telling.
int Remoteness(const Provenance& provenance, const std::string& path) {
  switch (provenance.origin) {
    case Provenance::Origin::kSet:
      return 0;
    case Provenance::Origin::kFile:
      return provenance.span.file == path ? 1 : 2;
    case Provenance::Origin::kDefault:
      return 3;
  }
  return 3;
}

Provenance ProvenanceOf(const Place& place) {
  const bool is_set = place.source->name() == kSetSource;
  return {is_set ? Provenance::Origin::kSet : Provenance::Origin::kFile, place.source->Span(place.mark),
          place.source->Line(place.mark.line)};
}

bool Reads(const Rule& rule, std::string_view key) {
  return std::any_of(rule.inputs.begin(), rule.inputs.end(), [&](const std::string& input) {
    return key == input || (key.starts_with(input) && key[input.size()] == '.');
  });
}

bool Touches(const Rule& rule, const std::set<std::string>& unusable) {
  return std::any_of(unusable.begin(), unusable.end(),
                     [&](const std::string& key) { return Reads(rule, key); });
}

struct CodedRule {
  const char* code;
  Rule rule;
};

const std::vector<CodedRule>& AllRules() {
  static const std::vector<CodedRule> all = [] {
    std::vector<CodedRule> rules;
    const auto add = [&](const char* code, const std::vector<Rule>& family) {
      for (const Rule& rule : family) rules.push_back({code, rule});
    };
    add("E201", ModelRules());
    add("E202", ParallelismRules());
    add("E203", BatchRules());
    add("E204", ScheduleRules());
    add("E205", PrecisionRules());
    add("E206", DataRules());
    add("E207", OptimizerRules());
    add("E209", StartRules());
    add("E213", GenerateRules());
    add("E210", LoggingRules());
    add("E212", GuardRules());
    add("E214", CheckpointRules());
    add("E215", UnusedRules());
    return rules;
  }();
  return all;
}

// The numbers of the rules that the recipe breaks.
std::set<std::size_t> Broken(const Recipe& recipe, const std::set<std::string>& unusable) {
  std::set<std::size_t> broken;
  const std::vector<CodedRule>& rules = AllRules();
  for (std::size_t i = 0; i < rules.size(); ++i) {
    if (Touches(rules[i].rule, unusable)) continue;
    bool holds = true;
    rules[i].rule.check(RuleContext(recipe, &holds));
    if (!holds) broken.insert(i);
  }
  return broken;
}

std::int64_t& Integer(std::string_view key, Recipe* recipe) {
  const Field* field = FindField(key);
  ENGINE_CHECK(field != nullptr, "there is no key {}", key);
  return *std::get<std::int64_t*>(field->member(*recipe));
}

// How lawful a recipe is in which a key has another value.
enum class Lawfulness { kNone, kMendsThis, kKeepsAllOfTheKey };

// Tries values on a copy of a recipe that breaks the rule of that number.
class Trial {
 public:
  Trial(const Recipe& recipe, const std::set<std::string>& unusable, std::size_t rule)
      : recipe_(recipe), unusable_(unusable), rule_(rule), before_(Broken(recipe, unusable)) {
    recipe_.provenance.clear();
  }

  std::int64_t ValueOf(std::string_view key) { return Integer(key, &recipe_); }

  Lawfulness Of(const std::vector<std::pair<std::string_view, std::int64_t>>& changes) {
    const Recipe saved = recipe_;
    bool in_range = true;
    for (const auto& [key, value] : changes) {
      in_range = in_range && FindField(key)->range.Contains(static_cast<double>(value));
      Integer(key, &recipe_) = value;
    }
    const std::set<std::size_t> after = in_range ? Broken(recipe_, unusable_) : std::set{rule_};
    recipe_ = saved;
    if (after.contains(rule_) || !std::includes(before_.begin(), before_.end(), after.begin(), after.end())) {
      return Lawfulness::kNone;
    }
    const bool concerns_a_change = std::any_of(after.begin(), after.end(), [&](std::size_t rule) {
      return std::any_of(changes.begin(), changes.end(),
                         [&](const auto& change) { return Reads(AllRules()[rule].rule, change.first); });
    });
    return concerns_a_change ? Lawfulness::kMendsThis : Lawfulness::kKeepsAllOfTheKey;
  }

 private:
  Recipe recipe_;
  const std::set<std::string>& unusable_;
  std::size_t rule_;
  std::set<std::size_t> before_;
};

// "tp 2 or 4", "tp 2 with dp 4"; empty where no value of the choice is as lawful as asked for.
std::string ValuesOf(const Choice& choice, Lawfulness least, Trial* trial) {
  const std::int64_t own = trial->ValueOf(choice.key);
  const std::int64_t around = choice.around != 0 ? choice.around : own;
  const auto along = [&](std::int64_t value) -> std::int64_t {
    if (choice.keeps.empty()) return 0;
    const std::int64_t product = ProductOrOverflow({own, trial->ValueOf(choice.keeps)});
    return product > 0 && value > 0 && product % value == 0 ? product / value : 0;
  };
  const auto lawful = [&](std::int64_t value, bool alone) {
    if (value == own) return false;
    if (alone) return trial->Of({{choice.key, value}}) >= least;
    return along(value) > 0 && trial->Of({{choice.key, value}, {choice.keeps, along(value)}}) >= least;
  };
  for (const bool alone : {true, false}) {
    std::vector<std::int64_t> sorted = choice.values;
    std::sort(sorted.begin(), sorted.end());
    const auto middle = std::lower_bound(sorted.begin(), sorted.end(), around);
    std::vector<std::int64_t> found;
    for (auto it = middle; it != sorted.begin() && found.empty();) {
      if (lawful(*--it, alone)) found.push_back(*it);
    }
    const auto above = std::find_if(middle, sorted.end(), [&](std::int64_t v) { return lawful(v, alone); });
    if (above != sorted.end()) found.push_back(*above);
    std::string text;
    for (const std::int64_t value : found) {
      text += text.empty() ? fmt::format("{} {}", choice.name, value) : fmt::format(" or {}", value);
      if (!alone) {
        text += fmt::format(" with {} {}", choice.keeps.substr(choice.keeps.rfind('.') + 1), along(value));
      }
    }
    if (!text.empty()) return text;
  }
  return "";
}

// Rules that read a key of a decoder say nothing of other models, but for what follows from a text.
std::set<std::string> WithKeysOfOtherFamilies(const Recipe& recipe, std::set<std::string> keys) {
  if (!recipe.is_text()) return keys;
  for (const Field& field : Fields()) {
    if (field.ConditionOn(kModelFamilyKey) != nullptr && !Applies(field, recipe)) keys.insert(field.key);
  }
  if (recipe.model.layers > 0) keys.erase("model.layers");
  if (recipe.model.vocab > 0) keys.erase("model.vocab");
  return keys;
}

}  // namespace

void RuleContext::Error(std::initializer_list<std::string_view> keys, std::string message,
                        std::string hint) const {
  Report(Severity::kError, code, nullptr, keys, std::move(message), std::move(hint));
}

void RuleContext::Error(const Place* in_text, std::span<const std::string_view> keys, std::string message,
                        std::string hint) const {
  Report(Severity::kError, code, in_text, keys, std::move(message), std::move(hint));
}

void RuleContext::Warn(std::string_view warning, std::initializer_list<std::string_view> keys,
                       std::string message, std::string hint) const {
  Warn(warning, nullptr, keys, std::move(message), std::move(hint));
}

void RuleContext::Warn(std::string_view warning, const Place* in_text, std::span<const std::string_view> keys,
                       std::string message, std::string hint) const {
  const std::vector<std::string>& allow = recipe.check.allow;
  if (std::find(allow.begin(), allow.end(), warning) != allow.end()) return;
  Report(Severity::kWarning, warning, in_text, keys, std::move(message), std::move(hint));
}

void RuleContext::Note(std::initializer_list<std::string_view> keys, std::string message) const {
  Report(Severity::kNote, "", nullptr, keys, std::move(message), "");
}

std::string RuleContext::WaysOut(const std::vector<Choice>& choices) const {
  if (diagnostics_ == nullptr) return "";
  Trial trial(recipe, *unusable_, rule_);
  for (const Lawfulness least : {Lawfulness::kKeepsAllOfTheKey, Lawfulness::kMendsThis}) {
    std::string text;
    for (const Choice& choice : choices) {
      const std::string values = ValuesOf(choice, least, &trial);
      if (values.empty()) continue;
      const bool same_effect = !choice.effect.empty() && text.ends_with(choice.effect);
      if (same_effect) text.resize(text.size() - choice.effect.size());
      text += (text.empty() ? "" : same_effect ? " or " : "; or ") + values + std::string(choice.effect);
    }
    if (!text.empty()) return text;
  }
  return "";
}

void RuleContext::Report(Severity severity, std::string_view as, const Place* in_text,
                         std::span<const std::string_view> keys, std::string message,
                         std::string hint) const {
  if (diagnostics_ == nullptr) {
    if (severity == Severity::kError) *holds_ = false;
    return;
  }
  Diagnostic diagnostic{severity, {recipe.path, 0, 0, 1}, std::move(message), std::move(hint),
                        "",       std::string(as)};
  int nearest = Remoteness({}, recipe.path) + 1;
  if (in_text != nullptr) {
    const Provenance place = ProvenanceOf(*in_text);
    nearest = Remoteness(place, recipe.path);
    diagnostic.span = place.span;
    diagnostic.source_line = place.source_line;
  }
  for (const std::string_view key : keys) {
    const auto found = recipe.provenance.find(std::string(key));
    if (found == recipe.provenance.end() || found->second.span.line == 0) continue;
    const int remoteness = Remoteness(found->second, recipe.path);
    if (remoteness >= nearest) continue;
    nearest = remoteness;
    diagnostic.span = found->second.span;
    diagnostic.source_line = found->second.source_line;
  }
  diagnostics_->push_back(std::move(diagnostic));
}

bool RuleContext::IsDefault(std::string_view key) const {
  const auto found = recipe.provenance.find(std::string(key));
  return found == recipe.provenance.end() || found->second.origin == Provenance::Origin::kDefault;
}

std::vector<std::int64_t> MultiplesAround(std::int64_t value, std::int64_t step) {
  constexpr std::int64_t kEachWay = 32;
  std::vector<std::int64_t> multiples;
  const std::int64_t nearest = value / step;
  for (std::int64_t i = std::max<std::int64_t>(1, nearest - kEachWay); i <= nearest + kEachWay; ++i) {
    const std::int64_t multiple = ProductOrOverflow({i, step});
    if (multiple > 0) multiples.push_back(multiple);
  }
  return multiples;
}

std::vector<std::int64_t> Divisors(std::int64_t number) {
  constexpr std::int64_t kMostTried = 1 << 20;
  std::vector<std::int64_t> divisors;
  for (std::int64_t i = 1; i <= number / i && i <= kMostTried; ++i) {
    if (number % i != 0) continue;
    divisors.push_back(i);
    if (i != number / i) divisors.push_back(number / i);
  }
  std::sort(divisors.begin(), divisors.end());
  return divisors;
}

std::string NearestMultiples(std::int64_t value, std::int64_t step) {
  const std::int64_t below = value / step * step;
  if (below == 0) return fmt::format("{}", step);
  return fmt::format("{} or {}", below, below + step);
}

std::string NearestDivisors(std::int64_t value, std::int64_t number) {
  const std::vector<std::int64_t> divisors = Divisors(number);
  const auto above = std::lower_bound(divisors.begin(), divisors.end(), value);
  if (above == divisors.end()) return fmt::format("{}", divisors.back());
  if (*above == value || above == divisors.begin()) return fmt::format("{}", *above);
  return fmt::format("{} or {}", *(above - 1), *above);
}

std::string Counted(std::int64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

std::int64_t ProductOrOverflow(std::initializer_list<std::int64_t> factors) {
  std::int64_t product = 1;
  for (const std::int64_t factor : factors) {
    if (__builtin_mul_overflow(product, factor, &product)) return -1;
  }
  return product;
}

std::vector<Diagnostic> Validate(const Recipe& recipe, const std::set<std::string>& broken) {
  std::vector<Diagnostic> diagnostics;
  const std::set<std::string> unusable = WithKeysOfOtherFamilies(recipe, broken);
  const std::vector<CodedRule>& rules = AllRules();
  for (std::size_t i = 0; i < rules.size(); ++i) {
    if (Touches(rules[i].rule, unusable)) continue;
    rules[i].rule.check(RuleContext(recipe, &diagnostics, rules[i].code, i, &unusable));
  }
  SortAndUnique(&diagnostics);
  return diagnostics;
}

}  // namespace engine::recipe
