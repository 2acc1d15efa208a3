#include "engine/import/megatron_model_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cctype>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "engine/base/status.h"
#include "engine/import/megatron_block_text.h"
#include "engine/recipe/document.h"
#include "engine/recipe/expand.h"
#include "engine/recipe/fields.h"
#include "engine/recipe/parse.h"
#include "engine/recipe/text.h"

namespace engine::import {
namespace {

constexpr const char* kNoRotation = "none";

// The changes as a recipe that extends the steps would say them.
class ChangesWriter {
 public:
  ChangesWriter(const recipe::Recipe& decoder, const MegatronModelChanges& changes)
      : recipe_(decoder), model_(decoder.model), c_(changes) {}

  std::string Text() {
    std::string text = "[model]\n";
    std::string rope = c_.rotary;
    if (c_.latents.kv > 0) rope += fmt::format("{}width = \"R\"", rope.empty() ? "" : ", ");
    if (rotary() && !rope.empty()) text += fmt::format("rotary.rope = {{ {} }}\n", rope);
    text += Dims() + Embeddings() + Layers();
    if (c_.gain_from_one) text += "main.final_norm = { gain_offset = 1 }\n";
    for (std::int64_t i = 0; i < c_.further_tokens; ++i)
      text += fmt::format("inputs.labels_{} = \"i32[B,S]\"\n", i + 2);
    if (!c_.experts.layers.empty()) text += LayersInTurn();
    if (c_.further_tokens > 0) text += FurtherTokens();
    if (c_.qk_norms) text += Split();
    return text + Attention() + Mlp();
  }

 private:
  bool rotary() const { return model_.attention.position == "rotary"; }
  // The rotary table of a layer.
  const char* table() const { return c_.rotated.empty() ? "rope" : "$table"; }

  std::string Embeddings() const {
    if (!c_.embedding_std) return "";
    const std::string init = recipe::ToToml(recipe::FieldValue(*c_.embedding_std));
    std::string text = fmt::format("main.\"embedding.tokens\" = {{ init = {} }}\n", init);
    if (model_.attention.position == "learned")
      text += fmt::format("main.\"embedding.positions\" = {{ init = {} }}\n", init);
    return text;
  }

  // Of what a decoder has no dims for. A tensor is split over ranks by heads, and not by what heads are made of.
  std::string Dims() const {
    std::string text;
    const auto dim = [&](const char* name, std::int64_t size) {
      if (size > 0) text += fmt::format("dims.{} = {}\n", name, size);
    };
    dim("X", c_.experts.count);
    dim("W", c_.experts.hidden);
    dim("Y", c_.experts.shared);
    const MegatronLatents& latents = c_.latents;
    if (latents.kv == 0) return text;
    dim("C", latents.kv);
    dim("Q", latents.q);
    dim("N", latents.plain);
    dim("R", latents.rotated);
    dim("U", latents.value);
    for (const char* name : {"D", "C", "Q", "N", "R", "U"})
      if (latents.q > 0 || *name != 'Q') text += fmt::format("means.{} = \"other\"\n", name);
    return text + fmt::format("rotary.shared = {{ dim = \"R\", base = {}{}{} }}\n",
                              recipe::ToToml(recipe::FieldValue(model_.attention.rope_base)),
                              c_.rotary.empty() ? "" : ", ", c_.rotary);
  }

  // The stack again, with layers of experts and others as they come.
  std::string LayersInTurn() const {
    std::string pattern;
    for (const bool experts : c_.experts.layers) pattern += experts ? 'E' : 'D';
    const std::string cycles = Cycles();
    return fmt::format(
        "[[model.replace]]\nstep = \"layers\"\nwith = {{ do = \"stack\", as = \"layers\", pattern = \"{}\", "
        "letters = {{ "
        "D = [\"attention as attention\", \"{}\"], E = [\"attention as attention\", \"{}\"] }}{} }}\n",
        pattern, MegatronFeedForward(c_, false), MegatronFeedForward(c_, true),
        cycles.empty() ? "" : fmt::format(", cycle = {{ {} }}", cycles));
  }

