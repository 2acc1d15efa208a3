// What the rules of recipe/validate.h share: a rule's inputs, where to point, and the nearest legal numbers.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/diagnostic.h"
#include "engine/recipe/recipe.h"

namespace engine::recipe {

class RuleContext {
 public:
  RuleContext(const Recipe& recipe, std::vector<Diagnostic>* diagnostics, std::string_view code = "")
      : recipe(recipe), code(code), diagnostics_(diagnostics) {}

  const Recipe& recipe;
  std::string_view code;  // of errors (recipe/codes.h)

  // Reports at the key that the author set last: a --set before the recipe itself before a fragment, then in
  // the order given; at the whole file if all are defaults.
  void Error(std::initializer_list<std::string_view> keys, std::string message, std::string hint = "") const;
  // A warning of that code, at the same place; nothing where the recipe allows it.
  void Warn(std::string_view warning, std::initializer_list<std::string_view> keys, std::string message,
            std::string hint = "") const;
  bool IsDefault(std::string_view key) const;

 private:
  void Report(Severity severity, std::string_view as, std::initializer_list<std::string_view> keys,
              std::string message, std::string hint) const;

  std::vector<Diagnostic>* diagnostics_;
};

struct Rule {
  std::vector<std::string> inputs;  // keys that it reads; "model.attention" stands for all in the table
  void (*check)(const RuleContext&);
};

std::vector<Rule> ModelRules();
std::vector<Rule> ParallelismRules();
std::vector<Rule> BatchRules();
std::vector<Rule> ScheduleRules();
std::vector<Rule> PrecisionRules();
std::vector<Rule> DataRules();

// "48 or 64": the multiples of `step` around `value` that are at least `step` (one, if `value` is below it).
std::string NearestMultiples(std::int64_t value, std::int64_t step);
// "4 or 8": the divisors of `number` around `value`, for which also `other % divisor == 0` if `other` is not
// 0.
std::string NearestDivisors(std::int64_t value, std::int64_t number, std::int64_t other = 0);

// "1 sample", "2 samples".
std::string Counted(std::int64_t count, std::string_view noun);

// a · b · c …; nullopt-like -1 if the product does not fit in 63 bits. The factors are not negative.
std::int64_t ProductOrOverflow(std::initializer_list<std::int64_t> factors);

}  // namespace engine::recipe
