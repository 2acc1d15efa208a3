#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "engine/import/megatron_writer.h"

namespace engine::import {
namespace {

constexpr std::array<std::string_view, 6> kLatentFlags = {"--q-lora-rank", "--kv-lora-rank",
                                                          "--qk-head-dim", "--qk-pos-emb-head-dim",
                                                          "--v-head-dim",  "--rope-type"};
constexpr std::array<std::string_view, 6> kYarnFlags = {
    "--rotary-scaling-factor", "--original-max-position-embeddings", "--beta-fast", "--beta-slow", "--mscale",
    "--mscale-all-dim"};

// Multi-head latent attention.
class LatentsConverter : MegatronWriter {
 public:
  LatentsConverter(const MegatronArguments& arguments, MegatronSettings* settings, MegatronRemarks* remarks,
                   MegatronModelChanges* changes)
      : MegatronWriter(arguments, settings, remarks), changes_(*changes), latents_(changes->latents) {}

  void Convert() {
    if (!a_.Has("--multi-latent-attention")) return WithoutLatents();
    changes_.flags.emplace_back("--multi-latent-attention");
    latents_.kv = Size("--kv-lora-rank", 0);
    latents_.q = Size("--q-lora-rank", 0);
    latents_.plain = Size("--qk-head-dim", 128);
    latents_.rotated = Size("--qk-pos-emb-head-dim", 64);
    latents_.value = Size("--v-head-dim", 128);
    latents_.norms = a_.Has("--qk-layernorm");
    if (latents_.norms) changes_.flags.emplace_back("--qk-layernorm");
    Set("model.attention.head_dim", latents_.plain + latents_.rotated,
        fmt::format("{} and {} that are rotated", latents_.plain, latents_.rotated), "--qk-head-dim");
    changes_.rotary = "interleaved = true";
    if (a_.Text("--rope-type").value_or("yarn") == "yarn") return Yarn();
    for (const std::string_view flag : kYarnFlags) {
      if (a_.Has(flag)) Remark(a_.Find(flag)->flag->name, "no effect with --rope-type rope");
    }
  }

 private:
  void WithoutLatents() {
    const auto remark = [&](std::string_view flag) {
      if (a_.Has(flag)) Remark(a_.Find(flag)->flag->name, "no effect without --multi-latent-attention");
    };
    for (const std::string_view flag : kLatentFlags) remark(flag);
    for (const std::string_view flag : kYarnFlags) remark(flag);
  }

  // `otherwise`: where the flag is not given.
  std::int64_t Size(const char* flag, std::int64_t otherwise) {
    const std::optional<std::int64_t> size = a_.Int(flag);
    if (!size) return otherwise;
    if (*size < 1 || *size >= kMostSize) {
      a_.Error(flag, fmt::format("{} is {}", flag, *size), "at least 1");
      return otherwise;
    }
    if (*size != otherwise) changes_.flags.emplace_back(flag);
    return *size;
  }

  double Between(const char* flag, double otherwise, double least, double most) {
    const std::optional<double> value = a_.Number(flag);
    if (!value) return otherwise;
    if (*value >= least && *value <= most) return *value;
    a_.Error(flag, fmt::format("{} is {}", flag, *value), fmt::format("from {} to {}", least, most));
    return otherwise;
  }

  // Scores are multiplied by g(mscale_all_dim)² / √(features), cos and sin by g(mscale) / g(mscale_all_dim), with
  // g(m) = 0.1·m·ln factor + 1.
  void Yarn() {
    constexpr double kMostFactor = 1 << 20;
    const double factor = Between("--rotary-scaling-factor", 1, 1, kMostFactor);
    const auto original =
        static_cast<std::int64_t>(Between("--original-max-position-embeddings", 4096, 1, kMostFactor));
    const double fast = Between("--beta-fast", 32, 1e-6, 1e6);
    const double slow = Between("--beta-slow", 1, 1e-6, 1e6);
    const double mscale = Between("--mscale", 1, 0, 100);
    const double all = Between("--mscale-all-dim", 0, 0, 100);
    if (factor == 1) return;  // nothing is stretched
    changes_.flags.emplace_back("--rotary-scaling-factor");
    const auto g = [&](double m) { return 0.1 * m * std::log(factor) + 1; };
    changes_.rotary += fmt::format(", scaling = \"yarn\", factor = {}, original = {}, attention_factor = {}",
                                   NumberToml(factor), original, NumberToml(g(mscale) / g(all)));
    if (fast != 32) changes_.rotary += fmt::format(", beta_fast = {}", NumberToml(fast));
    if (slow != 1) changes_.rotary += fmt::format(", beta_slow = {}", NumberToml(slow));
    if (all > 0)
      latents_.scale = g(all) * g(all) / std::sqrt(static_cast<double>(latents_.plain + latents_.rotated));
  }

  MegatronModelChanges& changes_;
  MegatronLatents& latents_;
};

}  // namespace

void ConvertMegatronLatents(const MegatronArguments& arguments, MegatronSettings* settings,
                            MegatronRemarks* remarks, MegatronModelChanges* changes) {
  LatentsConverter(arguments, settings, remarks, changes).Convert();
}

}  // namespace engine::import