  std::string Layers() const {
    const std::string cycles = Cycles();
    if (cycles.empty() || !c_.experts.layers.empty()) return "";
    return fmt::format("main.layers = {{ cycle = {{ {} }} }}\n", cycles);
  }

  // What layers take in turn.
  std::string Cycles() const {
    std::vector<std::string> cycles;
    if (!c_.windows.empty()) cycles.push_back(fmt::format("window = [{}]", fmt::join(c_.windows, ", ")));
    if (!c_.rotated.empty()) {
      std::string tables;
      for (const bool rotated : c_.rotated)
        tables += fmt::format("{}\"{}\"", tables.empty() ? "" : ", ", rotated ? "rope" : kNoRotation);
      cycles.push_back(fmt::format("table = [{}]", tables));
    }
    return fmt::format("{}", fmt::join(cycles, ", "));
  }

  // Of each further token: the stream of the token before and the embedding of the next one known, each normalised, through a
  // product of their pair (a sum of two), a layer, a norm and the model's head.
  std::string FurtherTokens() const {
    std::string text = "[[model.after]]\nstep = \"loss\"\nwith = [\n";
    std::string stream = "layers";
    for (std::int64_t i = 0; i < c_.further_tokens; ++i) {
      const std::string name = fmt::format("mtp.{}", i);
      const auto step = [&](std::string_view keys) { text += fmt::format("  {{ {} }},\n", keys); };
      step(
          fmt::format("do = \"embedding\", as = \"{}.embedding\", of = \"{}\", weight = \"embedding.tokens\"",
                      name, i == 0 ? "labels" : fmt::format("labels_{}", i + 1)));
      step(Norm(name + ".enorm", name + ".embedding"));
      step(fmt::format("do = \"linear\", as = \"{}.e_proj\", out = [\"D\"]", name));
      step(Norm(name + ".hnorm", stream));
      step(fmt::format("do = \"linear\", as = \"{}.h_proj\", out = [\"D\"]", name));
      step(fmt::format("do = \"add\", as = \"{0}.pair\", of = [\"{0}.e_proj\", \"{0}.h_proj\"]", name));
      stream = name + ".layer";
      const bool experts = c_.experts.layers.empty() || c_.experts.layers.back();
      step(fmt::format(
          "do = \"stack\", as = \"{}\", repeat = 1, layer = [\"attention as attention\", \"{}\"]{}", stream,
          MegatronFeedForward(c_, experts), LayerBehindAll()));
      step(Norm(name + ".final_norm", stream));
      step(fmt::format("do = \"linear\", as = \"{}.head\", out = [\"V\"], weight = \"{}\"", name,
                       model_.tied_embeddings ? "embedding.tokens" : "head.weight"));
      step(fmt::format("do = \"cross_entropy\", as = \"loss_{0}\", labels = \"labels_{0}\", weight = {1}",
                       i + 2, recipe::ToToml(recipe::FieldValue(c_.further_weight))));
    }
    return text + "]\n";
  }

  std::string Norm(const std::string& name, const std::string& of) const {
    return MegatronNorm(recipe_, c_, name, fmt::format(", of = \"{}\"", of));
  }

  // What a layer behind those of the stack takes of their cycles.
  std::string LayerBehindAll() const {
    std::vector<std::string> set;
    const auto layer = static_cast<std::size_t>(model_.layers);
    if (!c_.windows.empty()) set.push_back(fmt::format("window = {}", c_.windows[layer % c_.windows.size()]));
    if (!c_.rotated.empty())
      set.push_back(
          fmt::format("table = \"{}\"", c_.rotated[layer % c_.rotated.size()] ? "rope" : kNoRotation));
    return set.empty() ? "" : fmt::format(", set = {{ {} }}", fmt::join(set, ", "));
  }

