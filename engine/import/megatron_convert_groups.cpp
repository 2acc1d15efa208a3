#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>

#include "engine/import/megatron_writer.h"

namespace engine::import {
namespace {

// Parameters that the optimizer treats otherwise than the rest.
class GroupsConverter : MegatronWriter {
 public:
  GroupsConverter(const MegatronArguments& arguments, MegatronSettings* settings, MegatronRemarks* remarks,
                  MegatronModelChanges* changes)
      : MegatronWriter(arguments, settings, remarks), changes_(*changes) {}

  void Convert() {
    DecayOfNorms();
    DecoupledRate();
  }

 private:
  void Add(const std::string& lines) { changes_.groups.push_back("[[optimizer.group]]\n" + lines); }

  void DecayOfNorms() {
    constexpr const char* kFlag = "--apply-wd-to-qk-layernorm";
    if (!a_.Has(kFlag)) return;
    if (!a_.Has("--qk-layernorm")) return Remark(kFlag, "no effect without --qk-layernorm");
    Add(fmt::format("match = [\"layers.*.q_norm.weight\", \"layers.*.k_norm.weight\"]\nweight_decay = {}\n",
                    NumberToml(NumberOf("optimizer.weight_decay"))));
  }

  // A schedule moves all learning rates alike here, so that they stay in one proportion down to the least.
  void DecoupledRate() {
    constexpr const char* kFlag = "--decoupled-lr";
    constexpr const char* kLeast = "--decoupled-min-lr";
    if (!a_.Has(kFlag)) {
      if (a_.Has(kLeast)) Remark(kLeast, "no effect without --decoupled-lr");
      return;
    }
    const std::optional<double> own = a_.Number(kFlag);
    const double rate = NumberOf("optimizer.learning_rate");
    const double least = NumberOf("schedule.min_learning_rate");
    if (!own || !(rate > 0)) return;
    const double in_proportion = least * *own / rate;
    const double own_least = a_.Number(kLeast).value_or(least);
    constexpr double kRounding = 1e-9;
    if (std::abs(own_least - in_proportion) > kRounding * std::max(own_least, in_proportion)) {
      a_.Error(
          a_.Has(kLeast) ? kLeast : kFlag,
          fmt::format("--decoupled-lr {} with a least of {} cannot be imported: learning rates stay in one "
                      "proportion, here {} to {}",
                      *own, own_least, *own, rate),
          fmt::format("--decoupled-min-lr {}", in_proportion));
    } else if (NumberOf("schedule.warmup_init") != 0) {
      a_.Error(
          kFlag,
          "--decoupled-lr with --lr-warmup-init cannot be imported: learning rates stay in one proportion",
          "--lr-warmup-init 0");
    } else {
      const auto tied = settings_.find("model.tied_embeddings");
      Add(fmt::format("match = [\"embedding.tokens\"{}]\nlearning_rate = {}\n",
                      tied != settings_.end() ? ", \"head.weight\"" : "", NumberToml(*own)));
    }
  }

  MegatronModelChanges& changes_;
};

}  // namespace

void ConvertMegatronGroups(const MegatronArguments& arguments, MegatronSettings* settings,
                           MegatronRemarks* remarks, MegatronModelChanges* changes) {
  GroupsConverter(arguments, settings, remarks, changes).Convert();
}

}  // namespace engine::import
