#include "engine/recipe/validate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <utility>

#include "engine/recipe/rules.h"

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

bool Touches(const Rule& rule, const std::set<std::string>& unusable) {
  for (const std::string& input : rule.inputs) {
    for (const std::string& key : unusable) {
      if (key == input || key.rfind(input + ".", 0) == 0) return true;
    }
  }
  return false;
}

}  // namespace

void RuleContext::Error(std::initializer_list<std::string_view> keys, std::string message,
                        std::string hint) const {
  Report(Severity::kError, code, keys, std::move(message), std::move(hint));
}

void RuleContext::Warn(std::string_view warning, std::initializer_list<std::string_view> keys,
                       std::string message, std::string hint) const {
  const std::vector<std::string>& allow = recipe.check.allow;
  if (std::find(allow.begin(), allow.end(), warning) != allow.end()) return;
  Report(Severity::kWarning, warning, keys, std::move(message), std::move(hint));
}

void RuleContext::Report(Severity severity, std::string_view as, std::initializer_list<std::string_view> keys,
                         std::string message, std::string hint) const {
  Diagnostic diagnostic{severity, {recipe.path, 0, 0, 1}, std::move(message), std::move(hint),
                        "",       std::string(as)};
  int nearest = Remoteness({}, recipe.path);
  for (const std::string_view key : keys) {
    const auto found = recipe.provenance.find(std::string(key));
    if (found == recipe.provenance.end()) continue;
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

std::string NearestMultiples(std::int64_t value, std::int64_t step) {
  const std::int64_t below = value / step * step;
  if (below == 0) return fmt::format("{}", step);
  return fmt::format("{} or {}", below, below + step);
}

std::string NearestDivisors(std::int64_t value, std::int64_t number, std::int64_t other) {
  std::int64_t below = 0;
  std::int64_t above = 0;
  const std::int64_t common = std::gcd(number, other);  // gcd(n, 0) is n
  for (std::int64_t i = 1; i <= common / i; ++i) {
    if (common % i != 0) continue;
    for (const std::int64_t divisor : {i, common / i}) {
      if (divisor <= value) below = std::max(below, divisor);
      if (divisor >= value && (above == 0 || divisor < above)) above = divisor;
    }
  }
  if (below == 0 || above == 0 || below == above) return fmt::format("{}", std::max(below, above));
  return fmt::format("{} or {}", below, above);
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

std::vector<Diagnostic> Validate(const Recipe& recipe, const std::set<std::string>& unusable) {
  std::vector<Diagnostic> diagnostics;
  struct Family {
    const char* code;
    std::vector<Rule> (*rules)();
  };
  for (const Family& family :
       {Family{"E201", ModelRules}, Family{"E202", ParallelismRules}, Family{"E203", BatchRules},
        Family{"E204", ScheduleRules}, Family{"E205", PrecisionRules}, Family{"E206", DataRules}}) {
    const RuleContext context(recipe, &diagnostics, family.code);
    for (const Rule& rule : family.rules()) {
      if (!Touches(rule, unusable)) rule.check(context);
    }
  }
  SortAndUnique(&diagnostics);
  return diagnostics;
}

}  // namespace engine::recipe