  // Norms stand between the split and the rotation, which the split alone does otherwise.
  std::string Split() const {
    std::string text =
        "[[model.replace]]\nblock = \"attention\"\nstep = \"split\"\nwith = [\n"
        "  { do = \"qkv_split\", as = \"split\", to = [\"q\", \"k\", \"v\"] },\n";
    for (const char* name : {"q", "k"}) {
      text += fmt::format(
          "  {{ do = \"{0}\", as = \"{1}_norm\", of = \"{1}\", to = \"{1}\", epsilon = {2}{3} }},\n",
          model_.norm.kind == "rmsnorm" ? "rms_norm" : "layer_norm", name,
          recipe::ToToml(recipe::FieldValue(model_.norm.epsilon)),
          c_.gain_from_one ? ", gain_offset = 1" : "");
    }
    if (rotary()) {
      text += fmt::format(
          "  {{ do = \"rotary\", of = [\"q\", \"k\"], to = [\"q\", \"k\"], table = \"{}\" }},\n", table());
    }
    return text + "]\n";
  }

  std::string Attention() const {
    if (c_.latents.kv > 0)
      return LatentAttentionText(
          recipe_, c_,
          model_.attention.window > 0 ? fmt::format("window = {}", model_.attention.window) : "");
    std::string text = "[block.attention]\n";
    if (c_.gain_from_one) text += "steps.norm = { gain_offset = 1 }\n";
    if (c_.qkv_bias) text += "steps.qkv = { bias = true }\n";
    if (!c_.rotated.empty() && !c_.qk_norms)
      text += fmt::format("steps.split = {{ rotary = \"{}\" }}\n", table());
    std::vector<std::string> core;
    if (!c_.windows.empty()) core.emplace_back("window = \"$window\"");
    if (c_.sinks) core.emplace_back("sinks = true");
    if (!core.empty()) text += fmt::format("steps.core = {{ {} }}\n", fmt::join(core, ", "));
    return text;
  }

  std::string Mlp() const {
    if (c_.experts.count == 0) return DenseMlp();
    return (c_.experts.layers.empty() ? "" : DenseMlp()) + ExpertsBlockText(recipe_, c_);
  }

  std::string DenseMlp() const {
    std::string text = "[block.mlp]\n";
    if (c_.gain_from_one) text += "steps.norm = { gain_offset = 1 }\n";
    if (c_.quick_geglu) {
      text += "steps.fc1 = { out = [2, \"F\"] }\n";
      text += "steps.activation = { do = \"gate\", act = \"quick_gelu\" }\n";
    }
    return text;
  }

  const recipe::Recipe& recipe_;
  const recipe::Model& model_;
  const MegatronModelChanges& c_;
};

// Adds all names that stand in strings of the node: of dims, and others.
void AddNames(const recipe::Node& node, std::set<std::string>* names) {
  std::string name;
  for (const char c : node.string + " ") {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_') {
      name += c;
    } else {
      names->insert(std::exchange(name, ""));
    }
  }
  for (const recipe::Node& item : node.items) AddNames(item, names);
  for (const recipe::Entry& entry : node.entries) AddNames(entry.value, names);
}

// A decoder has dims that its steps no longer need once they are changed, such as F where all layers have experts.
void RemoveUnusedDims(recipe::Node* text) {
  std::set<std::string> names;
  AddNames(*text, &names);
  std::erase_if(text->Find("model.dims")->entries,
                [&](const recipe::Entry& dim) { return !names.contains(dim.key); });
}

}  // namespace

MegatronModelText TextOfMegatronModel(const recipe::Recipe& decoder, const MegatronModelChanges& changes) {
  recipe::Node text = recipe::ExpandedText(decoder);
  std::vector<Diagnostic> mistakes;
  const auto source =
      std::make_shared<const recipe::Source>("changes of the steps", ChangesWriter(decoder, changes).Text());
  const std::optional<recipe::Document> document = recipe::ParseToml(source, &mistakes);
  ENGINE_CHECK(document.has_value(), "changes of a decoder's steps: {}", Format(mistakes[0]));
  const recipe::Settings settings =
      recipe::ParseSettings(*document, recipe::Provenance::Origin::kFile, nullptr, &mistakes);
  recipe::MergeText(settings.text, &text, &mistakes);
  ENGINE_CHECK(mistakes.empty(), "changes of a decoder's steps: {}", Format(mistakes[0]));
  RemoveUnusedDims(&text);
  return {recipe::ModelLines(text), recipe::TextTables(text)};
}

}  // namespace engine::import
