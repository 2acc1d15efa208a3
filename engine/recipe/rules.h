// What the rules of recipe/validate.h share: a rule's inputs, where to point, and the nearest legal numbers.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/diagnostic.h"
#include "engine/recipe/recipe.h"
#include "engine/recipe/source.h"

namespace engine::recipe {

// A way out of an error: other values of an integer key.
struct Choice {
  std::string_view key;   // "parallelism.tp"
  std::string_view name;  // as the hint calls it: "tp"
  std::vector<std::int64_t> values;
  std::int64_t around = 0;  // what the values are to be near to; 0: the key's own value
  // Another integer key that may change along, so that the product of both stays: dp beside tp.
  std::string_view keeps = {};
  std::string_view effect = {};  // said behind the values: " gives 8"
};

class RuleContext {
 public:
  RuleContext(const Recipe& recipe, std::vector<Diagnostic>* diagnostics, std::string_view code = "")
      : recipe(recipe), code(code), diagnostics_(diagnostics) {}
  // The context of one rule, whose diagnostics get `code`. A rule that reads one of the keys in `unusable` is
  // skipped: nothing that it adds counts.
  RuleContext(const Recipe& recipe, std::vector<Diagnostic>* diagnostics, std::string_view code,
              std::size_t rule, const std::set<std::string>* unusable)
      : recipe(recipe), code(code), diagnostics_(diagnostics), rule_(rule), unusable_(unusable) {}

  // Says only whether the rules hold: `holds` becomes false with the first error.
  RuleContext(const Recipe& recipe, bool* holds) : recipe(recipe), diagnostics_(nullptr), holds_(holds) {}

  const Recipe& recipe;
  std::string_view code;  // of errors (recipe/codes.h)

  // "tp 2 or 4; or kv_heads 8": of each choice, the nearest value on either side with which every rule holds
  // that reads the key. Where no choice has one: with which this rule holds, and all that hold now. Empty
  // where there is none either.
  std::string WaysOut(const std::vector<Choice>& choices) const;

  // Reports at the key that the author set last: a --set before the recipe itself before a fragment, then in
  // the order given; where the first would stand if all are defaults.
  void Error(std::initializer_list<std::string_view> keys, std::string message, std::string hint = "") const;
  // The same, with one more place, as of Warn.
  void Error(const Place* in_text, std::span<const std::string_view> keys, std::string message,
             std::string hint = "") const;
  // A warning of that code, at the same place; nothing where the recipe allows it. `in_text`, where not null, is one more
  // place, of what the recipe's text says, and comes before the keys.
  void Warn(std::string_view warning, const Place* in_text, std::span<const std::string_view> keys,
            std::string message, std::string hint = "") const;
  void Warn(std::string_view warning, std::initializer_list<std::string_view> keys, std::string message,
            std::string hint = "") const;
  // Something that changes nothing but may be meant otherwise; at the same place. It has no code.
  void Note(std::initializer_list<std::string_view> keys, std::string message) const;
  bool IsDefault(std::string_view key) const;

 private:
  void Report(Severity severity, std::string_view as, const Place* in_text,
              std::span<const std::string_view> keys, std::string message, std::string hint) const;

  std::vector<Diagnostic>* diagnostics_;  // null where only `holds_` is asked for
  bool* holds_ = nullptr;
  std::size_t rule_ = 0;
  const std::set<std::string>* unusable_ = nullptr;
};

struct Rule {
  std::vector<std::string> inputs;  // keys that it reads; "model.attention" stands for all in the table
  void (*check)(const RuleContext&);
};

std::vector<Rule> ModelRules();
std::vector<Rule> ParallelismRules();
std::vector<Rule> BatchRules();
std::vector<Rule> ScheduleRules();
std::vector<Rule> OptimizerRules();
std::vector<Rule> PrecisionRules();
std::vector<Rule> DataRules();
std::vector<Rule> StartRules();
std::vector<Rule> GenerateRules();
std::vector<Rule> LoggingRules();
std::vector<Rule> GuardRules();
std::vector<Rule> CheckpointRules();
std::vector<Rule> UnusedRules();

// Whether the key has the value that it has where nobody says it.
bool HasDefaultValue(std::string_view key, const Recipe& recipe);

// The multiples of `step` around `value`, from at least `step` on: some dozens below and above.
std::vector<std::int64_t> MultiplesAround(std::int64_t value, std::int64_t step);
// The divisors of `number`, in order; of one above 2^40, those that pair with one up to 2^20. None of 0.
std::vector<std::int64_t> Divisors(std::int64_t number);
// "48 or 64": the multiples of `step` around `value` that are at least `step` (one, if `value` is below it).
std::string NearestMultiples(std::int64_t value, std::int64_t step);
// "4 or 8": the divisors of `number` around `value`.
std::string NearestDivisors(std::int64_t value, std::int64_t number);

// "1 sample", "2 samples".
std::string Counted(std::int64_t count, std::string_view noun);

// a · b · c …; nullopt-like -1 if the product does not fit in 63 bits. The factors are not negative.
std::int64_t ProductOrOverflow(std::initializer_list<std::int64_t> factors);

}  // namespace engine::recipe
