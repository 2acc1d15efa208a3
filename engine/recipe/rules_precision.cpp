#include <fmt/format.h>

#include "engine/recipe/fields.h"
#include "engine/recipe/rules.h"

namespace engine::recipe {
namespace {

// No product takes 16-bit operands of one kind and adds them up in the other.
void NarrowGradientsFitTheProducts(const RuleContext& c) {
  const Precision& p = c.recipe.precision;
  if (p.gradient_dtype != "bf16" || p.compute == "bf16" || p.compute == "fp8") return;
  c.Error({"precision.gradient_dtype", "precision.compute"},
          fmt::format("gradients are summed in bf16 where compute is bf16 or fp8, not {}", p.compute),
          "gradient_dtype = \"fp32\"; or compute = \"bf16\"");
}

// An fp8 weight is the bf16 one rounded once more: the noise of stochastic rounding would add to that.
void NarrowMastersAreTheWeights(const RuleContext& c) {
  const Precision& p = c.recipe.precision;
  if (p.master_dtype != "bf16" || p.compute == "bf16") return;
  const char* reason = p.compute == "fp32"   ? "fp32 weights have no master copy"
                       : p.compute == "fp16" ? "fp16 weights need a master copy in fp32"
                                             : "weights of fp8 products need a master copy in fp32";
  c.Error(
      {"precision.master_dtype", "precision.compute"},
      fmt::format("bf16 weights without a master copy go with compute bf16, not {}: {}", p.compute, reason),
      "master_dtype = \"fp32\"; or compute = \"bf16\"");
}

constexpr const char* kLossScale = "precision.loss_scale";
constexpr const char* kInitialLossScale = "precision.initial_loss_scale";
constexpr const char* kMinLossScale = "precision.min_loss_scale";
constexpr const char* kLossScaleWindow = "precision.loss_scale_window";
constexpr const char* kLossScaleHysteresis = "precision.loss_scale_hysteresis";

// What is said of a loss scale has an effect.
void LossScalesAreOfFp16(const RuleContext& c) {
  const Precision& p = c.recipe.precision;
  const Precision unsaid;
  const bool fp16 = p.compute == "fp16";
  const auto check = [&](const char* key, auto value, auto otherwise) {
    if (value == otherwise) return;
    const std::string name(std::string_view(key).substr(std::string_view(key).find('.') + 1));
    if (!fp16) {
      c.Error({key, "precision.compute"},
              fmt::format("{} {} goes with compute fp16, not {}", name, value, p.compute),
              fmt::format("remove {}; or compute = \"fp16\"", name));
    } else if (p.loss_scale > 0 && std::string_view(key) != kLossScale) {
      c.Error({key, kLossScale},
              fmt::format("{} {} has no effect where loss_scale is {} for the whole run", name, value,
                          p.loss_scale),
              fmt::format("remove {}; or loss_scale = 0.0", name));
    }
  };
  check(kLossScale, p.loss_scale, unsaid.loss_scale);
  check(kInitialLossScale, p.initial_loss_scale, unsaid.initial_loss_scale);
  check(kMinLossScale, p.min_loss_scale, unsaid.min_loss_scale);
  check(kLossScaleWindow, p.loss_scale_window, unsaid.loss_scale_window);
  check(kLossScaleHysteresis, p.loss_scale_hysteresis, unsaid.loss_scale_hysteresis);
  if (!fp16 || p.min_loss_scale <= p.initial_loss_scale) return;
  c.Error({kMinLossScale, kInitialLossScale},
          fmt::format("min_loss_scale {} is more than initial_loss_scale {}", p.min_loss_scale,
                      p.initial_loss_scale),
          fmt::format("min_loss_scale of at most {0}; or initial_loss_scale of at least {1}",
                      p.initial_loss_scale, p.min_loss_scale));
}

void Fp8HeadHasFp8Sizes(const RuleContext& c) {
  constexpr std::int64_t kMultiple = 16;  // of every size of an FP8 product
  const Recipe& r = c.recipe;
  if (!r.precision.fp8_head) return;
  if (r.precision.compute != "fp8") {
    c.Error({"precision.fp8_head", "precision.compute"},
            fmt::format("an fp8 head goes with compute fp8, not {}", r.precision.compute),
            "fp8_head = false; or compute = \"fp8\"");
    return;
  }
  if (r.parallelism.tp > 1) {
    const std::string ways =
        c.WaysOut({{.key = "parallelism.tp", .name = "tp", .values = {1}, .keeps = "parallelism.dp"}});
    c.Error({"precision.fp8_head", "parallelism.tp"},
            fmt::format("an fp8 head needs the whole vocabulary on a rank: tp 1, not {}", r.parallelism.tp),
            ways.empty() ? "fp8_head = false" : "fp8_head = false; or " + ways);
    return;
  }
  const auto check = [&](std::string_view key, std::string_view what, std::int64_t size) {
    if (size % kMultiple == 0) return;
    const std::string name(key.substr(key.rfind('.') + 1));
    const std::int64_t own = std::get<std::int64_t>(Get(*FindField(key), r));
    const std::string ways =
        c.WaysOut({{.key = key, .name = name, .values = MultiplesAround(own, own == size ? kMultiple : 1)}});
    c.Error({key, "precision.fp8_head"},
            fmt::format("an fp8 head needs a multiple of {} {}, not {}", kMultiple, what, size),
            ways + (ways.empty() ? "" : "; or ") + "fp8_head = false");
  };
  check("model.hidden", "hidden features", r.model.hidden);
  check("model.vocab_multiple", "vocabulary rows (vocab rounded up to vocab_multiple)", r.padded_vocab());
  const std::int64_t cp = r.parallelism.cp;
  const bool halves = cp > 1 && r.parallelism.overlap != "off" && r.training.micro_batch % 2 == 0;
  check("training.micro_batch",
        halves ? "tokens in half a microbatch on a rank" : "tokens of a microbatch on a rank",
        r.training.micro_batch * r.data.sequence_length / (halves ? 2 * cp : cp));
}

}  // namespace

std::vector<Rule> PrecisionRules() {
  return {
      {{"precision.compute", "precision.fp8_head", "model.hidden", "model.vocab", "model.vocab_multiple",
        "parallelism.tp", "parallelism.cp", "parallelism.overlap", "training.micro_batch",
        "data.sequence_length"},
       Fp8HeadHasFp8Sizes},
      {{"precision.compute", "precision.gradient_dtype"}, NarrowGradientsFitTheProducts},
      {{"precision.compute", "precision.master_dtype"}, NarrowMastersAreTheWeights},
      {{"precision.compute", kLossScale, kInitialLossScale, kMinLossScale, kLossScaleWindow,
        kLossScaleHysteresis},
       LossScalesAreOfFp16},
  };
}

}  // namespace engine::recipe
