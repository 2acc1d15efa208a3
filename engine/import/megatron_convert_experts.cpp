#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "engine/import/megatron_layer_pattern.h"
#include "engine/import/megatron_writer.h"

namespace engine::import {
namespace {

constexpr const char* kBalancing = "--moe-router-load-balancing-type";
constexpr const char* kWeight = "--moe-aux-loss-coeff";

std::optional<double> AsCoefficient(const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(value >= 0 && value <= 1e3))
    return std::nullopt;
  return value;
}

// Experts, and the router that sends tokens to them.
class ExpertsConverter : MegatronWriter {
 public:
  ExpertsConverter(const MegatronArguments& arguments, MegatronSettings* settings, MegatronRemarks* remarks,
                   MegatronModelChanges* changes)
      : MegatronWriter(arguments, settings, remarks), changes_(*changes), experts_(changes->experts) {}

  void Convert() {
    const std::optional<std::int64_t> count = a_.Int("--num-experts");
    if (!a_.Has("--num-experts")) return WithoutExperts();
    if (!count) return;
    experts_.count = *count;
    Asks("--num-experts");
    experts_.hidden = Width("--moe-ffn-hidden-size");
    experts_.shared = Width("--moe-shared-expert-intermediate-size");
    experts_.shared_gate = Asks("--moe-shared-expert-gate");
    if (experts_.shared == 0) {
      for (const char* flag : {"--moe-shared-expert-gate", "--moe-shared-expert-overlap"})
        if (a_.Has(flag)) Remark(flag, "no effect without --moe-shared-expert-intermediate-size");
    }
    Choice();
    Bias();
    Losses();
    Noise();
    Capacity();
    Layers();
  }

 private:
  bool Asks(const char* flag) {
    if (!a_.Has(flag)) return false;
    changes_.flags.emplace_back(flag);
    return true;
  }

  void WithoutExperts() {
    for (const MegatronArgument& argument : a_.command().arguments) {
      const std::string_view name = argument.flag->name;
      if (argument.flag->fate == MegatronFlag::Fate::kRead &&
          (name.starts_with("--moe-") || name == "--expert-tensor-parallel-size"))
        Remark(argument.flag->name, "there are no experts for it");
    }
  }

  // A key of the step route.
  void Route(const char* flag, const std::string& text) {
    experts_.route += fmt::format("{}{}", experts_.route.empty() ? "" : ", ", text);
    Asks(flag);
  }
  void Route(const char* flag, std::string_view key, double value) {
    Route(flag, fmt::format("{} = {}", key, NumberToml(value)));
  }

  // A number within bounds; nullopt also where it is not, which is reported.
  std::optional<double> Between(const char* flag, double least, double most) {
    const std::optional<double> value = a_.Number(flag);
    if (!value || (*value >= least && *value <= most)) return value;
    a_.Error(flag, fmt::format("{} is {}", flag, *value), fmt::format("from {} to {}", least, most));
    return std::nullopt;
  }

  std::int64_t Width(const char* flag) {
    const std::optional<std::int64_t> width = a_.Int(flag);
    if (!width) return 0;
    if (*width < 1 || *width >= kMostSize) {
      a_.Error(flag, fmt::format("{} is {}", flag, *width), "at least 1");
      return 0;
    }
    Asks(flag);
    return *width;
  }

  // Which experts a token goes to, and with what weights.
  void Choice() {
    const std::optional<std::int64_t> top_k = a_.Int("--moe-router-topk");
    experts_.route = fmt::format("top_k = {}", top_k.value_or(2));
    constexpr std::int64_t kMostChoices = 256;  // of the step route
    if (top_k.value_or(2) > kMostChoices) {
      a_.Error("--moe-router-topk", fmt::format("--moe-router-topk {} cannot be imported", *top_k),
               fmt::format("{} at most", kMostChoices));
    }
    if (BySinkhorn()) {
      Sinkhorn(top_k == 1);
    } else {
      Score(top_k == 1);
    }
    if (a_.Text("--moe-router-dtype").value_or("fp32") == "fp64") {
      Warn("--moe-router-dtype", "a router computes in fp32");
    } else if (a_.Has("--moe-router-dtype")) {
      Remark("--moe-router-dtype", "a router computes in fp32");
    }
    const std::optional<double> scale = Between("--moe-router-topk-scaling-factor", 1e-6, 1e4);
    if (scale && *scale != 1) Route("--moe-router-topk-scaling-factor", "scale", *scale);
    const std::optional<std::int64_t> groups = a_.Int("--moe-router-num-groups");
    const std::optional<std::int64_t> kept = a_.Int("--moe-router-group-topk");
    if (groups && kept) {
      Route("--moe-router-num-groups", fmt::format("groups = {}, group_top_k = {}", *groups, *kept));
    }
    if (a_.Has("--moe-router-force-load-balancing"))
      Set("debug.router", std::string("even"), "", "--moe-router-force-load-balancing");
  }

