#include "engine/hf/family_def.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>

#include "engine/base/status.h"
#include "engine/model/build.h"
#include "engine/recipe/document.h"
#include "engine/recipe/expand.h"
#include "engine/recipe/load.h"
#include "engine/recipe/parse.h"

namespace engine::hf {
namespace {

constexpr std::string_view kBookkeeping = "of how files and classes are handled";
constexpr std::string_view kGeneration = "of generation";
constexpr std::string_view kTokens = "of the tokenizer";
constexpr std::string_view kClassifier = "of classifiers";

KeyRow Ignored(std::string_view key, std::string_view note) {
  return {.key = key, .is = Is::kIgnored, .note = note};
}

struct ActName {
  std::string_view theirs, ours;
};
// Several names stand for one activation; the first is written.
constexpr std::array<ActName, 14> kActs = {{{"silu", "silu"},
                                            {"swish", "silu"},
                                            {"gelu", "gelu_erf"},
                                            {"gelu_python", "gelu_erf"},
                                            {"gelu_pytorch_tanh", "gelu_tanh"},
                                            {"gelu_new", "gelu_tanh"},
                                            {"gelu_fast", "gelu_tanh"},
                                            {"gelu_accurate", "gelu_tanh"},
                                            {"quick_gelu", "quick_gelu"},
                                            {"relu", "relu"},
                                            {"relu2", "relu2"},
                                            {"relu_squared", "relu2"},
                                            {"sigmoid", "sigmoid"},
                                            {"tanh", "tanh"}}};

model::BuildOptions OptionsOfComparison() { return {.batch = 1, .sequence = 4, .dropout = false}; }

}  // namespace

const std::vector<KeyRow>& CommonKeys() {
  static const std::vector<KeyRow> keys = [] {
    std::vector<KeyRow> rows = {
        Ignored("dtype", "of the weights' file"),
        Ignored("torch_dtype", "of the weights' file"),
        Ignored("use_cache", kGeneration),
        Ignored("initializer_range", "of weights that are drawn, and these are read"),
        Ignored("auto_map", "code of the repository's, which is never run"),
        {.key = "is_encoder_decoder",
         .is = Is::kFixed,
         .initial = false,
         .note = "decoders alone are supported"},
        {.key = "add_cross_attention",
         .is = Is::kFixed,
         .initial = false,
         .note = "decoders alone are supported"},
        {.key = "is_decoder", .is = Is::kIgnored, .note = kBookkeeping},
        {.key = "chunk_size_feed_forward", .is = Is::kIgnored, .note = "it changes memory, and no result"},
        {.key = "pruned_heads",
         .is = Is::kFixed,
         .initial = nlohmann::json::object(),
         .note = "all layers have the same heads"},
    };
    for (const std::string_view key : {"_name_or_path",
                                       "transformers_version",
                                       "_commit_hash",
                                       "_attn_implementation",
                                       "attn_implementation",
                                       "_attn_implementation_autoset",
                                       "_attn_implementation_internal",
                                       "_experts_implementation",
                                       "_flash_attn_2_enabled",
                                       "use_flash_attn",
                                       "torchscript",
                                       "use_bfloat16",
                                       "tf_legacy_loss",
                                       "return_dict",
                                       "return_dict_in_generate",
                                       "output_attentions",
                                       "output_hidden_states",
                                       "output_scores",
                                       "architectures",
                                       "model_type",
                                       "base_model_tp_plan",
                                       "base_model_pp_plan",
                                       "transformers.js_config",
                                       "gradient_checkpointing",
                                       "unsloth_fixed",
                                       "unsloth_version",
                                       "tie_encoder_decoder",
                                       "cross_attention_hidden_size",
                                       "pretraining_tp",
                                       "_sliding_window_pattern"})
      rows.push_back(Ignored(key, kBookkeeping));
    for (const std::string_view key : {"max_length",
                                       "min_length",
                                       "do_sample",
                                       "early_stopping",
                                       "num_beams",
                                       "num_beam_groups",
                                       "diversity_penalty",
                                       "temperature",
                                       "top_k",
                                       "top_p",
                                       "typical_p",
                                       "repetition_penalty",
                                       "length_penalty",
                                       "no_repeat_ngram_size",
                                       "encoder_no_repeat_ngram_size",
                                       "bad_words_ids",
                                       "num_return_sequences",
                                       "begin_suppress_tokens",
                                       "suppress_tokens",
                                       "exponential_decay_length_penalty",
                                       "forced_bos_token_id",
                                       "forced_eos_token_id",
                                       "remove_invalid_values",
                                       "max_new_tokens",
                                       "cache_implementation",
                                       "task_specific_params",
                                       "prefix"})
      rows.push_back(Ignored(key, kGeneration));
    for (const std::string_view key : {"bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id",
                                       "unk_token_id", "decoder_start_token_id", "tokenizer_class"})
      rows.push_back(Ignored(key, kTokens));
    for (const std::string_view key :
         {"id2label", "label2id", "num_labels", "problem_type", "finetuning_task", "classifier_dropout"})
      rows.push_back(Ignored(key, kClassifier));
    return rows;
  }();
  return keys;
}

const Family* FindFamily(std::string_view name) {
  for (const Family& family : Families()) {
    if (family.name == name) return &family;
  }
  return nullptr;
}

std::vector<KeyRow> WithDefaults(
    std::vector<KeyRow> rows, std::initializer_list<std::pair<std::string_view, nlohmann::json>> defaults) {
  for (const auto& entry : defaults) {
    const auto row = std::find_if(rows.begin(), rows.end(),
                                  [&](const KeyRow& candidate) { return candidate.key == entry.first; });
    ENGINE_CHECK(row != rows.end(), "a default of a key '{}' that the family has not", entry.first);
    row->initial = entry.second;
  }
  return rows;
}

std::string_view ActOfName(std::string_view name) {
  for (const ActName& act : kActs) {
    if (act.theirs == name) return act.ours;
  }
  return {};
}

std::string_view NameOfAct(std::string_view act) {
  for (const ActName& candidate : kActs) {
    if (candidate.ours == act) return candidate.theirs;
  }
  return {};
}

absl::StatusOr<graph::Graph> GraphOfText(const std::string& recipe, const std::string& name) {
  std::vector<Diagnostic> mistakes;
  const auto source = std::make_shared<const recipe::Source>(name, recipe);
  const std::optional<recipe::Document> document = recipe::ParseToml(source, &mistakes);
  if (!document) return InvalidArgument("{}", Format(mistakes.front()));
  std::vector<recipe::ExtendsEntry> extends;
  const recipe::Settings own =
      recipe::ParseSettings(*document, recipe::Provenance::Origin::kFile, &extends, &mistakes);
  recipe::Settings settings;
  for (const recipe::ExtendsEntry& entry : extends) {
    // Of its mistakes only missing files matter here, after which there are no steps: it is no whole recipe.
    const recipe::LoadResult blocks = recipe::Load(entry.path);
    if (blocks.recipe.text == nullptr)
      return NotFound("{}", blocks.diagnostics.empty() ? entry.path : Format(blocks.diagnostics.front()));
    settings.text = *blocks.recipe.text;
  }
  settings.Override(own);
  mistakes.insert(mistakes.end(), settings.text_mistakes.begin(), settings.text_mistakes.end());
  if (mistakes.empty()) {
    graph::Graph graph = model::BuildText(settings.text, OptionsOfComparison(), &mistakes);
    if (mistakes.empty()) return graph;
  }
  std::string text;
  for (const Diagnostic& mistake : mistakes) text += (text.empty() ? "" : "; ") + mistake.message;
  return InvalidArgument("{}", text);
}

graph::Graph GraphOfRecipe(const recipe::Recipe& recipe) {
  std::vector<Diagnostic> mistakes;
  graph::Graph graph = model::BuildText(recipe.is_text() ? *recipe.text : recipe::ExpandedText(recipe),
                                        OptionsOfComparison(), &mistakes);
  ENGINE_CHECK(mistakes.empty(), "a model that was found to be right: {}", Format(mistakes[0]));
  return graph;
}

}  // namespace engine::hf
