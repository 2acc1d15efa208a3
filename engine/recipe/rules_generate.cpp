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

// With passes a token's choices are added up pass by pass, and which pass a row is of depends on the other tokens.
void InvariantExpertsAreOfOneRank(const RuleContext& c) {
  const Parallelism& p = c.recipe.parallelism;
  if (!c.recipe.generate.invariant) return;
  if (p.ep > 1) {
    c.Error({kInvariant, "parallelism.ep"},
            fmt::format("with ep {} what a token's experts give is added up over several ranks, in no order "
                        "of its own",
                        p.ep),
            fmt::format("ep 1; or {}", kOff));
  }
  if (p.expert_rows != 0) {
    c.Error({kInvariant, "parallelism.expert_rows"},
            fmt::format("with expert_rows {:g} what a token's experts give is added up in an order that "
                        "depends on the other tokens",
                        p.expert_rows),
            fmt::format("expert_rows 0; or {}", kOff));
  }
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
      {{kInvariant, "parallelism.ep", "parallelism.expert_rows"}, InvariantExpertsAreOfOneRank},
      {{kInvariant, "precision.attention"}, InvariantAttentionIsFast},
      {{kInvariant, "generate.cache_dtype"}, InvariantCachesAreExact},
  };
}

}  // namespace engine::recipe
