#include <fmt/format.h>

#include <algorithm>

#include "engine/recipe/rules.h"

namespace engine::recipe {
namespace {

bool HeadDimIsWhole(const Recipe& r) {
  return r.model.attention.head_dim > 0 || r.model.hidden % r.model.attention.heads == 0;
}

void HeadsDivideHidden(const RuleContext& c) {
  const Model& m = c.recipe.model;
  if (HeadDimIsWhole(c.recipe)) return;
  const std::string ways = c.WaysOut(
      {{.key = "model.attention.heads", .name = "heads", .values = Divisors(m.hidden)},
       {.key = "model.hidden", .name = "hidden", .values = MultiplesAround(m.hidden, m.attention.heads)}});
  c.Error({"model.attention.heads", "model.hidden"},
          fmt::format("hidden {} is not divisible by heads {} (remainder {})", m.hidden, m.attention.heads,
                      m.hidden % m.attention.heads),
          ways + (ways.empty() ? "" : "; or ") + "set head_dim");
}

void KvHeadsDivideHeads(const RuleContext& c) {
  const Attention& a = c.recipe.model.attention;
  if (a.kv_heads == 0 || a.heads % a.kv_heads == 0) return;
  c.Error({"model.attention.kv_heads", "model.attention.heads"},
          fmt::format(
              "heads {} is not divisible by kv_heads {}: each key and value head serves equally many heads",
              a.heads, a.kv_heads),
          c.WaysOut({{.key = "model.attention.kv_heads", .name = "kv_heads", .values = Divisors(a.heads)},
                     {.key = "model.attention.heads",
                      .name = "heads",
                      .values = MultiplesAround(a.heads, a.kv_heads)}}));
}

void RotaryHeadDimIsEven(const RuleContext& c) {
  const Attention& a = c.recipe.model.attention;
  if (a.position != "rotary" || !HeadDimIsWhole(c.recipe) || c.recipe.head_dim() % 2 == 0) return;
  const std::string origin =
      a.head_dim > 0 ? "" : fmt::format(" = hidden {} / heads {}", c.recipe.model.hidden, a.heads);
  c.Error({"model.attention.head_dim", "model.attention.heads", "model.hidden"},
          fmt::format("rotary positions turn pairs of features and need an even head_dim, but it is {}{}",
                      c.recipe.head_dim(), origin),
          c.WaysOut({{.key = "model.attention.head_dim",
                      .name = "head_dim",
                      .values = MultiplesAround(c.recipe.head_dim(), 2),
                      .around = c.recipe.head_dim()}}));
}

void HeadDimIsSupported(const RuleContext& c) {
  constexpr std::int64_t kWidestHead = 512;
  if (!HeadDimIsWhole(c.recipe) || c.recipe.head_dim() <= kWidestHead) return;
  c.Error(
      {"model.attention.head_dim", "model.attention.heads", "model.hidden"},
      fmt::format("head_dim {} is wider than the attention kernels' {}", c.recipe.head_dim(), kWidestHead),
      fmt::format("head_dim at most {}", kWidestHead));
}

void RopeFactorsAreOrdered(const RuleContext& c) {
  const RopeScaling& s = c.recipe.model.attention.rope_scaling;
  if (s.factor == 1.0 || s.low_frequency_factor < s.high_frequency_factor) return;
  c.Error({"model.attention.rope_scaling.low_frequency_factor",
           "model.attention.rope_scaling.high_frequency_factor", "model.attention.rope_scaling.factor"},
          fmt::format("low_frequency_factor {} must be less than high_frequency_factor {}",
                      s.low_frequency_factor, s.high_frequency_factor),
          "Llama 3 has 1 and 4");
}

void RopeScalingNeedsRotary(const RuleContext& c) {
  const Attention& a = c.recipe.model.attention;
  if (a.rope_scaling.factor == 1.0 || a.position == "rotary") return;
  c.Error({"model.attention.rope_scaling.factor", "model.attention.position"},
          fmt::format("rope_scaling.factor {} needs rotary positions, but position is \"{}\"",
                      a.rope_scaling.factor, a.position),
          "position \"rotary\"; or factor 1");
}

void DefaultFfnIsNotEmpty(const RuleContext& c) {
  if (c.recipe.ffn_hidden() > 0) return;
  c.Error({"model.mlp.activation", "model.hidden"},
          fmt::format("the default mlp.hidden of swiglu, floor(8 × hidden {} / 3 / 64) × 64, is 0",
                      c.recipe.model.hidden),
          "set mlp.hidden; or hidden at least 24");
}

void SequenceFitsPositions(const RuleContext& c) {
  const Recipe& r = c.recipe;
  if (r.model.attention.position == "none" || r.data.sequence_length <= r.model.max_positions) return;
  c.Error({"data.sequence_length", "model.max_positions"},
          fmt::format("sequence_length {} is more than the model's max_positions {} ({} positions)",
                      r.data.sequence_length, r.model.max_positions, r.model.attention.position),
          fmt::format("sequence_length at most {}; or max_positions at least {}", r.model.max_positions,
                      r.data.sequence_length));
}

void RecomputeNamesModules(const RuleContext& c) {
  if (c.recipe.recompute.granularity != "selective" || !c.recipe.recompute.modules.empty()) return;
  c.Error({"recompute.modules", "recompute.granularity"}, "selective recompute needs at least one module",
          "modules = [\"attention\"]; or granularity \"none\"");
}

// Offsets and sizes are counted in 63 bits; so far below that that no sum of them can overflow.
void SizesAreCountable(const RuleContext& c) {
  constexpr double kMostParameters = 0x1p50;
  constexpr double kMostActivations = 0x1p59;
  const Recipe& r = c.recipe;
  const Model& m = r.model;
  if (!HeadDimIsWhole(r)) return;
  const double hidden = static_cast<double>(m.hidden);
  const double heads = static_cast<double>(m.attention.heads) * static_cast<double>(r.head_dim());
  const double ffn = static_cast<double>(r.ffn_hidden());
  const double vocab = static_cast<double>(m.vocab) +
                       static_cast<double>(m.vocab_multiple) * static_cast<double>(r.parallelism.tp);
  const double parameters = static_cast<double>(m.layers) * hidden * (4 * heads + 3 * ffn) +
                            hidden * (2 * vocab + static_cast<double>(m.max_positions));
  const double tokens = static_cast<double>(r.training.micro_batch) * static_cast<double>(r.parallelism.dp) *
                        static_cast<double>(r.parallelism.ep) * static_cast<double>(r.data.sequence_length);
  const double activations =
      tokens * std::max({3 * heads, 2 * ffn, vocab, hidden}) * static_cast<double>(m.layers);
  if (parameters > kMostParameters) {
    c.Error({"model.hidden", "model.mlp.hidden", "model.attention.heads", "model.vocab", "model.layers"},
            fmt::format("a model of about {:.1e} parameters is more than this engine counts ({:.1e})",
                        parameters, kMostParameters));
  } else if (activations > kMostActivations) {
    c.Error({"training.micro_batch", "data.sequence_length", "parallelism.dp"},
            fmt::format(
                "a microbatch of {:.1e} tokens gives about {:.1e} activations, more than this engine counts "
                "({:.1e})",
                tokens, activations, kMostActivations));
  }
}

}  // namespace

std::vector<Rule> ModelRules() {
  const std::string heads = "model.attention.heads";
  const std::string head_dim = "model.attention.head_dim";
  return {
      {{"model.hidden", heads, head_dim}, HeadsDivideHidden},
      {{heads, "model.attention.kv_heads"}, KvHeadsDivideHeads},
      {{"model.hidden", heads, head_dim, "model.attention.position"}, RotaryHeadDimIsEven},
      {{"model.hidden", heads, head_dim}, HeadDimIsSupported},
      {{"model.attention.rope_scaling"}, RopeFactorsAreOrdered},
      {{"model.attention.rope_scaling.factor", "model.attention.position"}, RopeScalingNeedsRotary},
      {{"model.hidden", "model.mlp"}, DefaultFfnIsNotEmpty},
      {{"data.sequence_length", "model.max_positions", "model.attention.position"}, SequenceFitsPositions},
      {{"recompute"}, RecomputeNamesModules},
      {{"model", "training.micro_batch", "data.sequence_length", "parallelism"}, SizesAreCountable},
  };
}

}  // namespace engine::recipe
