#include <fmt/format.h>

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
    c.Error({"precision.fp8_head", "parallelism.tp"},
            fmt::format("an fp8 head needs the whole vocabulary on a rank: tp 1, not {}", r.parallelism.tp),
            "fp8_head = false; or tp = 1");
    return;
  }
  const auto check = [&](std::string_view key, std::string_view what, std::int64_t size) {
    if (size % kMultiple == 0) return;
    c.Error({key, "precision.fp8_head"},
            fmt::format("an fp8 head needs a multiple of {} {}, not {}", kMultiple, what, size),
            fmt::format("{}; or fp8_head = false", NearestMultiples(size, kMultiple)));
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
  };
}

}  // namespace engine::recipe
