#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/import/megatron_flags.h"
#include "engine/import/megatron_writer.h"
#include "engine/recipe/fields.h"
#include "engine/recipe/split.h"

namespace engine::import {
namespace {

class TrainingConverter : MegatronWriter {
 public:
  TrainingConverter(const MegatronArguments& arguments, MegatronSettings* settings, MegatronRemarks* remarks)
      : MegatronWriter(arguments, settings, remarks) {}

  void Convert() {
    Optimizer();
    Schedule();
    Precision();
    Fp8History();
    LossScale();
    Recompute();
    Saving();
    Loading();
    Evaluation();
    Logging();
  }

 private:
  // Megatron-LM reads the flags of all its optimizers, and uses those of one.
  void Optimizer() {
    Translate("--optimizer", "optimizer.kind", {{"adam", "adamw"}, {"sgd", "sgd"}});
    const auto found = settings_.find("optimizer.kind");
    const std::string kind =
        found == settings_.end() ? recipe::Optimizer().kind : std::get<std::string>(found->second.value);
    for (const MegatronArgument& argument : a_.command().arguments) {
      if (argument.flag->fate != MegatronFlag::Fate::kDirect) continue;
      const recipe::Field& field = *recipe::FindField(argument.flag->text);
      const recipe::Condition* condition = field.ConditionOn("optimizer.kind");
      if (condition == nullptr || condition->word == kind) continue;
      settings_.erase(field.key);
      Remark(argument.flag->name, fmt::format("no effect on the optimizer {}", kind));
    }
  }

  void Schedule() {
    SetIfAbsent("schedule.kind", std::string("linear"), kDefault);
    Translate("--lr-decay-style", "schedule.kind",
              {{"constant", "constant"},
               {"linear", "linear"},
               {"cosine", "cosine"},
               {"inverse-square-root", "inverse_sqrt"},
               {"WSD", "wsd"}});
    Translate("--lr-wsd-decay-style", "schedule.wsd_decay_kind",
              {{"linear", "linear"},
               {"cosine", "cosine"},
               {"exponential", "exponential"},
               {"minus_sqrt", "minus_sqrt"}});
  }

  void Precision() {
    const bool fp16 = a_.Has("--fp16");
    const char* format = fp16 ? "fp16" : a_.Has("--bf16") ? "bf16" : "fp32";
    std::string comment;
    if (fp16 && !a_.Has("--accumulate-allreduce-grads-in-fp32")) {
      comment = "gradients are summed in fp32 here, in fp16 by Megatron-LM";
    } else if (!fp16 && !a_.Has("--bf16")) {
      comment = kDefault;
    }
    Set("precision.compute", std::string(format), comment,
        fp16               ? "--fp16"
        : a_.Has("--bf16") ? "--bf16"
                           : "");
    if (a_.Has("--fp8-format")) {
      Translate("--fp8-format", "precision.fp8_gradients", {{"hybrid", "e5m2"}, {"e4m3", "e4m3"}});
      Set("precision.compute", std::string("fp8"), "and bf16", "--fp8-format");
      Translate("--fp8-recipe", "precision.fp8_scaling", {{"delayed", "delayed"}, {"tensorwise", "current"}});
    }
    if (a_.Has("--fp32-residual-connection")) Remark("--fp32-residual-connection", "all is in fp32");
    if (a_.Has("--grad-reduce-in-bf16")) {
      Set("precision.gradient_dtype", std::string("bf16"), "", "--grad-reduce-in-bf16");
    }
    const bool deterministic = a_.Has("--deterministic-mode");
    Set("precision.deterministic", deterministic, deterministic ? "" : kDefault,
        deterministic ? "--deterministic-mode" : "");
  }

  // Megatron-LM's defaults, a history of 1 or the most recent of a longer one, are what is done here.
  void Fp8History() {
    const bool longer = a_.Int("--fp8-amax-history-len").value_or(1) > 1 &&
                        a_.Text("--fp8-amax-compute-algo").value_or("most_recent") == "max";
    const bool delayed = a_.Has("--fp8-format") && a_.Text("--fp8-recipe").value_or("delayed") == "delayed";
    for (const char* flag : {"--fp8-amax-history-len", "--fp8-amax-compute-algo"}) {
      if (!a_.Has(flag)) continue;
      if (!delayed) {
        Remark(flag, "no effect without delayed scaling in fp8");
      } else if (longer) {
        Warn(flag, "a tensor's scale comes of its largest value in one iteration, not in several");
      } else {
        Remark(flag, "a tensor's scale comes of its largest value in one iteration");
      }
    }
  }

  // Sets the key, unless the flag's value is the recipe's default.
  void LossScaleNumber(const char* flag, const char* key) {
    const std::optional<double> value = a_.Number(flag);
    if (value && *value != std::get<double>(recipe::DefaultOf(*recipe::FindField(key))))
      Set(key, *value, "", flag);
  }
  void LossScaleCount(const char* flag, const char* key, std::optional<std::int64_t> value) {
    if (value && *value != std::get<std::int64_t>(recipe::DefaultOf(*recipe::FindField(key))))
      Set(key, *value, "", flag);
  }

  // Megatron-LM declares it as a float, and compares it with a count of iterations.
  void LossScaleWindow() {
    constexpr const char* kFlag = "--loss-scale-window";
    const std::optional<double> window = a_.Number(kFlag);
    if (!window) return;
    if (!(*window > 0 && *window <= 1e15)) {
      a_.Error(kFlag, fmt::format("{} {} is no number of iterations", kFlag, *window), "1 to 1e15");
      return;
    }
    LossScaleCount(kFlag, "precision.loss_scale_window", static_cast<std::int64_t>(std::ceil(*window)));
  }

