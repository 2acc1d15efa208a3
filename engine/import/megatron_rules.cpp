#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <initializer_list>

#include "engine/import/megatron_convert.h"
#include "engine/recipe/rules.h"
#include "engine/recipe/split.h"

namespace engine::import {
namespace {

using Args = MegatronArguments;

std::int64_t Degree(const Args& a, std::string_view flag) {
  return std::max<std::int64_t>(1, a.Int(flag).value_or(1));
}

constexpr std::string_view kTp = "--tensor-model-parallel-size";
constexpr std::string_view kPp = "--pipeline-model-parallel-size";
constexpr std::string_view kCp = "--context-parallel-size";

// Two flags of which Megatron-LM takes one.
void NotBoth(const Args& a, std::string_view one, std::string_view other) {
  if (a.Has(one) && a.Has(other)) {
    a.Error(other, fmt::format("{} and {} contradict each other", one, other), "keep one of them");
  }
}

void RefusedFlags(const Args& a) {
  for (const MegatronArgument& argument : a.command().arguments) {
    if (argument.flag->fate != MegatronFlag::Fate::kRefused) continue;
    a.Error(argument.flag->name,
            fmt::format("{} cannot be imported: {}", argument.flag->name, argument.flag->text),
            argument.flag->hint);
  }
}

void RequiredFlags(const Args& a) {
  if (!a.command().complete) return;  // it may be one of those that could not be read
  for (const std::string_view flag :
       {"--num-layers", "--hidden-size", "--num-attention-heads", "--seq-length", "--max-position-embeddings",
        "--micro-batch-size", "--lr"}) {
    if (!a.Has(flag)) a.Error(flag, fmt::format("{} is missing", flag));
  }
  if (!a.Has("--data-path") && !a.Has("--train-data-path") && !a.Has("--mock-data")) {
    const bool per_split = a.Has("--valid-data-path") || a.Has("--test-data-path");
    const std::string_view missing = per_split ? "--train-data-path" : "--data-path";
    a.Error(missing, fmt::format("{} is missing", missing), "--mock-data trains on random tokens");
  }
  if (!a.Has("--train-iters") && !a.Has("--train-samples")) {
    a.Error("--train-iters", "nothing says how long the training is", "--train-iters or --train-samples");
  }
}

// Splits are parts of the same data sets, or have data sets of their own.
void SplitsAreOfOneKind(const Args& a) {
  for (const std::string_view flag : {"--train-data-path", "--valid-data-path", "--test-data-path"}) {
    NotBoth(a, "--data-path", flag);
    NotBoth(a, "--split", flag);
  }
}

// Of --fim-split-sample Megatron-LM draws with the rate, which has no default.
void FragmentsHaveARate(const Args& a) {
  if (!a.Has("--fim-data") || !a.Has("--fim-split-sample") || a.Has("--fim-fragment-rate")) return;
  a.Error("--fim-split-sample", "--fim-split-sample needs --fim-fragment-rate",
          "--fim-fragment-rate 0.5, or what share of the parts of a document is to be rearranged");
}

void WorldIsShared(const Args& a) {
  const std::int64_t tp = Degree(a, kTp);
  const std::int64_t pp = Degree(a, kPp);
  const std::int64_t cp = Degree(a, kCp);
  const std::int64_t ranks = a.command().world.ranks;
  const std::int64_t model = recipe::ProductOrOverflow({tp, pp, cp});
  if (model > 0 && ranks % model == 0) return;
  const std::string_view flag = a.Has(kTp) ? kTp : a.Has(kPp) ? kPp : kCp;
  a.Error(
      flag,
      fmt::format("{} starts {}, no multiple of tp {} · pp {} · cp {}{}", a.command().world.launcher,
                  recipe::Counted(ranks, "rank"), tp, pp, cp, model > 0 ? fmt::format(" = {}", model) : ""),
      model > 0 ? fmt::format("{} ranks", recipe::NearestMultiples(ranks, model)) : "");
}

void PrecisionIsOne(const Args& a) {
  NotBoth(a, "--bf16", "--fp16");
  NotBoth(a, "--accumulate-allreduce-grads-in-fp32", "--grad-reduce-in-bf16");
  if (a.Has("--grad-reduce-in-bf16") && !a.Has("--bf16")) {
    a.Error("--grad-reduce-in-bf16", "--grad-reduce-in-bf16 goes with --bf16");
  }
  if (a.Has("--fp32-residual-connection") && (a.Has("--bf16") || a.Has("--fp16"))) {
    a.Error("--fp32-residual-connection",
            "--fp32-residual-connection cannot be imported: the residual stream has the format of "
            "precision.compute",
            "remove it to train so");
  }
  if (!a.Has("--fp8-format")) {
    if (a.Has("--fp8-recipe"))
      a.Error("--fp8-recipe", "--fp8-recipe has no --fp8-format", "--fp8-format hybrid");
    return;
  }
  if (!a.Has("--bf16")) {
    a.Error("--fp8-format",
            "--fp8-format needs --bf16: what is not a product of 8-bit operands is in bf16 here");
  }
  if (a.Text("--transformer-impl").value_or("transformer_engine") == "local") {
    a.Error("--fp8-format", "--fp8-format needs --transformer-impl transformer_engine, not local");
  }
  if (a.Number("--fp8-margin").value_or(0) != 0) {
    a.Error("--fp8-margin", "--fp8-margin cannot be imported: scales take the whole range", "--fp8-margin 0");
  }
}

void OverlapHasWhatItNeeds(const Args& a) {
  if (!a.Has("--overlap-param-gather")) return;
  for (const std::string_view flag : {"--use-distributed-optimizer", "--overlap-grad-reduce"}) {
    const bool fsdp = a.Has("--use-megatron-fsdp") || a.Has("--use-custom-fsdp");
    if (a.Has(flag) || fsdp) continue;
    a.Error("--overlap-param-gather", fmt::format("--overlap-param-gather needs {}", flag),
            fmt::format("add {}, or remove it", flag));
  }
}

void SavesHaveAnInterval(const Args& a) {
  if (a.Has("--save") && !a.Has("--save-interval")) {
    a.Error("--save", "--save needs --save-interval", "iterations between checkpoints");
  }
}

// Whether two flags name one folder, as far as the script says.
bool AreOneFolder(const MegatronArgument& one, const MegatronArgument& other) {
  const auto folder = [](const MegatronArgument& argument) {
    const ShellText& value = argument.values.front();
    std::string path = std::filesystem::path(value.text).lexically_normal().string();
    while (path.size() > 1 && path.back() == '/') path.pop_back();
    return std::pair(std::move(path), value.unknown);
  };
  return !one.values.empty() && !other.values.empty() && folder(one) == folder(other);
}

// Otherwise the run would begin with new weights here, and with those of a checkpoint there.
void ARunLoadsWhatItSaved(const Args& a) {
  const MegatronArgument* load = a.Find("--load");
  const MegatronArgument* save = a.Find("--save");
  if (load == nullptr || (save != nullptr && AreOneFolder(*load, *save))) {
    if (load != nullptr && a.Has("--ckpt-step")) {
      a.Error("--ckpt-step",
              "--ckpt-step cannot be imported: a run goes on from the last checkpoint in its folder",
              "remove it, and move later checkpoints out of the folder");
    }
    return;
  }
  const char* hint =
      "remove it to begin with new weights; or --save's folder, if the run goes on with its own";
  if (save == nullptr) {
    a.Error("--load",
            "--load without --save cannot be imported: a run begins with new weights or with its own "
            "checkpoint",
            hint);
    return;
  }
  if (!a.Text("--load") || !a.Text("--save")) return;  // reported: whether they are one is not known
  a.Error(
      "--load",
      fmt::format(
          "--load {} is not --save's folder, {}, and cannot be imported: a run begins with new weights or "
          "with its own checkpoint",
          Shown(*a.Text("--load")), Shown(*a.Text("--save"))),
      hint);
}

// Lengths are all in iterations or all in samples.
void LengthsAreOfOneKind(const Args& a) {
  NotBoth(a, "--train-iters", "--train-samples");
  const auto other = [&](std::string_view length, std::initializer_list<std::string_view> flags) {
    if (!a.Has(length) || (a.Has("--train-iters") && a.Has("--train-samples"))) return;
    for (const std::string_view flag : flags) {
      if (a.Has(flag))
        a.Error(flag, fmt::format("{} contradicts {}", flag, length), "all lengths in one unit");
    }
  };
  other("--train-iters",
        {"--lr-decay-samples", "--lr-warmup-samples", "--lr-wsd-decay-samples", "--rampup-batch-size"});
  other("--train-samples", {"--lr-decay-iters", "--lr-warmup-iters", "--lr-wsd-decay-iters"});
  NotBoth(a, "--lr-warmup-fraction", "--lr-warmup-iters");
  NotBoth(a, "--lr-warmup-fraction", "--lr-warmup-samples");
}

void RecomputeIsWhole(const Args& a) {
  const std::string granularity =
      a.Text("--recompute-granularity").value_or(a.Has("--recompute-activations") ? "selective" : "");
  if (a.Has("--recompute-activations") && granularity == "full") {
    a.Error("--recompute-activations",
            "--recompute-activations is selective, and contradicts granularity full");
  }
  if (granularity == "full" && !a.Has("--recompute-method")) {
    a.Error("--recompute-granularity", "full recomputation needs --recompute-method", "uniform or block");
  }
  if (granularity == "full" && !a.Has("--recompute-num-layers")) {
    a.Error("--recompute-granularity", "full recomputation needs --recompute-num-layers", "1");
  }
  if (granularity != "full" && a.Has("--recompute-method")) {
    a.Error("--recompute-method", "--recompute-method goes with full recomputation alone",
            "--recompute-granularity full, or remove it");
  }
  if (granularity != "selective" && a.Has("--recompute-modules")) {
    a.Error("--recompute-modules", "--recompute-modules goes with selective recomputation alone");
  }
}

void PipelineIsCutOnce(const Args& a) {
  const std::string_view layers = "--num-layers-per-virtual-pipeline-stage";
  const std::string_view stages = "--num-virtual-stages-per-pipeline-rank";
  NotBoth(a, layers, stages);
  const std::string_view flag = a.Has(layers) ? layers : stages;
  const std::int64_t pp = Degree(a, kPp);
  if (a.Has(flag) && pp == 1) {
    a.Error(flag, fmt::format("{} needs a pipeline, but {} is 1", flag, kPp));
  } else if (a.Has(flag) && pp == 2 && a.Has("--no-overlap-p2p-communication")) {
    a.Error(flag, fmt::format("{} needs {} of more than 2 with --no-overlap-p2p-communication", flag, kPp));
  }
}

void ActivationIsOne(const Args& a) {
  NotBoth(a, "--swiglu", "--openai-gelu");
  NotBoth(a, "--swiglu", "--squared-relu");
  for (const std::string_view flag : {"--swiglu", "--openai-gelu", "--squared-relu"})
    NotBoth(a, flag, "--quick-geglu");
  if (a.Number("--glu-linear-offset").value_or(0) != 0) {
    a.Error("--glu-linear-offset",
            "--glu-linear-offset cannot be imported: what a gate multiplies is not shifted",
            "remove it to train so");
  }
}

void PositionsAreOneKind(const Args& a) {
  const std::string kind = a.Text("--position-embedding-type").value_or("");
  if (a.Has("--use-rotary-position-embeddings") && !kind.empty() && kind != "rope") {
    a.Error("--use-rotary-position-embeddings",
            fmt::format("--use-rotary-position-embeddings contradicts --position-embedding-type {}",
                        Shown(kind)));
  }
  const bool yarn = kind == "yarn";
  const bool rope = kind == "rope" || a.Has("--use-rotary-position-embeddings");
  if (a.Has("--no-position-embedding") && !rope && !yarn) {
    a.Error("--no-position-embedding", "--no-position-embedding goes with rotary positions",
            "--position-embedding-type none");
  }
  if (a.Has("--use-rope-scaling") && !rope) {
    a.Error("--use-rope-scaling", "--use-rope-scaling needs --position-embedding-type rope");
  }
  NotBoth(a, "--use-rope-scaling", "--rotary-seq-len-interpolation-factor");
}

// Its rotation is of whole heads, in halves; Megatron-LM refuses the one and ignores the other flags.
void YarnIsWhole(const Args& a) {
  if (a.Text("--position-embedding-type").value_or("") != "yarn") return;
  for (const std::string_view flag :
       {"--yarn-rotary-scaling-factor", "--yarn-original-max-position-embeddings"}) {
    if (!a.Has(flag))
      a.Error("--position-embedding-type", fmt::format("--position-embedding-type yarn needs {}", flag));
  }
  if (a.Number("--rotary-percent").value_or(1) != 1)
    a.Error("--rotary-percent", "--rotary-percent has no effect with YaRN", "--rotary-percent 1.0");
  for (const std::string_view flag : {"--rotary-interleaved", "--rotary-seq-len-interpolation-factor"}) {
    if (a.Has(flag))
      a.Error(flag, fmt::format("--position-embedding-type yarn and {} contradict each other", flag));
  }
}

void HeadsAreGroupedOnPurpose(const Args& a) {
  if (a.Has("--num-query-groups") && !a.Has("--group-query-attention") &&
      a.Int("--num-query-groups") != a.Int("--num-attention-heads")) {
    a.Error("--num-query-groups", "--num-query-groups has no effect without --group-query-attention",
            "add --group-query-attention, or remove it");
  }
}

void ValuesAreTheOnlyOnes(const Args& a) {
  if (a.Has("--weight-decay-incr-style") && a.Text("--weight-decay-incr-style") != "constant") {
    a.Error("--weight-decay-incr-style", "only a constant weight decay can be imported", "constant");
  }
  if (a.Has("--dataloader-type") && a.Text("--dataloader-type") != "single") {
    a.Error("--dataloader-type", "only --dataloader-type single can be imported", "single");
  }
}

}  // namespace

void CheckMegatronRules(const MegatronArguments& arguments) {
  for (void (*rule)(const Args&) :
       {RefusedFlags, RequiredFlags, SplitsAreOfOneKind, FragmentsHaveARate, WorldIsShared, PrecisionIsOne,
        OverlapHasWhatItNeeds, SavesHaveAnInterval, ARunLoadsWhatItSaved, LengthsAreOfOneKind,
        RecomputeIsWhole, PipelineIsCutOnce, CheckMegatronExpertRules, ActivationIsOne, PositionsAreOneKind,
        YarnIsWhole, HeadsAreGroupedOnPurpose, ValuesAreTheOnlyOnes}) {
    rule(arguments);
  }
}

}  // namespace engine::import
