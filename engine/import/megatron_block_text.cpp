#include "engine/import/megatron_block_text.h"

#include <fmt/format.h>

#include "engine/recipe/fields.h"

namespace engine::import {
namespace {

std::string Number(double value) { return recipe::ToToml(recipe::FieldValue(value)); }

std::string Step(std::string_view keys) { return fmt::format("  {{ {} }},\n", keys); }

// The end of a block: `branches`, added up and partly dropped where there is dropout, are added to the stream.
std::string ResidualText(const recipe::Recipe& decoder, const std::string& branches, bool several) {
  const double drops = decoder.model.dropout.hidden;
  std::string text, sum = branches;
  if (drops > 0 && several) text += Step(fmt::format("do = \"add\", as = \"sum\", of = [{}]", branches));
  if (drops > 0) {
    text += Step(fmt::format("do = \"dropout\", as = \"dropout\", p = {}", Number(drops)));
    sum = "\"dropout\"";
  }
  return text + Step(fmt::format("do = \"residual\", as = \"residual\", of = [\"x\", {}], to = \"x\"", sum)) +
         "]\n";
}

// The activation of an expert, as keys of the step experts and as a step behind a product.
struct ActivationText {
  bool gated = false;
  std::string act;
};

ActivationText ActivationOf(const recipe::Recipe& decoder, const MegatronModelChanges& changes) {
  if (changes.quick_geglu) return {.gated = true, .act = "quick_gelu"};
  const std::string& kind = decoder.model.mlp.activation;
  if (kind == "swiglu") return {.gated = true, .act = "silu"};
  return {.gated = false, .act = kind};
}

}  // namespace

std::string MegatronNorm(const recipe::Recipe& decoder, const MegatronModelChanges& changes,
                         std::string_view name, std::string_view keys) {
  return fmt::format("do = \"{}\", as = \"{}\"{}, epsilon = {}{}",
                     decoder.model.norm.kind == "rmsnorm" ? "rms_norm" : "layer_norm", name, keys,
                     Number(decoder.model.norm.epsilon), changes.gain_from_one ? ", gain_offset = 1" : "");
}

std::string MegatronFeedForward(const MegatronModelChanges& changes, bool experts) {
  return experts && !changes.experts.layers.empty() ? "experts as mlp" : "mlp as mlp";
}

std::string ExpertsBlockText(const recipe::Recipe& decoder, const MegatronModelChanges& changes) {
  const MegatronExperts& e = changes.experts;
  const ActivationText activation = ActivationOf(decoder, changes);
  std::string own = activation.act == "silu" ? "" : fmt::format(", act = \"{}\"", activation.act);
  if (!activation.gated) own += ", gated = false";
  if (!e.experts.empty()) own += ", " + e.experts;
  std::string text = fmt::format("[block.{}]\nsteps = [\n", e.layers.empty() ? "mlp" : "experts");
  text += Step(MegatronNorm(decoder, changes, "norm", ", of = \"x\""));
  text += Step(fmt::format(
      "do = \"route\", as = \"router\", experts = \"X\", {}, to = [\"choice\", \"weight\"]", e.route));
  text += Step(fmt::format(
      "do = \"experts\", as = \"experts\", of = [\"norm\", \"choice\", \"weight\"], hidden = \"{}\"{}",
      e.hidden > 0 ? "W" : "F", own));
  if (e.shared == 0) return text + ResidualText(decoder, "\"experts\"", /*several=*/false);
  text += Step(fmt::format("do = \"linear\", as = \"shared.fc1\", of = \"norm\", out = [{}\"Y\"]",
                           activation.gated ? "2, " : ""));
  text += Step(fmt::format("do = \"{}\", as = \"shared.activation\", act = \"{}\"",
                           activation.gated ? "gate" : "act", activation.act));
  text += Step("do = \"linear\", as = \"shared.fc2\", out = [\"D\"], init = \"branch\"");
  if (!e.shared_gate) return text + ResidualText(decoder, "\"experts\", \"shared.fc2\"", /*several=*/true);
  text += Step("do = \"linear\", as = \"shared.gate\", of = \"norm\", out = [1]");
  text += Step("do = \"act\", as = \"shared.share\", act = \"sigmoid\"");
  text += Step("do = \"multiply\", as = \"shared\", of = [\"shared.fc2\", \"shared.share\"]");
  return text + ResidualText(decoder, "\"experts\", \"shared\"", /*several=*/true);
}

std::string LatentAttentionText(const recipe::Recipe& decoder, const MegatronModelChanges& changes,
                                const std::string& core) {
  const MegatronLatents& latents = changes.latents;
  const recipe::Attention& attention = decoder.model.attention;
  std::string keys = core.empty() ? "" : ", " + core;
  if (latents.scale) keys += fmt::format(", scale = {}", Number(*latents.scale));
  if (decoder.model.dropout.attention > 0)
    keys += fmt::format(", dropout = {}", Number(decoder.model.dropout.attention));
  std::string text =
      "[block.attention]\nsteps = [\n" + Step(MegatronNorm(decoder, changes, "norm", ", of = \"x\""));
  if (latents.q > 0) {
    text += Step("do = \"linear\", as = \"q_down\", out = [\"Q\"]");
    if (latents.norms) text += Step(MegatronNorm(decoder, changes, "q_norm", ""));
  }
  text += Step("do = \"linear\", as = \"q\", out = [\"H\", \"E\"]");
  text += Step("do = \"rotary\", of = \"q\", to = \"q\", table = \"rope\"");
  text += Step(
      "do = \"linear\", as = \"kv_down\", of = \"norm\", parts = { latent = [\"C\"], shared = [1, \"R\"] }");
  if (latents.norms) text += Step(MegatronNorm(decoder, changes, "kv_norm", ", of = \"latent\""));
  text += Step(fmt::format(
      "do = \"linear\", as = \"kv\", of = \"{}\", parts = {{ k = [\"H\", \"N\"], v = [\"H\", \"U\"] }}",
      latents.norms ? "kv_norm" : "latent"));
  text += Step("do = \"rotary\", of = \"shared\", to = \"shared\", table = \"shared\"");
  text += Step("do = \"join\", as = \"key\", of = [\"shared\", \"k\"]");
  text += Step(fmt::format("do = \"attention\", as = \"core\", of = [\"q\", \"key\", \"v\"]{}", keys));
  text += Step(fmt::format("do = \"linear\", as = \"proj\", out = [\"D\"]{}, init = \"branch\"",
                           attention.bias ? ", bias = true" : ""));
  return text + ResidualText(decoder, "\"proj\"", /*several=*/false);
}

}  // namespace engine::import
