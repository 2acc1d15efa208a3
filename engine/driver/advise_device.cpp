// Warnings of the layout and of what the device makes of the recipe.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "engine/base/units.h"
#include "engine/driver/advise_subject.h"
#include "engine/driver/compile_recipe.h"
#include "engine/plan/print_schedule.h"

namespace engine::driver {
namespace {

// -------------------------------------------------------------------------------------------------------
// layout

void TpStaysInANode(const AdviceSubject& s) {
  const std::int64_t tp = s.recipe.parallelism.tp;
  const std::int64_t each = s.recipe.cluster.devices_per_node;
  if (!s.on_gpu() || each == 0 || s.recipe.world_size() <= each || each % tp == 0) return;
  s.report.Warn("W101", {"parallelism.tp", "cluster.devices_per_node"},
                fmt::format("tp {} reaches across nodes of {} devices", tp, each),
                fmt::format("tp {}", recipe::NearestDivisors(std::min(tp, each), each)));
}

void PipelineIsBusy(const AdviceSubject& s) {
  constexpr double kMostIdle = 0.15;
  const recipe::Parallelism& p = s.recipe.parallelism;
  if (p.pp == 1) return;
  const double bubble = plan::SimulateTimeline(s.plan).bubble;
  if (bubble <= kMostIdle) return;
  // The idle share of 1F1B, interleaved or not, is (pp − 1) / (chunks · microbatches + pp − 1).
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

void StagesAreBalanced(const AdviceSubject& s) {
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

void ExchangeIsHidden(const AdviceSubject& s) {
  constexpr double kMostExposed = 0.25;
  if (!s.has_times() || s.time.exposed <= kMostExposed) return;
  s.report.Warn(
      "W104", {"parallelism.tp", "parallelism.cp", "parallelism.dp", "training.micro_batch"},
      fmt::format("computation is predicted to wait for exchange {:.0f} % of the time", 100 * s.time.exposed),
      "less tp or cp; or a larger micro_batch");
}

void ZeroHasReplicas(const AdviceSubject& s) {
  const recipe::Parallelism& p = s.recipe.parallelism;
  if (p.zero_stage == 0 || p.dp * p.cp * p.ep > 1) return;
  s.report.Warn("W105", {"parallelism.zero_stage"},
                fmt::format("zero_stage {} shards over dp and cp, and both are 1", p.zero_stage),
                "zero_stage = 0");
}

// Shards of gradients are summed in fp32, so that of two ranks they take what whole gradients in bf16 do. To
// compile the other plan takes as long as the rest of the check.
void ZeroTwoSavesMemory(const AdviceSubject& s) {
  const recipe::Parallelism& p = s.recipe.parallelism;
  if (p.zero_stage != 2 || s.recipe.precision.gradient_dtype != "bf16" || p.dp * p.cp * p.ep == 1) return;
  recipe::Recipe one = s.recipe;
  one.parallelism.zero_stage = 1;
  const absl::StatusOr<plan::Plan> other = CompileUnverified(one, {.profile = s.profile});
  if (!other.ok() || LargestArena(*other) >= LargestArena(s.plan)) return;
  s.report.Warn(
      "W106", {"parallelism.zero_stage", "precision.gradient_dtype", "parallelism.dp"},
      fmt::format("zero_stage 2 takes {} of a device, zero_stage 1 {}: gradients are bf16, and their "
                  "shards fp32",
                  FormatBytes(LargestArena(s.plan)), FormatBytes(LargestArena(*other))),
      "zero_stage = 1");
}

// -------------------------------------------------------------------------------------------------------
// device

constexpr double kMostPadding = 0.03;  // of the elements of matrices that a token is multiplied with

// Of a model whose steps are text, by what its plan stores: a table that a token is not multiplied with counts too.
void PaddingOfTextIsSmall(const AdviceSubject& s) {
  double padding = 0;
  double all = 0;
  for (const plan::PlanParameter& parameter : s.plan.parameters) {
    if (!graph::FactsOf(parameter.role).bulk) continue;
    const auto stored =
        static_cast<double>(s.plan.values[static_cast<std::size_t>(parameter.value)].shape.elements());
    all += stored;
    padding += stored - static_cast<double>(parameter.logical_shape.elements());
  }
  if (all == 0 || padding / all <= kMostPadding) return;
  s.report.Warn("W201", {"model.vocab_multiple", "parallelism.tp", "model.dims"},
                fmt::format("vocab {} is padded to {} (vocab_multiple {} × tp {}), {:.0f} % of all matrices",
                            s.recipe.model.vocab, s.recipe.padded_vocab(), s.recipe.model.vocab_multiple,
                            s.recipe.parallelism.tp, 100 * padding / all),
                "a smaller vocab_multiple");
}

void PaddingIsSmall(const AdviceSubject& s) {
  if (!s.is_decoder()) return PaddingOfTextIsSmall(s);
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

void MemoryHasRoom(const AdviceSubject& s) {
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
void RecomputeIsNeeded(const AdviceSubject& s) {
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

void GpuMultipliesIn16Bits(const AdviceSubject& s) {
  if (!s.on_gpu() || s.recipe.precision.compute != "fp32") return;
  s.report.Warn("W206", {"precision.compute", "cluster.device"},
                fmt::format("products in fp32 on {}", s.recipe.cluster.device),
                "precision.compute = \"bf16\"");
}

void Bf16SumsAreShort(const AdviceSubject& s) {
  constexpr std::int64_t kMostTerms = 64;
  const std::int64_t terms = s.recipe.microbatches();
  if (s.recipe.precision.gradient_dtype != "bf16" || terms <= kMostTerms) return;
  s.report.Warn(
      "W207", {"precision.gradient_dtype"},
      fmt::format("gradients of {} microbatches are added up in bf16, which has 8 significant bits", terms),
      "gradient_dtype = \"fp32\"; or a larger micro_batch");
}

constexpr Advice kDeviceAdvice[] = {TpStaysInANode,        PipelineIsBusy,  StagesAreBalanced,
                                    ExchangeIsHidden,      ZeroHasReplicas, ZeroTwoSavesMemory,
                                    PaddingIsSmall,        MemoryHasRoom,   RecomputeIsNeeded,
                                    GpuMultipliesIn16Bits, Bf16SumsAreShort};

}  // namespace

std::span<const Advice> DeviceAdvice() { return kDeviceAdvice; }

}  // namespace engine::driver
