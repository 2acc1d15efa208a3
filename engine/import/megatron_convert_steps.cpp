#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/import/megatron_layer_pattern.h"
#include "engine/import/megatron_shell_words.h"
#include "engine/import/megatron_writer.h"

namespace engine::import {
namespace {

constexpr std::array<std::string_view, 7> kYarnStepFlags = {"--yarn-rotary-scaling-factor",
                                                            "--yarn-original-max-position-embeddings",
                                                            "--yarn-beta-fast",
                                                            "--yarn-beta-slow",
                                                            "--yarn-mscale",
                                                            "--yarn-mscale-all-dim",
                                                            "--no-yarn-correction-range-round-to-int"};

bool IsOfYarn(std::string_view flag) {
  return std::find(kYarnStepFlags.begin(), kYarnStepFlags.end(), flag) != kYarnStepFlags.end();
}

// What a decoder's keys do not say: reads the keys that other parts have set.
class StepsConverter : MegatronWriter {
 public:
  StepsConverter(const MegatronArguments& arguments, MegatronSettings* settings, MegatronRemarks* remarks,
                 MegatronModelChanges* changes)
      : MegatronWriter(arguments, settings, remarks), changes_(*changes) {}

  void Convert() {
    changes_.qk_norms = !a_.Has("--multi-latent-attention") && Asks("--qk-layernorm");
    changes_.gain_from_one = Asks("--apply-layernorm-1p");
    changes_.quick_geglu = Asks("--quick-geglu");
    if (a_.Has("--add-qkv-bias") && a_.Has("--disable-bias-linear"))
      changes_.qkv_bias = Asks("--add-qkv-bias");
    Softmax();
    EmbeddingStd();
    Windows();
    NoRotation();
    Rotary();
    FurtherTokens();
  }

 private:
  bool Asks(const char* flag) {
    if (!a_.Has(flag)) return false;
    changes_.flags.emplace_back(flag);
    return true;
  }

  void AddRotary(const char* flag, std::string_view keys) {
    changes_.rotary += fmt::format("{}{}", changes_.rotary.empty() ? "" : ", ", keys);
    Asks(flag);
  }

  std::string Position() const {
    const auto found = settings_.find("model.attention.position");
    return found == settings_.end() ? "learned" : std::get<std::string>(found->second.value);
  }

  // A number within bounds; nullopt also where it is not, which is reported.
  std::optional<double> Between(const char* flag, double least, double most) {
    const std::optional<double> value = a_.Number(flag);
    if (!value || (*value >= least && *value <= most)) return value;
    a_.Error(flag, fmt::format("{} is {}", flag, *value), fmt::format("from {} to {}", least, most));
    return std::nullopt;
  }

  void FurtherTokens() {
    constexpr const char* kFlag = "--mtp-num-layers";
    constexpr const char* kFactor = "--mtp-loss-scaling-factor";
    constexpr std::int64_t kMost = 8;  // labels_2 to labels_9
    const std::optional<std::int64_t> count = a_.Int(kFlag);
    const std::optional<double> factor = Between(kFactor, 0, 1e6);
    if (!count) {
      if (factor) Remark(kFactor, "no effect without --mtp-num-layers");
      return;
    }
    if (*count < 1 || *count > kMost) {
      a_.Error(kFlag, fmt::format("{} is {}", kFlag, *count), fmt::format("from 1 to {}", kMost));
    } else if (Position() == "learned") {
      a_.Error(kFlag, fmt::format("{} with learned positions cannot be imported", kFlag),
               "--position-embedding-type rope or none");
    } else {
      changes_.further_tokens = *count;
      changes_.further_weight = factor.value_or(0.1) / static_cast<double>(*count);
      Asks(kFlag);
      Remark(kFlag, "losses are means over all tokens, those that a sample has no label for included");
    }
  }

  void Softmax() {
    constexpr const char* kFlag = "--softmax-type";
    const std::optional<std::string> type = a_.Text(kFlag);
    if (!type || *type == "vanilla") return;
    if (*type == "learnable") {
      changes_.sinks = Asks(kFlag);
      return;
    }
    a_.Error(kFlag, fmt::format("{} {} cannot be imported", kFlag, Shown(*type)),
             "one of vanilla, learnable");
  }

  void EmbeddingStd() {
    constexpr const char* kFlag = "--embedding-init-method-std";
    const std::optional<double> std = Between(kFlag, 0, 10);
    if (!std || *std == NumberOf("model.init_std")) return;
    changes_.embedding_std = std;
    Asks(kFlag);
  }

  void Windows() {
    constexpr const char* kFlag = "--window-attn-skip-freq";
    if (!a_.Has(kFlag)) return;
    if (!a_.Has("--window-size")) return Remark(kFlag, "no effect without --window-size");
    const std::int64_t window = IntOf("model.attention.window", 0);
    const auto within = LayersOfFlag(a_, kFlag, IntOf("model.layers", 0), {.first = 1, .value = 0});
    if (!within || window < 1) return;
    if (std::count(within->begin(), within->end(), 1) == 0) {
      Set("model.attention.window", std::int64_t{0}, "no layer has one", kFlag);
      return;
    }
    const std::size_t period = PeriodOf(*within);
    if (period == 1) return Remark(kFlag, "all layers have the window");
    constexpr std::int64_t kWidest = std::int64_t{1} << 30;
    for (std::size_t i = 0; i < period; ++i)
      changes_.windows.push_back((*within)[i] != 0 ? std::min(window, kWidest) : 0);
    Asks(kFlag);
  }

