#include <fmt/format.h>

#include <string>

#include "engine/recipe/rules.h"

namespace engine::recipe {
namespace {

constexpr const char* kInvariant = "generate.invariant";
constexpr const char* kOff = "generate.invariant = false";

void InvariantNumbersStandAlone(const RuleContext& c) {
  if (!c.recipe.generate.invariant || c.recipe.precision.compute != "fp8") return;
  c.Error(
      {kInvariant, "precision.compute"},
      "the scale of a tensor in fp8 depends on every token of a batch, so that no token has bits of its own",
      fmt::format("compute = \"bf16\"; or {}", kOff));
}

// With passes a token's choices are added up pass by pass, and which pass a row is of depends on the other tokens.
void InvariantExpertsHaveOnePass(const RuleContext& c) {
  const Parallelism& p = c.recipe.parallelism;
  if (!c.recipe.generate.invariant) return;
  if (p.expert_rows != 0) {
    c.Error({kInvariant, "parallelism.expert_rows"},
            fmt::format("with expert_rows {:g} what a token's experts give is added up in an order that "
                        "depends on the other tokens",
                        p.expert_rows),
            fmt::format("expert_rows 0; or {}", kOff));
  }
}

// Generation has no sequence parallelism, and splits each expert over all of tp.
void InvariantExpertsAreSplitAlike(const RuleContext& c) {
  const Parallelism& p = c.recipe.parallelism;
  if (!c.recipe.generate.invariant || p.expert_tp != 1 || p.tp == 1) return;
  c.Error({kInvariant, "parallelism.expert_tp"},
          fmt::format("with expert_tp 1 training has each expert whole on one rank, and generation splits it "
                      "over tp {}, whose "
                      "sums are rounded otherwise",
                      p.tp),
          fmt::format("expert_tp {}; or {}", p.tp, kOff));
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
      {{kInvariant, "precision.compute"}, InvariantNumbersStandAlone},
      {{kInvariant, "parallelism.expert_rows"}, InvariantExpertsHaveOnePass},
      {{kInvariant, "parallelism.expert_tp", "parallelism.tp"}, InvariantExpertsAreSplitAlike},
      {{kInvariant, "precision.attention"}, InvariantAttentionIsFast},
      {{kInvariant, "generate.cache_dtype"}, InvariantCachesAreExact},
  };
}

}  // namespace engine::recipe