  void LossScale() {
    const bool fp16 = a_.Has("--fp16");
    constexpr const char* kStatic = "--loss-scale";
    const bool is_static = a_.Number(kStatic).value_or(0) != 0;
    if (fp16 && !is_static) {
      LossScaleNumber("--initial-loss-scale", "precision.initial_loss_scale");
      LossScaleNumber("--min-loss-scale", "precision.min_loss_scale");
      LossScaleWindow();
      LossScaleCount("--hysteresis", "precision.loss_scale_hysteresis", a_.Int("--hysteresis"));
      return;
    }
    if (fp16) LossScaleNumber(kStatic, "precision.loss_scale");
    for (const char* flag :
         {"--initial-loss-scale", "--min-loss-scale", "--loss-scale-window", "--hysteresis"}) {
      if (a_.Has(flag)) Remark(flag, fp16 ? "no effect with --loss-scale" : "no effect without --fp16");
    }
    if (!fp16 && a_.Has(kStatic)) Remark(kStatic, "only fp16 has one; what it multiplies, it divides again");
  }

  void Recompute() {
    Translate("--recompute-granularity", "recompute.granularity",
              {{"full", "full"}, {"selective", "selective"}});
    const bool short_form = a_.Has("--recompute-activations") && !a_.Has("--recompute-granularity");
    if (short_form) Set("recompute.granularity", std::string("selective"), "", "--recompute-activations");
    const auto granularity = settings_.find("recompute.granularity");
    if (granularity == settings_.end()) return;
    if (std::get<std::string>(granularity->second.value) != "selective") return;
    std::vector<std::string> modules;
    for (const std::string& module : a_.List("--recompute-modules")) {
      if (module == "core_attn") {
        modules.emplace_back("attention");
      } else if (module == "layernorm") {
        modules.emplace_back("norm");
      } else {
        a_.Error("--recompute-modules",
                 fmt::format("--recompute-modules {} cannot be imported", Shown(module)),
                 "core_attn, layernorm");
      }
    }
    const bool given = a_.Has("--recompute-modules");
    if (modules.empty()) modules.emplace_back("attention");
    Set("recompute.modules", std::move(modules), given ? "" : "core_attn, Megatron-LM's default",
        given ? "--recompute-modules" : "");
  }

  void Saving() {
    if (const std::optional<std::int64_t> interval = a_.Int("--save-interval")) {
      if (a_.Has("--save")) {
        Set("checkpoint.interval", *interval, "", "--save-interval");
      } else {
        Remark("--save-interval", "no effect without --save");
      }
    }
    constexpr const char* kInMemory = "--non-persistent-save-interval";
    if (const std::optional<std::int64_t> interval = a_.Int(kInMemory)) {
      Set("checkpoint.memory", true, "", kInMemory);
      Set("checkpoint.memory_interval", *interval, "", kInMemory);
    }
    SetIfAbsent("logging.interval", std::int64_t{100}, kDefault);
  }

  void Logging() {
    std::vector<std::string> sinks;
    if (a_.Has("--tensorboard-dir")) sinks.emplace_back("tensorboard");
    if (const std::optional<std::string> project = a_.Text("--wandb-project"); project && !project->empty()) {
      sinks.emplace_back("wandb");
      Set("logging.wandb.project", *project, "", "--wandb-project");
    }
    if (sinks.empty()) return;
    Set("logging.sinks", std::move(sinks), "",
        a_.Has("--tensorboard-dir") ? "--tensorboard-dir" : "--wandb-project");
  }

  void Evaluation() {
    const std::optional<std::int64_t> interval = a_.Int("--eval-interval");
    const std::optional<std::int64_t> batches = a_.Int("--eval-iters");
    const char* why = !interval                  ? "no --eval-interval: never"
                      : batches.value_or(1) == 0 ? "--eval-iters 0: never"
                                                 : WithoutValidation();
    if (why != nullptr) {
      Set("evaluation.interval", std::int64_t{0}, why, interval ? "--eval-interval" : "");
      return;
    }
    Set("evaluation.interval", *interval, "", "--eval-interval");
    Set("evaluation.iterations", batches.value_or(100), batches ? "" : kDefault,
        batches ? "--eval-iters" : "");
  }

  // Flags beside --load, which is --save's folder or not given.
  void Loading() {
    if (a_.Has("--load")) {
      Remark("--load", "a run goes on from the last checkpoint in its own folder");
      if (a_.Has("--no-load-optim")) Warn("--no-load-optim", "a run goes on with the optimizer's state, too");
      if (a_.Has("--exit-on-missing-checkpoint")) {
        Warn("--exit-on-missing-checkpoint", "a run without a checkpoint begins");
      }
      return;
    }
    for (const char* flag : {"--ckpt-step", "--no-load-optim", "--exit-on-missing-checkpoint"}) {
      if (a_.Has(flag)) Remark(flag, "no effect without --load");
    }
  }

  // Why there is nothing to evaluate; null: there is.
  const char* WithoutValidation() const {
    const bool lists = a_.Has("--train-data-path") && !a_.Has("--mock-data");  // which takes no paths
    if (lists && !a_.Has("--valid-data-path")) return "no --valid-data-path: never";
    const std::optional<std::string> split = a_.Text("--split");
    if (!split) return nullptr;
    const absl::StatusOr<std::array<double, 3>> shares = recipe::ParseSplit(*split);
    return shares.ok() && (*shares)[1] == 0 ? "--split leaves no validation data: never" : nullptr;
  }
};

}  // namespace

void ConvertMegatronTraining(const MegatronArguments& arguments, MegatronSettings* settings,
                             MegatronRemarks* remarks) {
  TrainingConverter(arguments, settings, remarks).Convert();
}

}  // namespace engine::import
