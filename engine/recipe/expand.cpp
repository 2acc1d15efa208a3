#include "engine/recipe/expand.h"

#include <fmt/format.h>

#include <memory>
#include <optional>
#include <vector>

#include "engine/base/status.h"
#include "engine/recipe/fields.h"
#include "engine/recipe/parse.h"

namespace engine::recipe {
namespace {

std::string Number(double value) { return ToToml(FieldValue(value)); }

class Expander {
 public:
  explicit Expander(const Recipe& recipe) : recipe_(recipe), model_(recipe.model) {}

  std::string Text() {
    return "[model]\n" + Dims() +
           "inputs = { tokens = \"i32[B,S]\", labels = \"i32[B,S]\", positions = \"i32[B,S]\" }\n" +
           Rotary() + Main() + AttentionBlock() + MlpBlock();
  }

 private:
  bool learned() const { return model_.attention.position == "learned"; }
  bool rotary() const { return model_.attention.position == "rotary"; }
  bool gated() const { return model_.mlp.activation == "swiglu"; }

  std::string Dims() const {
    return fmt::format("dims = {{ D = {}, L = {}, H = {}, K = {}, E = {}, F = {}, V = {}{} }}\n",
                       model_.hidden, model_.layers, model_.attention.heads, recipe_.kv_heads(),
                       recipe_.head_dim(), recipe_.ffn_hidden(), model_.vocab,
                       learned() ? fmt::format(", P = {}", model_.max_positions) : "");
  }

  std::string Rotary() const {
    if (!rotary()) return "";
    const Attention& attention = model_.attention;
    const RopeScaling& s = attention.rope_scaling;
    std::string scaling;
    if (s.factor != 1.0) {
      scaling = fmt::format(", scaling = \"llama3\", factor = {}, low = {}, high = {}, original = {}",
                            Number(s.factor), Number(s.low_frequency_factor), Number(s.high_frequency_factor),
                            s.original_max_positions);
    }
    return fmt::format("rotary = {{ rope = {{ dim = \"E\", base = {}{} }} }}\n", Number(attention.rope_base),
                       scaling);
  }

  std::string Norm(const std::string& name, const std::string& of) const {
    return fmt::format("  {{ do = \"{}\", as = \"{}\"{}, epsilon = {} }},\n",
                       model_.norm.kind == "rmsnorm" ? "rms_norm" : "layer_norm", name, of,
                       Number(model_.norm.epsilon));
  }

  // Nothing where there is none.
  static std::string Dropout(const std::string& name, double p) {
    return p > 0 ? fmt::format("  {{ do = \"dropout\", as = \"{}\", p = {} }},\n", name, Number(p)) : "";
  }

  static std::string Bias(bool bias) { return bias ? ", bias = true" : ""; }

  std::string Main() const {
    std::string text =
        "main = [\n  { do = \"embedding\", as = \"embedding.tokens\", of = \"tokens\", rows = \"V\", width = "
        "\"D\" },\n";
    if (learned()) {
      text +=
          "  { do = \"embedding\", as = \"embedding.positions\", of = \"positions\", rows = \"P\", width = "
          "\"D\" },\n";
      text +=
          "  { do = \"add\", as = \"embedding\", of = [\"embedding.tokens\", \"embedding.positions\"] },\n";
    }
    text += Dropout("embedding.dropout", model_.dropout.embedding);
    text +=
        "  { do = \"stack\", as = \"layers\", repeat = \"L\", layer = [\"attention as attention\", \"mlp as "
        "mlp\"] },\n";
    text += Norm("final_norm", "");
    text += fmt::format("  {{ do = \"linear\", as = \"head\", out = [\"V\"]{} }},\n",
                        model_.tied_embeddings ? ", weight = \"embedding.tokens\"" : "");
    return text + "  { do = \"cross_entropy\", as = \"loss\" },\n]\n";
  }

  std::string Residual(const std::string& branch) const {
    const bool drops = model_.dropout.hidden > 0;
    return Dropout("dropout", model_.dropout.hidden) +
           fmt::format("  {{ do = \"residual\", as = \"residual\", of = [\"x\", \"{}\"], to = \"x\" }},\n]\n",
                       drops ? "dropout" : branch);
  }

