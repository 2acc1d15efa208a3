#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>

#include "engine/import/megatron_convert.h"
#include "engine/recipe/rules.h"

namespace engine::import {
namespace {

using Args = MegatronArguments;

constexpr std::string_view kExperts = "--num-experts";
constexpr std::string_view kEp = "--expert-model-parallel-size";
constexpr std::string_view kEtp = "--expert-tensor-parallel-size";
constexpr std::string_view kLatent = "--multi-latent-attention";

std::int64_t DegreeOf(const Args& a, std::string_view flag) {
  return std::max<std::int64_t>(1, a.Int(flag).value_or(1));
}

void ExpertsAreThere(const Args& a) {
  const std::int64_t ep = DegreeOf(a, kEp);
  if (ep > 1 && !a.Has(kExperts)) {
    a.Error(kEp, fmt::format("{} {} would split experts, and there are none", kEp, ep));
  }
}

void ExpertsAreOfAKnownKind(const Args& a) {
  constexpr std::int64_t kMost = 1 << 16;
  const std::optional<std::int64_t> experts = a.Int(kExperts);
  if (!experts) return;
  if (*experts < 2 || *experts > kMost) {
    a.Error(kExperts, fmt::format("{} is {}", kExperts, *experts), fmt::format("from 2 to {}", kMost));
    return;
  }
  if (!a.Has("--disable-bias-linear")) {
    a.Error(
        kExperts,
        fmt::format("{} without --disable-bias-linear cannot be imported: experts have no biases", kExperts),
        "--disable-bias-linear");
  }
  if (a.Has("--squared-relu")) {
    a.Error(
        "--squared-relu",
        fmt::format("{} with --squared-relu cannot be imported: it is no activation of experts", kExperts),
        "--swiglu, --quick-geglu, or a GELU");
  }
}

void RouterIsWhole(const Args& a) {
  const std::optional<std::int64_t> experts = a.Int(kExperts);
  if (!experts || *experts < 2) return;
  const std::int64_t top_k = a.Int("--moe-router-topk").value_or(2);
  if (top_k < 1 || top_k > *experts) {
    a.Error("--moe-router-topk", fmt::format("a token goes to {} experts, and there are {}", top_k, *experts),
            fmt::format("from 1 to {}", *experts));
  }
  const std::string score = a.Text("--moe-router-score-function").value_or("softmax");
  if (score != "softmax" && score != "sigmoid" && score != "sqrtsoftplus") {
    a.Error("--moe-router-score-function",
            fmt::format("--moe-router-score-function {} is unknown", Shown(score)),
            "softmax, sigmoid or sqrtsoftplus");
  }
  if (top_k == 1 && score == "softmax" && !a.Has("--moe-router-pre-softmax")) {
    a.Error("--moe-router-topk",
            "--moe-router-topk 1 needs --moe-router-pre-softmax: the softmax over one expert is 1",
            "add --moe-router-pre-softmax");
  }
  if (a.Has("--moe-router-enable-expert-bias") && score == "softmax") {
    a.Error("--moe-router-enable-expert-bias",
            "--moe-router-enable-expert-bias needs --moe-router-score-function sigmoid, not softmax",
            "--moe-router-score-function sigmoid");
  }
  const std::optional<std::int64_t> groups = a.Int("--moe-router-num-groups");
  const std::optional<std::int64_t> kept = a.Int("--moe-router-group-topk");
  if (groups.has_value() != kept.has_value()) {
    const std::string_view one = groups ? "--moe-router-num-groups" : "--moe-router-group-topk";
    const std::string_view other = groups ? "--moe-router-group-topk" : "--moe-router-num-groups";
    a.Error(one, fmt::format("{} needs {}", one, other), fmt::format("add {}, or remove it", other));
  } else if (groups && (*groups < 1 || *experts % *groups != 0)) {
    a.Error("--moe-router-num-groups",
            fmt::format("{} experts do not make {} equal groups", *experts, *groups),
            "a divisor of the experts");
  } else if (groups && (*kept < 1 || *kept > *groups || *kept * (*experts / *groups) < top_k)) {
    a.Error("--moe-router-group-topk", fmt::format("{} of {} groups of {} experts are to hold {} choices",
                                                   *kept, *groups, *experts / *groups, top_k));
  }
}

void LossesHaveWeights(const Args& a) {
  constexpr std::string_view kType = "--moe-router-load-balancing-type";
  constexpr std::string_view kWeight = "--moe-aux-loss-coeff";
  if (!a.Has(kExperts) || !a.Has(kWeight)) return;
  const std::size_t types = a.Has(kType) ? a.Find(kType)->values.size() : 1;
  const std::size_t weights = a.Find(kWeight)->values.size();
  if (types == weights) return;
  a.Error(kWeight,
          fmt::format("{} has {} of {}, and {} has {}", kWeight,
                      recipe::Counted(static_cast<std::int64_t>(weights), "weight"), "losses", kType, types),
          "one for each");
}

void CapacityIsThere(const Args& a) {
  constexpr std::string_view kPad = "--moe-pad-expert-input-to-capacity";
  if (!a.Has(kExperts) || !a.Has(kPad) || a.Number("--moe-expert-capacity-factor").value_or(-1) >= 0) return;
  a.Error(kPad, fmt::format("{} needs --moe-expert-capacity-factor", kPad),
          "remove it: no token is dropped then");
}

// Megatron-LM's ep lies within tp · cp · dp. Here it is a factor beside them that splits samples, as dp does.
void ExpertsFold(const Args& a) {
  const std::optional<std::int64_t> experts = a.Int(kExperts);
  if (!experts) return;
  const std::int64_t tp = DegreeOf(a, "--tensor-model-parallel-size");
  const std::int64_t model = recipe::ProductOrOverflow(
      {tp, DegreeOf(a, "--pipeline-model-parallel-size"), DegreeOf(a, "--context-parallel-size")});
  const std::int64_t ranks = a.command().world.ranks;
  const std::int64_t ep = DegreeOf(a, kEp);
  const std::int64_t etp = a.Int(kEtp).value_or(tp);
  if (*experts > 0 && *experts % ep != 0) {
    a.Error(kEp,
            fmt::format("{} experts cannot be shared by ep {} (remainder {})", *experts, ep, *experts % ep),
            fmt::format("{} {}", kEp, recipe::NearestDivisors(ep, *experts)));
    return;
  }
  if (tp > 1 && !a.Has("--sequence-parallel")) {
    a.Error(kExperts, fmt::format("{} with tp {} needs --sequence-parallel", kExperts, tp),
            "add --sequence-parallel");
  }
  if (etp != 1 && etp != tp) {
    a.Error(kEtp,
            fmt::format("{} {} cannot be imported: ranks of tp {} have parts of all experts, or whole ones",
                        kEtp, etp, tp),
            fmt::format("{} {}, or 1", kEtp, tp));
  }
  if (model <= 0 || ranks % model != 0) return;  // another rule says it
  const std::int64_t dp = ranks / model;
  if (dp % ep == 0) return;
  std::int64_t least = std::gcd(std::gcd(dp, ep), *experts);
  std::string ways = fmt::format("{} {}", kEp, least);
  for (std::int64_t smaller = tp - 1; smaller >= 1; --smaller) {
    if (tp % smaller != 0 || (dp * (tp / smaller)) % ep != 0) continue;
    ways += fmt::format("; or --tensor-model-parallel-size {}, whose dp is {}", smaller, dp * (tp / smaller));
    break;
  }
  a.Error(kEp,
          fmt::format(
              "{} {} cannot be imported: its ranks are some of tp and cp too, and here they are of dp alone, "
              "which is {}",
              kEp, ep, dp),
          ways);
}

void LatentsAreWhole(const Args& a) {
  if (!a.Has(kLatent)) {
    if (a.Text("--rope-type").value_or("rope") != "rope") {
      a.Error("--rope-type", "--rope-type yarn goes with --multi-latent-attention",
              "--position-embedding-type yarn");
    }
    return;
  }
  if (!a.Has("--kv-lora-rank")) {
    a.Error("--kv-lora-rank", "--kv-lora-rank is missing: its default is not the same in all releases",
            "512, or 32 before 2026");
  }
  const std::string type = a.Text("--rope-type").value_or("yarn");
  if (type != "yarn" && type != "rope") {
    a.Error("--rope-type", fmt::format("--rope-type {} cannot be imported", Shown(type)),
            "one of rope, yarn");
  }
  if (type == "yarn" && !a.Has("--rotary-scaling-factor")) {
    a.Error("--rotary-scaling-factor",
            "--rotary-scaling-factor is missing: its default is not the same in all releases",
            "40, or 1 before 2026; --rope-type rope has none");
  }
  const std::string positions =
      a.Text("--position-embedding-type")
          .value_or(a.Has("--use-rotary-position-embeddings") ? "rope" : "learned_absolute");
  if (positions != "rope") {
    a.Error("--position-embedding-type",
            fmt::format("{} with --position-embedding-type {} cannot be imported", kLatent, Shown(positions)),
            "rope");
  }
  for (const std::string_view flag :
       {"--group-query-attention", "--kv-channels", "--rotary-percent", "--rotary-interleaved",
        "--rotary-seq-len-interpolation-factor", "--use-rope-scaling", "--no-rope-freq", "--softmax-type",
        "--window-attn-skip-freq", "--add-qkv-bias"}) {
    if (a.Has(flag))
      a.Error(flag, fmt::format("{} and {} contradict each other", kLatent, flag), "keep one of them");
  }
}

}  // namespace

void CheckMegatronExpertRules(const MegatronArguments& arguments) {
  for (void (*rule)(const Args&) : {ExpertsAreThere, ExpertsAreOfAKnownKind, RouterIsWhole, LossesHaveWeights,
                                    CapacityIsThere, ExpertsFold, LatentsAreWhole}) {
    rule(arguments);
  }
}

}  // namespace engine::import
