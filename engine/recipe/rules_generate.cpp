#include <fmt/format.h>

#include <string>

#include "engine/recipe/rules.h"

namespace engine::recipe {
namespace {

constexpr const char* kInvariant = "generate.invariant";
constexpr const char* kOff = "generate.invariant = false";

// Partial sums of several ranks are added up by the library that exchanges them, in an order that depends on their number.
void InvariantSumsAreOfOneRank(const RuleContext& c) {
  const Parallelism& p = c.recipe.parallelism;
  if (!c.recipe.generate.invariant) return;
  if (p.tp > 1) {
    c.Error(
        {kInvariant, "parallelism.tp"},
        fmt::format("with tp {} the sums of a product are over several ranks, which add up in no order of "
                    "their own",
                    p.tp),
        fmt::format("tp 1; or {}", kOff));
  }
  if (p.cp > 1) {
    c.Error({kInvariant, "parallelism.cp"},
            fmt::format("with cp {} each rank has a part of every sequence, which generation has not", p.cp),
            fmt::format("cp 1; or {}", kOff));
  }
}

void InvariantNumbersStandAlone(const RuleContext& c) {
  if (!c.recipe.generate.invariant || c.recipe.precision.compute != "fp8") return;
  c.Error(
      {kInvariant, "precision.compute"},
      "the scale of a tensor in fp8 depends on every token of a batch, so that no token has bits of its own",
      fmt::format("compute = \"bf16\"; or {}", kOff));
}

// The products of an expert are of as many rows as tokens go to it, by kernels that are chosen for that number.
void InvariantModelsAreDense(const RuleContext& c) {
  if (c.recipe.is_text() && c.recipe.model.layers == 0) return;  // its steps have not been read yet
  if (!c.recipe.generate.invariant || c.recipe.model.experts == 0) return;
  c.Error({kInvariant}, "the sums of experts' products have no order of their own", kOff);
}

void InvariantAttentionIsFast(const RuleContext& c) {
  if (!c.recipe.generate.invariant || c.recipe.precision.attention == "fast") return;
  c.Error({kInvariant, "precision.attention"},
          fmt::format("attention in {} kernels has no form that generation has too",
                      c.recipe.precision.attention),
          fmt::format("attention = \"fast\"; or {}", kOff));
}

void InvariantCachesAreExact(const RuleContext& c) {
  if (!c.recipe.generate.invariant || c.recipe.generate.cache_dtype != "fp8") return;
  c.Error({kInvariant, "generate.cache_dtype"},
          "a step reads keys and values as an fp8 cache has rounded them, and training reads them as they "
          "were made",
          fmt::format("cache_dtype = \"auto\"; or {}", kOff));
}

}  // namespace

std::vector<Rule> GenerateRules() {
  return {
      {{kInvariant, "parallelism.tp", "parallelism.cp"}, InvariantSumsAreOfOneRank},
      {{kInvariant, "precision.compute"}, InvariantNumbersStandAlone},
      {{kInvariant}, InvariantModelsAreDense},
      {{kInvariant, "precision.attention"}, InvariantAttentionIsFast},
      {{kInvariant, "generate.cache_dtype"}, InvariantCachesAreExact},
  };
}

}  // namespace engine::recipe