  void Score(bool one) {
    const std::string score = a_.Text("--moe-router-score-function").value_or("softmax");
    if (score == "softmax") {
      if (a_.Has("--moe-router-pre-softmax")) Route("--moe-router-pre-softmax", "normalize = false");
      return;
    }
    if (a_.Has("--moe-router-pre-softmax"))
      Remark("--moe-router-pre-softmax", fmt::format("no effect with scores of {}", Shown(score)));
    // Of one expert the weight is its score, of several they are divided by their sum.
    Route("--moe-router-score-function",
          fmt::format("score = \"{}\"{}", score, one ? ", normalize = false" : ""));
  }

  bool BySinkhorn() {
    const std::vector<std::string> types = a_.List(kBalancing);
    return std::find(types.begin(), types.end(), "sinkhorn") != types.end();
  }
  // Weights are scores among all experts, and the sigmoid where a token has one, whatever other flags say.
  void Sinkhorn(bool one) {
    Route(kBalancing,
          fmt::format("select = \"sinkhorn\", {}normalize = false", one ? "score = \"sigmoid\", " : ""));
    Warn(kBalancing,
         "16 rounds of each sample by itself, in place of as many as a rank's microbatch takes to converge");
    for (const char* flag :
         {"--moe-router-enable-expert-bias", "--moe-router-num-groups", "--moe-expert-capacity-factor"}) {
      if (a_.Has(flag))
        a_.Error(flag, fmt::format("{} does not go with {} sinkhorn", flag, kBalancing), "remove it");
    }
    for (const char* flag : {"--moe-router-score-function", "--moe-router-pre-softmax"})
      if (a_.Has(flag)) Remark(flag, fmt::format("no effect with {} sinkhorn", kBalancing));
  }

  void Bias() {
    constexpr const char* kRate = "--moe-router-bias-update-rate";
    if (!a_.Has("--moe-router-enable-expert-bias")) {
      if (a_.Has(kRate)) Remark(kRate, "no effect without --moe-router-enable-expert-bias");
      return;
    }
    const std::optional<double> rate = Between(kRate, 0, 1);
    if (rate == 0) {
      Remark(kRate, "corrections begin at 0, and stay there");
      Remark("--moe-router-enable-expert-bias", "corrections begin at 0, and stay there");
    } else {
      Route("--moe-router-enable-expert-bias", "bias_rate", rate.value_or(1e-3));
    }
  }

  // Of each kind its weight. The rules say that there are as many weights as kinds.
  void Losses() {
    std::vector<std::string> types = a_.List(kBalancing);
    const std::vector<std::string> weights = a_.List(kWeight);
    if (types.empty()) types = {"aux_loss"};
    for (std::size_t i = 0; i < types.size(); ++i) {
      const std::optional<double> weight =
          i < weights.size() ? AsCoefficient(weights[i]) : std::optional<double>(0);
      if (!weight) {
        a_.Error(kWeight, fmt::format("{} {} is no weight of a loss", kWeight, Shown(weights[i])),
                 "from 0 to 1000");
        continue;
      }
      Loss(types[i], *weight, a_.Has(kBalancing) ? kBalancing : kWeight);
    }
    const char* flag = a_.Has(kBalancing) ? kBalancing : kWeight;
    for (const auto& [key, weight] : losses_) Route(flag, key, weight);
    const bool used = std::any_of(types.begin(), types.end(),
                                  [](const std::string& type) { return type.ends_with("aux_loss"); });
    if (!used && a_.Has(kWeight)) Remark(kWeight, "there is no loss of balance");
    const std::optional<double> z = Between("--moe-z-loss-coeff", 0, 1e3);
    if (z && *z > 0) Route("--moe-z-loss-coeff", "z_loss", *z);
  }

