#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <string>

#include "engine/import/megatron_shell_words.h"
#include "engine/import/megatron_writer.h"

namespace engine::import {
namespace {

// The keys of the model but for its sizes, which flags say directly, and its vocabulary.
class ModelConverter : MegatronWriter {
 public:
  ModelConverter(const MegatronArguments& arguments, MegatronSettings* settings, MegatronRemarks* remarks)
      : MegatronWriter(arguments, settings, remarks) {}

  void Convert() {
    Model();
    Positions();
  }

 private:
  void Model() {
    const bool bias = !a_.Has("--disable-bias-linear");
    const char* flag = bias ? "" : "--disable-bias-linear";
    Set("model.attention.bias", bias, bias ? kDefault : "", flag);
    Set("model.mlp.bias", bias, bias ? kDefault : "", flag);
    if (bias && a_.Has("--add-qkv-bias")) Remark("--add-qkv-bias", "all projections have biases");
    KvHeads();
    Activation(bias);
    Translate("--normalization", "model.norm.kind", {{"LayerNorm", "layernorm"}, {"RMSNorm", "rmsnorm"}});
    if (a_.Has("--untie-embeddings-and-output-weights")) {
      Set("model.tied_embeddings", false, "", "--untie-embeddings-and-output-weights");
    }
    Dropout();
    Window();
  }

  void KvHeads() {
    if (a_.Has("--group-query-attention")) {
      const std::optional<std::int64_t> groups = a_.Int("--num-query-groups");
      Set("model.attention.kv_heads", groups.value_or(1),
          groups ? "" : "Megatron-LM's default of query groups",
          groups ? "--num-query-groups" : "--group-query-attention");
    } else if (a_.Has("--num-query-groups")) {
      Remark("--num-query-groups", "as many as heads are no groups");
    }
  }

  // Which of the two GELUs Megatron-LM's is depends on whether it fuses the bias with it.
  void Activation(bool bias) {
    if (a_.Has("--swiglu")) {
      Set("model.mlp.activation", std::string("swiglu"), "", "--swiglu");
    } else if (a_.Has("--squared-relu")) {
      Set("model.mlp.activation", std::string("squared_relu"), "", "--squared-relu");
    } else if (a_.Has("--quick-geglu")) {  // the steps say it; an activation that is not gated has its width
      Set("model.mlp.activation", std::string("gelu_tanh"), "", "--quick-geglu");
    } else if (a_.Has("--no-bias-gelu-fusion") && !a_.Has("--openai-gelu")) {
      Set("model.mlp.activation", std::string("gelu_erf"), "unfused, Megatron-LM's GELU is the exact one",
          "--no-bias-gelu-fusion");
    } else if (!bias && !a_.Has("--openai-gelu")) {
      Set("model.mlp.activation", std::string("gelu_erf"),
          "without a bias, Megatron-LM's GELU is the exact one", "--disable-bias-linear");
    } else {
      Set("model.mlp.activation", std::string("gelu_tanh"),
          a_.Has("--openai-gelu") ? "" : "fused with the bias, Megatron-LM's GELU is this one");
    }
    if (a_.Has("--no-bias-gelu-fusion") && (a_.Has("--openai-gelu") || a_.Has("--swiglu") ||
                                            a_.Has("--squared-relu") || a_.Has("--quick-geglu"))) {
      Remark("--no-bias-gelu-fusion", "the activation is another one");
    }
  }

  void Dropout() {
    SetIfAbsent("model.dropout.attention", 0.1, kDefault);
    const std::optional<double> hidden = a_.Number("--hidden-dropout");
    for (const char* key : {"model.dropout.hidden", "model.dropout.embedding"}) {
      Set(key, hidden.value_or(0.1), hidden ? "" : kDefault, hidden ? "--hidden-dropout" : "");
    }
  }

  // "l,0": a token sees l tokens before itself; ours counts itself.
  void Window() {
    const std::optional<std::string> text = a_.Text("--window-size");
    if (!text) return;
    std::string plain = *text;
    std::erase_if(plain, [](char c) { return c == '(' || c == ')' || c == ' '; });
    const std::size_t comma = plain.find(',');
    const std::optional<std::int64_t> left = ShellInteger(plain.substr(0, comma));
    const std::optional<std::int64_t> right =
        comma == std::string::npos ? std::nullopt : ShellInteger(plain.substr(comma + 1));
    if (!left || !right || *left < 0 || *left >= kMostSize || *right > 0) {
      a_.Error("--window-size", fmt::format("--window-size is '{}'", Shown(*text)),
               "two numbers: tokens before, and 0 after, as in 4095,0");
      return;
    }
    Set("model.attention.window", *left + 1, fmt::format("the token itself and {} before it", *left),
        "--window-size");
  }

  void Positions() {
    Translate("--position-embedding-type", "model.attention.position",
              {{"learned_absolute", "learned"}, {"rope", "rotary"}, {"yarn", "rotary"}, {"none", "none"}});
    if (a_.Has("--use-rotary-position-embeddings")) {
      Set("model.attention.position", std::string("rotary"), "", "--use-rotary-position-embeddings");
    }
    if (a_.Has("--no-position-embedding"))
      Remark("--no-position-embedding", "rotary positions have no table");
    const std::optional<double> factor = a_.Number("--rope-scaling-factor");
    if (a_.Has("--use-rope-scaling")) {
      Set("model.attention.rope_scaling.factor", factor.value_or(8.0), factor ? "" : kDefault,
          factor ? "--rope-scaling-factor" : "--use-rope-scaling");
    } else if (factor) {
      Remark("--rope-scaling-factor", "no effect without --use-rope-scaling");
    }
  }
};

}  // namespace

void ConvertMegatronModel(const MegatronArguments& arguments, MegatronSettings* settings,
                          MegatronRemarks* remarks) {
  ModelConverter(arguments, settings, remarks).Convert();
}

}  // namespace engine::import
