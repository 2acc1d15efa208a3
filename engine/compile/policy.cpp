#include "engine/compile/policy.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "engine/base/units.h"
#include "engine/plan/plan.h"
#include "engine/recipe/batch_size.h"

namespace engine::compile {
namespace {

bool Overlaps(const recipe::Recipe& recipe, const CompileOptions& options) {
  const std::string& overlap = recipe.parallelism.overlap;
  return options.training && (overlap == "on" || (overlap == "auto" && options.profile.overlaps));
}

std::string ScheduleOf(const recipe::Parallelism& parallelism) {
  if (parallelism.schedule != "auto") return parallelism.schedule;
  return parallelism.virtual_stages > 1 ? "interleaved" : "1f1b";
}

bool ExchangesActivations(const recipe::Recipe& recipe) {
  const recipe::Parallelism& p = recipe.parallelism;
  return p.tp > 1 || p.cp > 1 || p.ep > 1;
}

// Why exchange of activations does not run behind computation although it might; empty: it does.
std::string ExposedNote(const recipe::Recipe& recipe, const CompileOptions& options) {
  if (!Overlaps(recipe, options) || !ExchangesActivations(recipe) || Halves(recipe, options) > 1) return "";
  const std::int64_t micro_batch = recipe.training.micro_batch;
  std::string why;
  if (recipe.offload.activation_layers > 0) {
    why = "offload.activation_layers is for whole microbatches";
  } else if (micro_batch % 2 != 0) {
    why = fmt::format("micro_batch {} has no two halves", micro_batch);
    if (recipe.parallelism.pp == 1 && recipe.microbatches() % 2 == 0)
      why += fmt::format("; with {}, each half is what a microbatch is now", 2 * micro_batch);
  } else if (micro_batch % (2 * recipe.model.sample_group) != 0) {
    why = fmt::format("half of micro_batch {} has a part of {} samples that are counted together",
                      micro_batch, recipe.model.sample_group);
  } else if (ZeroStageOf(recipe.parallelism) > 1) {
    why =
        "shards of gradients are exchanged in each microbatch, beside NCCL's exchange of halves or half by "
        "half";
  } else {
    why = "what dp exchanges between hosts would hold up the halves' own exchange, by the predicted time";
  }
  const std::string_view axes = recipe.parallelism.ep > 1 ? "tp, cp and ep" : "tp and cp";
  return fmt::format("exchange over {} is not hidden behind computation: {}", axes, why);
}

// Whether the ranks of a group along this axis are always in one aligned block of so many devices; 0: of all.
bool InBlock(std::int64_t devices, const plan::Mesh& mesh, graph::Axis axis) {
  if (devices == 0) return true;
  std::int64_t span = 1;  // ranks from the first to the last of a group, in aligned blocks
  for (graph::Axis inner : {graph::Axis::kTp, graph::Axis::kCp, graph::Axis::kEp, graph::Axis::kDp}) {
    span *= mesh.size(inner);
    if (inner == axis) break;
  }
  return devices % span == 0;
}

bool OnOneHost(const recipe::Recipe& recipe, const plan::Mesh& mesh, graph::Axis axis) {
  return InBlock(recipe.cluster.devices_per_node, mesh, axis);
}

// Devices of a block within which ranks may push; 0: all.
std::int64_t PushingBlock(const recipe::Recipe& recipe, const CompileOptions& options) {
  return std::gcd(recipe.cluster.devices_per_node, options.profile.reach);
}

// The axes along which conversions are pushed, where ranks push within aligned blocks of so many devices.
plan::AxisSet PushedAxes(const recipe::Recipe& recipe, const plan::Mesh& mesh, const CompileOptions& options,
                         std::int64_t block) {
  plan::AxisSet axes;
  if (recipe.parallelism.exchange == "nccl" || !options.profile.pushes) return axes;
  for (graph::Axis axis : graph::kAxes) {
    if (mesh.size(axis) > 1 && InBlock(block, mesh, axis)) axes = axes | plan::AxisSet::Of(axis);
  }
  return axes;
}

plan::AxisSet PushedAxes(const recipe::Recipe& recipe, const plan::Mesh& mesh,
                         const CompileOptions& options) {
  return PushedAxes(recipe, mesh, options, PushingBlock(recipe, options));
}

// Whether the pipeline's transfers are pushed, likewise.
bool TransfersArePushed(const recipe::Recipe& recipe, const plan::Mesh& mesh, const CompileOptions& options,
                        std::int64_t block) {
  return recipe.parallelism.exchange != "nccl" && options.profile.pushes &&
         (block == 0 || mesh.world() <= block);
}

bool TransfersArePushed(const recipe::Recipe& recipe, const plan::Mesh& mesh, const CompileOptions& options) {
  return TransfersArePushed(recipe, mesh, options, PushingBlock(recipe, options));
}

// That ranks exchange by NCCL which would push within `wide` blocks, but do not within `narrow` ones.
void NoteNotPushed(const recipe::Recipe& recipe, const CompileOptions& options, std::int64_t wide,
                   std::int64_t narrow, const std::string& why, Policy* policy) {
  const plan::Mesh& mesh = policy->mesh;
  const plan::AxisSet wanted = PushedAxes(recipe, mesh, options, wide);
  const plan::AxisSet pushed = PushedAxes(recipe, mesh, options, narrow);
  std::vector<std::string_view> axes;
  for (graph::Axis axis : graph::kAxes) {
    const bool pushes =
        axis != graph::Axis::kDp || (recipe.parallelism.zero_stage > 0 && Overlaps(recipe, options));
    if (pushes && wanted.Has(axis) && !pushed.Has(axis))
      axes.push_back(graph::kAxisNames[static_cast<size_t>(axis)]);
  }
  if (mesh.pp > 1 && TransfersArePushed(recipe, mesh, options, wide) &&
      !TransfersArePushed(recipe, mesh, options, narrow)) {
    axes.emplace_back("pp");
  }
  if (axes.empty()) return;
  policy->notes.push_back(
      fmt::format("ranks of {} exchange by NCCL, not by copy engines: {}", fmt::join(axes, ", "), why));
}

absl::Status CheckPushed(const recipe::Recipe& recipe, const plan::Mesh& mesh,
                         const CompileOptions& options) {
  const std::string& exchange = recipe.parallelism.exchange;
  if (exchange != "push" || !options.profile.pushes) return absl::OkStatus();
  for (graph::Axis axis : graph::kAxes) {
    if (axis == graph::Axis::kDp || mesh.size(axis) == 1) continue;
    const std::string_view name = graph::kAxisNames[static_cast<size_t>(axis)];
    if (OnOneHost(recipe, mesh, axis)) {
      if (InBlock(PushingBlock(recipe, options), mesh, axis)) continue;
      return InvalidArgument(
          "parallelism.exchange \"{}\": {}, of ranks of {} {}; \"auto\" pushes where it can", exchange,
          options.profile.unreachable, name, mesh.size(axis));
    }
    return InvalidArgument(
        "parallelism.exchange \"{}\": ranks of {} {} are not on one host of {} devices; \"auto\" "
        "pushes where it can",
        exchange, name, mesh.size(axis), recipe.cluster.devices_per_node);
  }
  return absl::OkStatus();
}

// Then no other collective of NCCL runs beside those of buckets: two communicators at once could wait for
// each other.
bool ConversionsArePushed(const recipe::Recipe& recipe, plan::AxisSet pushed) {
  return (recipe.parallelism.tp == 1 || pushed.Has(graph::Axis::kTp)) &&
         (recipe.parallelism.cp == 1 || pushed.Has(graph::Axis::kCp)) &&
         (recipe.parallelism.ep == 1 || pushed.Has(graph::Axis::kEp));
}

// Whether what dp exchanges between hosts stands before the halves' own exchange (if they run in turns), on the
// same stream, as NCCL does both.
bool HoldsUpHalves(const recipe::Recipe& recipe, const CompileOptions& options) {
  const plan::Mesh mesh = plan::Mesh::Of(recipe.parallelism);
  return !OnOneHost(recipe, mesh, graph::Axis::kDp) &&
         !ConversionsArePushed(recipe, PushedAxes(recipe, mesh, options));
}

RecomputePolicy RecomputeOf(const recipe::Recompute& recompute) {
  if (recompute.granularity == "full") return {.all = true, .modules = {}};
  if (recompute.granularity == "selective") return {.all = false, .modules = recompute.modules};
  if (recompute.granularity == "cheap") return {.all = false, .modules = {"norm", "activation"}};
  return {};
}

Fp8Options Fp8Of(const recipe::Precision& precision) {
  if (precision.compute != "fp8") return {};
  return {.gradients = precision.fp8_gradients,
          .current = precision.fp8_scaling == "current",
          .head = precision.fp8_head};
}

const plan::OptimizerDef* EntryOf(const recipe::Optimizer& optimizer) {
  const plan::OptimizerDef* entry = plan::FindOptimizer(optimizer.kind);
  ENGINE_CHECK(entry != nullptr, "optimizer.kind \"{}\" is no entry of plan/optimizer.cpp", optimizer.kind);
  return entry;
}

void AddNotes(const recipe::Recipe& recipe, const CompileOptions& options, Policy* policy) {
  if (policy->vocab_rows != policy->vocab) {
    policy->notes.push_back(
        fmt::format("vocabulary {} is stored in {} rows (a multiple of {} × tp {}); the {} padding rows take "
                    "no part in the loss",
                    policy->vocab, policy->vocab_rows, recipe.model.vocab_multiple, recipe.parallelism.tp,
                    policy->vocab_rows - policy->vocab));
  }
  if (std::string note = ExposedNote(recipe, options); !note.empty())
    policy->notes.push_back(std::move(note));
  const std::int64_t host = recipe.cluster.devices_per_node;
  NoteNotPushed(recipe, options, 0, host,
                fmt::format("they are not all on one host (devices_per_node {})", host), policy);
  NoteNotPushed(recipe, options, host, PushingBlock(recipe, options), options.profile.unreachable, policy);
}

// A reader adds in float32 what an exchange would have rounded: so the exchange itself adds, in one order, where generation, whose plans may exchange
// in another way, is to have the bits of training. The exchange adds, too, where what a rank gets is traced: a reader's terms lie in another rank's
// memory, or, where ranks do not reach each other's, are summed already.
plan::Addition AdditionOf(const recipe::Recipe& recipe) {
  if (recipe.generate.invariant) return plan::Addition::kInOrder;
  if (recipe.guard.trace) return plan::Addition::kByExchange;
  return recipe.parallelism.exchange == "auto" ? plan::Addition::kByDirectReader : plan::Addition::kByReader;
}

}  // namespace

std::int64_t Halves(const recipe::Recipe& recipe, const CompileOptions& options) {
  const bool halves = options.halves && Overlaps(recipe, options) && ExchangesActivations(recipe) &&
                      recipe.offload.activation_layers == 0 &&
                      recipe.training.micro_batch % (2 * recipe.model.sample_group) == 0;
  if (!halves || ZeroStageOf(recipe.parallelism) < 2) return halves ? 2 : 1;
  // FP8's gradients are made half by half (SumsShardsByHalves); and what each microbatch exchanges between
  // hosts would hold up the halves' own exchange where that has the same stream.
  return recipe.precision.compute == "fp8" || HoldsUpHalves(recipe, options) ? 1 : 2;
}

bool MayHoldUpHalves(const recipe::Recipe& recipe, const CompileOptions& options) {
  const recipe::Parallelism& p = recipe.parallelism;
  return p.pp > 1 && p.dp > 1 && HoldsUpHalves(recipe, options);
}

absl::StatusOr<FlatExchange> ExchangeOf(const recipe::Recipe& recipe, const CompileOptions& options) {
  const plan::Mesh mesh = plan::Mesh::Of(recipe.parallelism);
  RETURN_IF_ERROR(CheckPushed(recipe, mesh, options));
  const plan::AxisSet pushed = PushedAxes(recipe, mesh, options);
  const bool halves = Halves(recipe, options) > 1;
  const bool conversions = ConversionsArePushed(recipe, pushed);
  const bool behind = Overlaps(recipe, options) && (halves || conversions);
  // Beside conversions by NCCL nothing else is exchanged, and fp8 reads all weights before the first pass.
  const bool at_begin = behind && conversions && recipe.precision.compute != "fp8";
  const bool apart = !halves || conversions;  // collectives of NCCL are on one stream
  return FlatExchange{.behind = behind,
                      .stream = apart ? plan::kBucketStream : plan::kExchangeStream,
                      .beside_conversions = conversions,
                      .pushed = pushed,
                      .addition = AdditionOf(recipe),
                      .at_begin = at_begin};
}

std::int64_t ZeroStageOf(const recipe::Parallelism& parallelism) {
  return parallelism.schedule == plan::kZeroBubble ? std::min<std::int64_t>(parallelism.zero_stage, 1)
                                                   : parallelism.zero_stage;
}

BucketStorage StorageOf(const recipe::Recipe& recipe, const FlatExchange& exchange, bool training) {
  return {.training = training,
          .zero_stage = ZeroStageOf(recipe.parallelism),
          .bulk_masters = recipe.precision.master_dtype == "fp32",
          .optimizer = EntryOf(recipe.optimizer),
          .moments = recipe.optimizer.moment_dtype == "bf16" ? DType::kBF16 : DType::kF32,
          .in_turns = exchange.behind ? 2 : 1,
          .gather_at_begin = training && exchange.at_begin};
}

OptimizerSettings OptimizerOf(const recipe::Optimizer& optimizer) {
  OptimizerSettings settings{.def = EntryOf(optimizer),
                             .attributes = {},
                             .weight_decay = optimizer.weight_decay,
                             .clip_gradient_norm = optimizer.clip_grad_norm};
  for (const plan::OptimizerAttribute& attribute : settings.def->attributes)
    settings.attributes.Set(attribute.name, optimizer.*attribute.value);
  return settings;
}

absl::StatusOr<Policy> ResolvePolicy(const recipe::Recipe& recipe, const CompileOptions& options) {
  ASSIGN_OR_RETURN(const FlatExchange exchange, ExchangeOf(recipe, options));
  const recipe::Parallelism& p = recipe.parallelism;
  const std::int64_t halves = Halves(recipe, options);
  const plan::Mesh mesh = plan::Mesh::Of(p);
  Policy policy{.mesh = mesh,
                .training = options.training,
                .halves = halves,
                .microbatches = recipe.microbatches() * halves,
                .microbatch_samples = recipe.training.micro_batch / halves * p.dp * p.ep,
                .global_batch = recipe.training.global_batch,
                .batch_sizes = recipe::BatchSizes(recipe.training),
                .sequence = recipe.data.sequence_length,
                .vocab = recipe.model.vocab,
                .vocab_rows = recipe.padded_vocab(),
                .halves_may_be_held_up = halves > 1 && MayHoldUpHalves(recipe, options),
                .schedule = ScheduleOf(p),
                .chunks = p.pp * p.virtual_stages,
                .chunk_blocks = p.layers_per_stage,
                .push_transfers = TransfersArePushed(recipe, mesh, options),
                .compute = recipe.precision.compute,
                .bulk_gradients = recipe.precision.gradient_dtype == "bf16" ? DType::kBF16 : DType::kF32,
                .recompute = RecomputeOf(recipe.recompute),
                .hosted_layers = options.training ? recipe.offload.activation_layers : 0,
                .sequence_parallel = p.sequence_parallel,
                .fp8 = Fp8Of(recipe.precision),
                .logits_bytes = recipe.training.logits_bytes,
                .exchange = exchange,
                .storage = StorageOf(recipe, exchange, options.training),
                .optimizer = OptimizerOf(recipe.optimizer),
                .loss_scaler = plan::LossScalerOf(recipe),
                .rates = {.matmul_flops = recipe.cluster.matmul_flops,
                          .memory_bandwidth = recipe.cluster.memory_bandwidth,
                          .link_bandwidth = recipe.cluster.intra_node_bandwidth,
                          .attention_slowdown = options.profile.attention_slowdown},
                .notes = {}};
  AddNotes(recipe, options, &policy);
  return policy;
}

}  // namespace engine::compile