  void Loss(const std::string& type, double weight, const char* flag) {
    if (type == "none" || type == "sinkhorn" || (weight == 0 && type.ends_with("aux_loss"))) return;
    if (BySinkhorn()) {
      return a_.Error(kWeight, fmt::format("{} has no loss of balance with {} sinkhorn", kWeight, kBalancing),
                      "0 for each");
    }
    // Losses of one kind add up.
    if (type == "seq_aux_loss" || type == "global_aux_loss") {
      losses_[type == "seq_aux_loss" ? "aux_loss" : type] += weight;
      return;
    }
    if (type != "aux_loss") {
      return a_.Error(flag, fmt::format("{} {} cannot be imported", flag, Shown(type)),
                      "one of aux_loss, seq_aux_loss, global_aux_loss, sinkhorn, none");
    }
    // A microbatch of one sample is that sample.
    losses_[IntOf("training.micro_batch", 1) == 1 ? "aux_loss" : "microbatch_aux_loss"] += weight;
  }

  void Noise() {
    const std::optional<double> jitter = Between("--moe-input-jitter-eps", 0, 1);
    if (jitter == 1)
      return a_.Error("--moe-input-jitter-eps", "--moe-input-jitter-eps 1 leaves nothing", "less than 1");
    if (jitter && *jitter > 0) Route("--moe-input-jitter-eps", "jitter", *jitter);
  }

  // What an expert takes at most of a rank's tokens: those of one sample where the rank has a whole one at a time.
  void Capacity() {
    constexpr const char* kFactor = "--moe-expert-capacity-factor";
    const std::optional<double> factor = a_.Number(kFactor);
    if (!factor || *factor < 0) {
      for (const char* flag : {"--moe-token-drop-policy", "--moe-pad-expert-input-to-capacity"})
        if (a_.Has(flag)) Remark(flag, fmt::format("no effect without {}", kFactor));
      if (factor) Remark(kFactor, "less than 0 is no limit");
      return;
    }
    const bool sample = IntOf("training.micro_batch", 1) == 1 && IntOf("parallelism.tp", 1) == 1 &&
                        IntOf("parallelism.cp", 1) == 1;
    if (*factor == 0 || *factor > 1e6) {
      return a_.Error(kFactor, fmt::format("{} is {}", kFactor, *factor),
                      "more than 0, to 1e6; or less: no limit");
    }
    experts_.experts = fmt::format("capacity = {}", NumberToml(*factor));
    if (!sample) experts_.experts += ", capacity_of = \"rank\"";
    if (IntOf("parallelism.tp", 1) * IntOf("parallelism.cp", 1) > 1)
      Warn(kFactor, "counted over the tokens that ranks of tp and cp share, and not over each one's part");
    Asks(kFactor);
    if (a_.Has("--moe-pad-expert-input-to-capacity"))
      Remark("--moe-pad-expert-input-to-capacity", "rows that would fill up an expert's would weigh nothing");
    const std::string policy = a_.Text("--moe-token-drop-policy").value_or("probs");
    if (policy == "position") {
      experts_.experts += ", drop = \"position\"";
      Asks("--moe-token-drop-policy");
    } else if (policy != "probs") {
      a_.Error("--moe-token-drop-policy",
               fmt::format("--moe-token-drop-policy {} cannot be imported", Shown(policy)),
               "one of probs, position");
    }
  }

  void Layers() {
    constexpr const char* kFlag = "--moe-layer-freq";
    if (!a_.Has(kFlag)) return;
    const auto layers = LayersOfFlag(a_, kFlag, IntOf("model.layers", 0), {.first = 0, .value = 1});
    if (!layers) return;
    const auto with = std::count(layers->begin(), layers->end(), 1);
    if (with == 0) {
      a_.Error(kFlag, fmt::format("{} leaves no layer with experts", kFlag), "remove --num-experts");
    } else if (with == static_cast<std::ptrdiff_t>(layers->size())) {
      Remark(kFlag, "all layers have experts");
    } else {
      experts_.layers.assign(layers->begin(), layers->end());
      Asks(kFlag);
    }
  }

  MegatronModelChanges& changes_;
  MegatronExperts& experts_;
  std::map<std::string, double> losses_;  // of balance: keys of route, with their weights
};

}  // namespace

void ConvertMegatronExperts(const MegatronArguments& arguments, MegatronSettings* settings,
                            MegatronRemarks* remarks, MegatronModelChanges* changes) {
  ExpertsConverter(arguments, settings, remarks, changes).Convert();
}

}  // namespace engine::import