  std::string AttentionBlock() const {
    std::string core;
    if (model_.attention.window > 0) core += fmt::format(", window = {}", model_.attention.window);
    if (model_.dropout.attention > 0) core += fmt::format(", dropout = {}", Number(model_.dropout.attention));
    const std::string bias = Bias(model_.attention.bias);
    return "\n[block.attention]\nsteps = [\n" + Norm("norm", ", of = \"x\"") +
           fmt::format("  {{ do = \"linear\", as = \"qkv\", out = [\"K\", \"H/K+2\", \"E\"]{} }},\n", bias) +
           fmt::format("  {{ do = \"qkv_split\", as = \"split\", to = [\"q\", \"k\", \"v\"]{} }},\n",
                       rotary() ? ", rotary = \"rope\"" : "") +
           fmt::format("  {{ do = \"attention\", as = \"core\", of = [\"q\", \"k\", \"v\"]{} }},\n", core) +
           fmt::format("  {{ do = \"linear\", as = \"proj\", out = [\"D\"]{}, init = \"branch\" }},\n",
                       bias) +
           Residual("proj");
  }

  std::string MlpBlock() const {
    const std::string bias = Bias(model_.mlp.bias);
    const std::string& kind = model_.mlp.activation;
    const std::string act = gated() ? "{ do = \"gate\", as = \"activation\", act = \"silu\" }"
                                    : fmt::format("{{ do = \"act\", as = \"activation\", act = \"{}\" }}",
                                                  kind == "squared_relu" ? "relu2" : kind);
    return "\n[block.mlp]\nsteps = [\n" + Norm("norm", ", of = \"x\"") +
           fmt::format("  {{ do = \"linear\", as = \"fc1\", out = [{}\"F\"]{} }},\n", gated() ? "2, " : "",
                       bias) +
           fmt::format("  {},\n", act) +
           fmt::format("  {{ do = \"linear\", as = \"fc2\", out = [\"D\"]{}, init = \"branch\" }},\n", bias) +
           Residual("fc2");
  }

  const Recipe& recipe_;
  const Model& model_;
};

}  // namespace

std::span<const ExpandedAttribute> ExpandedAttributes() {
  static const std::vector<std::string_view> width = {"model.hidden"};
  static const std::vector<std::string_view> heads = {"model.attention.heads", "model.attention.head_dim",
                                                      "parallelism.tp"};
  static const std::vector<std::string_view> feed_forward = {"model.mlp.hidden", "model.hidden",
                                                             "parallelism.tp"};
  static const std::vector<ExpandedAttribute> attributes = {
      {"qkv", "contract", "hidden", width},
      {"proj", "contract", "heads × head_dim / tp", heads},
      {"fc1", "contract", "hidden", width},
      {"fc2", "contract", "mlp.hidden / tp", feed_forward},
      {"head", "contract", "hidden", width},
      {"core", "window", "attention.window", {"model.attention.window"}},
      {"core", "dropout", "dropout.attention", {"model.dropout.attention"}},
      {"split", "base", "rope_base", {"model.attention.rope_base"}},
      {"norm", "epsilon", "norm.epsilon", {"model.norm.epsilon"}},
      {"final_norm", "epsilon", "norm.epsilon", {"model.norm.epsilon"}},
      {"embedding.positions", "rows", "max_positions", {"model.max_positions"}},
  };
  return attributes;
}

std::string Expand(const Recipe& recipe) { return Expander(recipe).Text(); }

Node ExpandedText(const Recipe& recipe) {
  std::vector<Diagnostic> mistakes;
  const auto source = std::make_shared<const Source>("[model] as steps", Expand(recipe));
  const std::optional<Document> document = ParseToml(source, &mistakes);
  ENGINE_CHECK(document.has_value(), "the expansion of a decoder: {}", Format(mistakes[0]));
  Settings settings = ParseSettings(*document, Provenance::Origin::kFile, nullptr, &mistakes);
  ENGINE_CHECK(mistakes.empty(), "the expansion of a decoder: {}", Format(mistakes[0]));
  return std::move(settings.text);
}

}  // namespace engine::recipe