  void NoRotation() {
    constexpr const char* kFlag = "--no-rope-freq";
    if (!a_.Has(kFlag)) return;
    if (Position() != "rotary") return Remark(kFlag, kNotRotary);
    const std::optional<std::int64_t> every = ShellInteger(a_.Text(kFlag).value_or(""));
    const std::int64_t layers = IntOf("model.layers", 0);
    if (every && *every > 0 && layers % *every != 0) {
      a_.Error(kFlag, fmt::format("{} {} does not divide the {} layers", kFlag, *every, layers));
      return;
    }
    const auto skipped = LayersOfFlag(a_, kFlag, layers, {.first = 1, .value = 1});
    if (!skipped) return;
    const std::size_t period = PeriodOf(*skipped);
    if (period == 1 && (*skipped)[0] != 0) {
      Set("model.attention.position", std::string("none"), "no layer rotates", kFlag);
    } else if (period == 1) {
      Remark(kFlag, "all layers rotate");
    } else {
      for (std::size_t i = 0; i < period; ++i) changes_.rotated.push_back((*skipped)[i] == 0);
      Asks(kFlag);
    }
  }

  void Rotary() {
    if (Position() != "rotary") {
      for (const char* flag :
           {"--rotary-percent", "--rotary-interleaved", "--rotary-seq-len-interpolation-factor"}) {
        if (a_.Has(flag)) Remark(flag, kNotRotary);
      }
    } else {
      Width();
      if (a_.Has("--rotary-interleaved")) AddRotary("--rotary-interleaved", "interleaved = true");
      Interpolation();
    }
    Yarn();
  }

  // As Python's int() does, a fraction of a feature is dropped.
  void Width() {
    constexpr const char* kFlag = "--rotary-percent";
    const std::optional<double> percent = Between(kFlag, 0, 1);
    const std::int64_t heads = IntOf("model.attention.heads", 0);
    if (!percent || *percent == 1 || heads < 1) return;
    const std::int64_t head = IntOf("model.attention.head_dim", IntOf("model.hidden", 0) / heads);
    const auto width = static_cast<std::int64_t>(static_cast<double>(head) * *percent);
    if (width < 2 || width % 2 != 0) {
      a_.Error(kFlag,
               fmt::format("{} {} of the {} features of a head are {}, and pairs are rotated", kFlag,
                           *percent, head, width),
               "such that they are an even number, at least 2");
    } else if (width != head) {
      AddRotary(kFlag, fmt::format("width = {}", width));
    }
  }

  void Interpolation() {
    constexpr const char* kFlag = "--rotary-seq-len-interpolation-factor";
    const std::optional<double> factor = Between(kFlag, 1, kMostFactor);
    if (factor && *factor != 1)
      AddRotary(kFlag, fmt::format("scaling = \"linear\", factor = {}", NumberToml(*factor)));
  }

  // What cos and sin are multiplied by: g(mscale) / g(mscale_all_dim), g(m) = 0.1·m·ln factor + 1.
  void Yarn() {
    const bool yarn = a_.Text("--position-embedding-type").value_or("") == "yarn";
    if (!yarn) {
      for (const MegatronArgument& argument : a_.command().arguments) {
        if (IsOfYarn(argument.flag->name))
          Remark(argument.flag->name, "no effect without --position-embedding-type yarn");
      }
      return;
    }
    Asks("--position-embedding-type");
    const std::optional<double> factor = Between("--yarn-rotary-scaling-factor", 1, kMostFactor);
    const std::optional<std::int64_t> original = a_.Int("--yarn-original-max-position-embeddings");
    if (!factor || !original) return;  // the rules say that they are missing
    if (*original < 1 || static_cast<double>(*original) > kMostFactor) {
      a_.Error("--yarn-original-max-position-embeddings",
               fmt::format("--yarn-original-max-position-embeddings is {}", *original), "at least 1");
      return;
    }
    changes_.rotary += fmt::format("{}scaling = \"yarn\", factor = {}, original = {}",
                                   changes_.rotary.empty() ? "" : ", ", NumberToml(*factor), *original);
    if (const std::optional<double> beta = Between("--yarn-beta-fast", 1e-6, 1e6))
      AddRotary("--yarn-beta-fast", fmt::format("beta_fast = {}", NumberToml(*beta)));
    if (const std::optional<double> beta = Between("--yarn-beta-slow", 1e-6, 1e6))
      AddRotary("--yarn-beta-slow", fmt::format("beta_slow = {}", NumberToml(*beta)));
    const std::optional<double> mscale = Between("--yarn-mscale", 0, 100);
    const std::optional<double> all = Between("--yarn-mscale-all-dim", 0, 100);
    if (mscale || all) {
      const auto g = [&](double m) { return 0.1 * m * std::log(*factor) + 1; };
      AddRotary(mscale ? "--yarn-mscale" : "--yarn-mscale-all-dim",
                fmt::format("attention_factor = {}", NumberToml(g(mscale.value_or(1)) / g(all.value_or(0)))));
    }
    if (a_.Has("--no-yarn-correction-range-round-to-int"))
      AddRotary("--no-yarn-correction-range-round-to-int", "truncate = false");
  }

  static constexpr const char* kNotRotary = "no effect without rotary positions";
  static constexpr double kMostFactor = 1 << 20;
  MegatronModelChanges& changes_;
};

}  // namespace

void ConvertMegatronSteps(const MegatronArguments& arguments, MegatronSettings* settings,
                          MegatronRemarks* remarks, MegatronModelChanges* changes) {
  StepsConverter(arguments, settings, remarks, changes).Convert();
}

}  // namespace engine::import
