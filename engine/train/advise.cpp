#include "engine/train/advise.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "engine/base/units.h"
#include "engine/plan/print_schedule.h"
#include "engine/recipe/rules.h"
#include "engine/recipe/split.h"
#include "engine/train/compile_recipe.h"
#include "engine/train/learning_rate.h"

namespace engine::train {
namespace {

// One warning a function; each looks at one subject.
struct Subject {
  const recipe::Recipe& recipe;
  const plan::Plan& plan;
  const plan::Prediction& time;
  const plan::DeviceProfile& profile;
  const recipe::RuleContext& report;

  bool on_gpu() const { return recipe.cluster.device != "cpu"; }
  bool has_times() const { return time.missing.empty() && time.iteration_s > 0; }
  // Shorter runs are trials, whose model is thrown away.
  bool is_long() const { return recipe.iterations() >= 1000; }
  double parameters() const { return static_cast<double>(plan.parameter_count); }
};

std::int64_t LargestArena(const plan::Plan& plan) {
  std::int64_t bytes = 0;
  for (const plan::StagePlan& stage : plan.stages) bytes = std::max(bytes, stage.arena_bytes);
  return bytes;
}

const char* LengthKey(const recipe::Recipe& recipe) {
  return recipe.training.iterations > 0 ? "training.iterations" : "training.samples";
}

// -------------------------------------------------------------------------------------------------------
// layout

void TpStaysInANode(const Subject& s) {
  const std::int64_t tp = s.recipe.parallelism.tp;
  const std::int64_t each = s.recipe.cluster.devices_per_node;
  if (!s.on_gpu() || each == 0 || s.recipe.world_size() <= each || each % tp == 0) return;
  s.report.Warn("W101", {"parallelism.tp", "cluster.devices_per_node"},
                fmt::format("tp {} reaches across nodes of {} devices", tp, each),
                fmt::format("tp {}", recipe::NearestDivisors(std::min(tp, each), each)));
}

void PipelineIsBusy(const Subject& s) {
  constexpr double kMostIdle = 0.15;
  const recipe::Parallelism& p = s.recipe.parallelism;
  if (p.pp == 1) return;
  const double bubble = plan::SimulateTimeline(s.plan).bubble;
  if (bubble <= kMostIdle) return;
  // Of 1F1B, interleaved or not: idle = (pp − 1) / (chunks · microbatches + pp − 1).
  const double least =
      std::ceil(static_cast<double>(p.pp - 1) * (1 / kMostIdle - 1) / static_cast<double>(p.virtual_stages));
  s.report.Warn(
      "W102", {"training.micro_batch", "training.global_batch", "parallelism.pp"},
      fmt::format("{:.0f} % of the pipeline's time is idle: {} for {} stages", 100 * bubble,
                  s.recipe.microbatches() == 1 ? "1 microbatch"
                                               : fmt::format("{} microbatches", s.recipe.microbatches()),
                  p.pp),
      fmt::format("{:.0f} or more microbatches; more virtual_stages; or a smaller pp", least));
}

void StagesAreBalanced(const Subject& s) {
  constexpr double kMostExcess = 0.25;
  if (s.plan.stages.size() < 2) return;
  double sum = 0;
  std::size_t fullest = 0;
  for (std::size_t i = 0; i < s.plan.stages.size(); ++i) {
    sum += s.plan.stages[i].flops;
    if (s.plan.stages[i].flops > s.plan.stages[fullest].flops) fullest = i;
  }
  const double excess = s.plan.stages[fullest].flops / (sum / static_cast<double>(s.plan.stages.size())) - 1;
  if (excess <= kMostExcess) return;
  s.report.Warn(
      "W103", {"parallelism.layers_per_stage", "parallelism.pp"},
      fmt::format("stage {} has {:.0f} % more work than the mean stage, and all wait for it", fullest,
                  100 * excess),
      s.recipe.parallelism.layers_per_stage.empty() ? "another pp" : "leave layers_per_stage empty");
}

void ExchangeIsHidden(const Subject& s) {
  constexpr double kMostExposed = 0.25;
  if (!s.has_times() || s.time.exposed <= kMostExposed) return;
  s.report.Warn(
      "W104", {"parallelism.tp", "parallelism.cp", "parallelism.dp", "training.micro_batch"},
      fmt::format("computation is predicted to wait for exchange {:.0f} % of the time", 100 * s.time.exposed),
      "less tp or cp; or a larger micro_batch");
}

void ZeroHasReplicas(const Subject& s) {
  const recipe::Parallelism& p = s.recipe.parallelism;
  if (p.zero_stage == 0 || p.dp * p.cp * p.ep > 1) return;
  s.report.Warn("W105", {"parallelism.zero_stage"},
                fmt::format("zero_stage {} shards over dp and cp, and both are 1", p.zero_stage),
                "zero_stage = 0");
}

// -------------------------------------------------------------------------------------------------------
// device

void PaddingIsSmall(const Subject& s) {
  constexpr double kMostPadding = 0.03;  // of the elements of matrices that a token is multiplied with
  const recipe::Model& m = s.recipe.model;
  const auto hidden = static_cast<double>(m.hidden);
  const auto heads =
      static_cast<double>((2 * m.attention.heads + 2 * s.recipe.kv_heads()) * s.recipe.head_dim());
  const double products = m.mlp.activation == "swiglu" ? 3 : 2;
  const double layer = hidden * (heads + products * static_cast<double>(s.recipe.ffn_hidden()));
  const auto rows = static_cast<double>(s.recipe.padded_vocab());
  const double share = hidden * (rows - static_cast<double>(m.vocab)) /
                       (static_cast<double>(m.layers) * layer + hidden * rows);
  if (share <= kMostPadding) return;
  s.report.Warn(
      "W201", {"model.vocab_multiple", "parallelism.tp", "model.vocab"},
      fmt::format("vocab {} is padded to {} (vocab_multiple {} × tp {}), {:.0f} % of a forward pass", m.vocab,
                  s.recipe.padded_vocab(), m.vocab_multiple, s.recipe.parallelism.tp, 100 * share),
      "a smaller vocab_multiple");
}

void MemoryHasRoom(const Subject& s) {
  constexpr double kMostUsed = 0.95;
  const recipe::Cluster& cluster = s.recipe.cluster;
  if (cluster.memory_bytes == 0) return;
  const std::int64_t used = LargestArena(s.plan) + cluster.reserved_bytes;
  const double share = static_cast<double>(used) / static_cast<double>(cluster.memory_bytes);
  if (share <= kMostUsed) return;
  s.report.Warn("W202", {"training.micro_batch", "cluster.memory_bytes"},
                fmt::format("{} of a device's {} are taken, {:.1f} %", FormatBytes(used),
                            FormatBytes(cluster.memory_bytes), 100 * share),
                "a smaller micro_batch; more recompute; or a higher zero_stage");
}

// Only where less than half of the device is used is the plan without recomputation looked at: to compile it
// takes as long as the rest of the check.
void RecomputeIsNeeded(const Subject& s) {
  const recipe::Cluster& cluster = s.recipe.cluster;
  if (s.recipe.recompute.granularity != "full" || cluster.memory_bytes == 0) return;
  const std::int64_t used = LargestArena(s.plan) + cluster.reserved_bytes;
  if (2 * used > cluster.memory_bytes) return;
  recipe::Recipe without = s.recipe;
  without.recompute.granularity = "none";
  const absl::StatusOr<plan::Plan> other = CompileUnverified(without, {.profile = s.profile});
  if (!other.ok()) return;
  const std::int64_t needed = LargestArena(*other) + cluster.reserved_bytes;
  if (10 * needed > 9 * cluster.memory_bytes) return;
  s.report.Warn("W203", {"recompute.granularity"},
                fmt::format("full recomputation takes {} of a device's {}; without it {} would do",
                            FormatBytes(used), FormatBytes(cluster.memory_bytes), FormatBytes(needed)),
                "granularity = \"none\"; or a larger micro_batch");
}

// Streaming multiprocessors; NVIDIA's data sheets.
std::int64_t Multiprocessors(const std::string& device) {
  if (device == "a100") return 108;
  if (device == "b200") return 148;
  return 132;  // H100 SXM, H200
}

void MicrobatchFillsDevice(const Subject& s) {
  constexpr std::int64_t kTileRows = 128,
                         kTileColumns = 256;  // of cuBLASLt's usual kernels of 16-bit products
  if (!s.on_gpu()) return;
  const recipe::Recipe& r = s.recipe;
  const std::int64_t tokens =
      r.training.micro_batch * r.data.sequence_length / r.parallelism.cp / s.plan.lanes;
  const std::int64_t narrowest = std::min(r.model.hidden, r.ffn_hidden() / r.parallelism.tp);
  const auto cover = [](std::int64_t size, std::int64_t tile) { return (size + tile - 1) / tile; };
  const std::int64_t tiles = cover(tokens, kTileRows) * cover(narrowest, kTileColumns);
  const std::int64_t processors = Multiprocessors(r.cluster.device);
  if (2 * tiles >= processors) return;
  s.report.Warn(
      "W204", {"training.micro_batch", "data.sequence_length", "parallelism.tp", "parallelism.cp"},
      fmt::format("{} tokens of a microbatch × {} features are {} of 128 × 256, for {} multiprocessors",
                  tokens, narrowest, recipe::Counted(tiles, "tile"), processors),
      "a larger micro_batch; less tp or cp");
}

void SizesSuitTensorCores(const Subject& s) {
  constexpr std::int64_t kMultiple = 64;
  if (!s.on_gpu()) return;
  const recipe::Recipe& r = s.recipe;
  const std::int64_t tp = r.parallelism.tp;
  const auto check = [&](std::initializer_list<std::string_view> keys, std::string_view what,
                         std::int64_t size) {
    if (size % kMultiple == 0) return;
    s.report.Warn("W205", keys, fmt::format("{} is {}, no multiple of {}", what, size, kMultiple),
                  fmt::format("{}", recipe::NearestMultiples(size, kMultiple)));
  };
  check({"model.hidden"}, "hidden", r.model.hidden);
  check({"model.mlp.hidden", "model.hidden", "parallelism.tp"}, "mlp.hidden / tp", r.ffn_hidden() / tp);
  check({"model.attention.heads", "model.attention.head_dim", "parallelism.tp"}, "heads × head_dim / tp",
        r.model.attention.heads * r.head_dim() / tp);
}

void GpuMultipliesIn16Bits(const Subject& s) {
  if (!s.on_gpu() || s.recipe.precision.compute != "fp32") return;
  s.report.Warn("W206", {"precision.compute", "cluster.device"},
                fmt::format("products in fp32 on {}", s.recipe.cluster.device),
                "precision.compute = \"bf16\"");
}

void Bf16SumsAreShort(const Subject& s) {
  constexpr std::int64_t kMostTerms = 64;
  const std::int64_t terms = s.recipe.microbatches();
  if (s.recipe.precision.gradient_dtype != "bf16" || terms <= kMostTerms) return;
  s.report.Warn(
      "W207", {"precision.gradient_dtype"},
      fmt::format("gradients of {} microbatches are added up in bf16, which has 8 significant bits", terms),
      "gradient_dtype = \"fp32\"; or a larger micro_batch");
}

void AttentionHasNoDropout(const Subject& s) {
  const double dropout = s.recipe.model.dropout.attention;
  if (!s.on_gpu() || dropout == 0) return;
  s.report.Warn("W208", {"model.dropout.attention"},
                fmt::format("dropout.attention {} keeps attention out of the GPU's fast kernels", dropout),
                "dropout.attention = 0");
}

// -----------------------------------------------------------------------------------------------------
// training

void TrainingOutlastsWarmup(const Subject& s) {
  const recipe::Schedule& schedule = s.recipe.schedule;
  const ScheduleLengths lengths = LengthsOf(s.recipe);
  const double trained = static_cast<double>(s.recipe.iterations() * s.recipe.training.global_batch);
  if (lengths.warmup == 0 || trained > lengths.warmup) return;
  const char* key = schedule.warmup_iterations > 0 ? "schedule.warmup_iterations"
                    : schedule.warmup_samples > 0  ? "schedule.warmup_samples"
                                                   : "schedule.warmup_fraction";
  s.report.Warn("W301", {LengthKey(s.recipe), key},
                fmt::format("the training ends after {:.0f} samples, and its warm-up after {:.0f}", trained,
                            lengths.warmup),
                "a shorter warm-up; or a longer training");
}

void DecayFitsTraining(const Subject& s) {
  constexpr double kMostBeyond = 1.25;
  const recipe::Schedule& schedule = s.recipe.schedule;
  if (schedule.kind == "constant" || schedule.kind == "inverse_sqrt" || !s.is_long()) return;
  const ScheduleLengths lengths = LengthsOf(s.recipe);
  const std::int64_t samples = s.recipe.iterations() * s.recipe.training.global_batch;
  const double trained = static_cast<double>(samples);
  const char* key = schedule.decay_samples > 0 ? "schedule.decay_samples" : "schedule.decay_iterations";
  if (lengths.decay > kMostBeyond * trained) {
    s.report.Warn(
        "W302", {LengthKey(s.recipe), key},
        fmt::format(
            "the decay takes {:.0f} samples, the training {:.0f}: it ends at a learning rate of {:.2g}, "
            "not {:.2g}",
            lengths.decay, trained, LearningRate(s.recipe, samples), schedule.min_learning_rate),
        "a decay as long as the training");
  } else if (lengths.decay < trained && schedule.min_learning_rate == 0) {
    s.report.Warn("W303", {key, LengthKey(s.recipe)},
                  fmt::format("the decay to a learning rate of 0 ends after {:.0f} of {:.0f} samples",
                              lengths.decay, trained),
                  "a min_learning_rate; or a decay as long as the training");
  }
}

void ThereIsWarmup(const Subject& s) {
  if (!s.is_long() || LengthsOf(s.recipe).warmup > 0) return;
  s.report.Warn("W304", {"schedule.warmup_iterations", "schedule.kind", "optimizer.learning_rate"},
                "there is no warm-up of the learning rate", "schedule.warmup_fraction = 0.01");
}

void RateSuitsSize(const Subject& s) {
  constexpr double kMostAbove = 5;
  // Through the eight sizes of arXiv 2005.14165, table 2.1: 6e-4 at 125M, 0.6e-4 at 175B.
  const double usual = 6e-4 * std::pow(s.parameters() / 125e6, -0.32);
  const double rate = s.recipe.optimizer.learning_rate;
  if (rate <= kMostAbove * usual) return;
  s.report.Warn("W305", {"optimizer.learning_rate"},
                fmt::format("learning_rate {} is {:.0f} times what models of {} parameters usually take",
                            rate, rate / usual, FormatCount(s.parameters())),
                fmt::format("about {:.1e}", usual));
}

void LargeModelsForgetFaster(const Subject& s) {
  constexpr double kLarge = 2e9;
  const double beta2 = s.recipe.optimizer.beta2;
  if (s.parameters() < kLarge || beta2 <= 0.99) return;
  s.report.Warn("W306", {"optimizer.beta2", "optimizer.learning_rate"},
                fmt::format("beta2 {} for {} parameters", beta2, FormatCount(s.parameters())),
                "beta2 = 0.95");
}

void GradientsAreClipped(const Subject& s) {
  if (!s.is_long() || s.recipe.optimizer.clip_grad_norm > 0) return;
  s.report.Warn("W307", {"optimizer.clip_grad_norm"}, "gradients are not clipped", "clip_grad_norm = 1.0");
}

void TokensSuitSize(const Subject& s) {
  const double tokens = static_cast<double>(s.recipe.iterations()) *
                        static_cast<double>(s.recipe.training.global_batch) *
                        static_cast<double>(s.recipe.data.sequence_length);
  if (!s.is_long() || tokens >= s.parameters()) return;
  s.report.Warn("W308", {LengthKey(s.recipe), "training.global_batch"},
                fmt::format("{} tokens of training for {} parameters", FormatCount(tokens),
                            FormatCount(s.parameters())),
                "about 20 tokens a parameter are the best use of computation");
}

void PositionsAreTrained(const Subject& s) {
  const recipe::Model& m = s.recipe.model;
  if (m.attention.position != "learned" || m.max_positions <= s.recipe.data.sequence_length) return;
  s.report.Warn(
      "W309", {"data.sequence_length", "model.max_positions"},
      fmt::format("positions {} to {} of the learned table are never trained: sequence_length is {}",
                  s.recipe.data.sequence_length, m.max_positions - 1, s.recipe.data.sequence_length),
      fmt::format("max_positions {}", s.recipe.data.sequence_length));
}

void WindowIsShort(const Subject& s) {
  const std::int64_t window = s.recipe.model.attention.window;
  if (window == 0 || window < s.recipe.data.sequence_length) return;
  s.report.Warn(
      "W310", {"model.attention.window", "data.sequence_length"},
      fmt::format("a window of {} does nothing to sequences of {}", window, s.recipe.data.sequence_length),
      "a window below sequence_length; or 0");
}

void WeightsDecay(const Subject& s) {
  if (!s.is_long() || s.recipe.optimizer.weight_decay > 0) return;
  s.report.Warn("W311", {"optimizer.weight_decay"}, "weight_decay is 0", "weight_decay = 0.1");
}

// ----------------------------------------------------------------------------------------------------------
// run

void CheckpointsAreOften(const Subject& s) {
  constexpr double kMostSeconds = 3600;
  if (!s.has_times()) return;
  const std::int64_t interval = s.recipe.checkpoint.interval;
  const std::int64_t between =
      interval == 0 ? s.recipe.iterations() : std::min(interval, s.recipe.iterations());
  const double seconds = static_cast<double>(between) * s.time.iteration_s;
  if (seconds <= kMostSeconds) return;
  s.report.Warn(
      "W401", {"checkpoint.interval", LengthKey(s.recipe)},
      fmt::format("{} iterations of {:.2g} s, {:.1f} hours, between checkpoints", between, s.time.iteration_s,
                  seconds / 3600),
      fmt::format("an interval of at most {:.0f}", std::max(1.0, std::floor(3600 / s.time.iteration_s))));
}

void EvaluationRuns(const Subject& s) {
  const std::int64_t interval = s.recipe.evaluation.interval;
  if (interval > s.recipe.iterations()) {
    s.report.Warn("W402", {"evaluation.interval", LengthKey(s.recipe)},
                  fmt::format("evaluation.interval {} is never reached in {} iterations", interval,
                              s.recipe.iterations()),
                  fmt::format("an interval of at most {}", s.recipe.iterations()));
  } else if (interval == 0 && s.is_long() && (*recipe::ParseSplit(s.recipe.data.split))[1] > 0) {
    s.report.Warn("W402", {"evaluation.interval", LengthKey(s.recipe)},
                  fmt::format("split \"{}\" sets validation data aside, and evaluation.interval is 0",
                              s.recipe.data.split),
                  "evaluation.interval = 1000; or a split without a second share");
  }
}

void CheckpointsAreFew(const Subject& s) {
  constexpr std::int64_t kMost = 50;
  const recipe::Checkpoint& c = s.recipe.checkpoint;
  if (c.interval == 0 || c.keep > 0 || s.recipe.iterations() / c.interval <= kMost) return;
  const std::int64_t count = s.recipe.iterations() / c.interval;
  constexpr double kBytesAParameter = 12;  // the weight and two moments, in fp32
  s.report.Warn("W403", {"checkpoint.keep", "checkpoint.interval"},
                fmt::format("{} checkpoints are kept, {} together", count,
                            FormatBytes(static_cast<std::int64_t>(static_cast<double>(count) *
                                                                  kBytesAParameter * s.parameters()))),
                "keep = 3");
}

constexpr void (*kWarnings[])(const Subject&) = {
    TpStaysInANode,        PipelineIsBusy,          StagesAreBalanced,     ExchangeIsHidden,
    ZeroHasReplicas,       PaddingIsSmall,          MemoryHasRoom,         RecomputeIsNeeded,
    MicrobatchFillsDevice, SizesSuitTensorCores,    GpuMultipliesIn16Bits, Bf16SumsAreShort,
    AttentionHasNoDropout, TrainingOutlastsWarmup,  DecayFitsTraining,     ThereIsWarmup,
    RateSuitsSize,         LargeModelsForgetFaster, GradientsAreClipped,   TokensSuitSize,
    PositionsAreTrained,   WindowIsShort,           WeightsDecay,          CheckpointsAreOften,
    EvaluationRuns,        CheckpointsAreFew};

}  // namespace

std::vector<Diagnostic> Advise(const recipe::Recipe& recipe, const plan::Plan& plan,
                               const plan::Prediction& time, const plan::DeviceProfile& profile) {
  std::vector<Diagnostic> warnings;
  const recipe::RuleContext report(recipe, &warnings);
  const Subject subject{recipe, plan, time, profile, report};
  for (void (*const warn)(const Subject&) : kWarnings) warn(subject);
  SortAndUnique(&warnings);
  return warnings;
}

}  // namespace engine::train
