#include "engine/compile/compile.h"

#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "engine/base/hash.h"
#include "engine/base/units.h"
#include "engine/compile/fuse.h"
#include "engine/compile/placements.h"
#include "engine/compile/stage.h"
#include "engine/compile/weights.h"
#include "engine/graph/autodiff.h"
#include "engine/ops/ops.h"
#include "engine/plan/canonical.h"
#include "engine/plan/schedule.h"

namespace engine::compile {
namespace {

using graph::Graph;
using graph::Node;
using graph::ValueKind;

// Which forward nodes the recipe wants run again instead of saved.
bool IsRecomputed(const recipe::Recompute& recompute, const Node& node, std::int32_t layers) {
  if (node.layer < 0 || node.layer >= layers) return false;
  if (recompute.granularity == "full") return true;
  if (recompute.granularity == "cheap") {
    return node.op == &ops::kLayerNorm || node.op == &ops::kRmsNorm || node.op == &ops::kGelu ||
           node.op == &ops::kSwiglu;
  }
  if (recompute.granularity != "selective") return false;
  const auto wants = [&](const char* module) {
    return std::find(recompute.modules.begin(), recompute.modules.end(), module) != recompute.modules.end();
  };
  if (node.op == &ops::kAttention) return wants("attention");
  if (node.op == &ops::kLayerNorm || node.op == &ops::kRmsNorm) return wants("norm");
  if (node.op == &ops::kGelu || node.op == &ops::kSwiglu) return wants("activation");
  return false;
}

// Cost of each block, and of the final norm and head, in FLOPs of matrix products: forward, over the whole
// microbatch. The backward pass costs twice as much in both.
std::pair<std::vector<double>, double> LayerCosts(const Graph& graph, const plan::DeviceProfile& device) {
  std::vector<double> costs(static_cast<size_t>(graph.layers()), 0.0);
  double head = 0;
  for (const Node& node : graph.nodes()) {
    if (node.phase != graph::Phase::kForward || node.layer < 0) continue;
    std::vector<graph::TensorType> inputs;
    std::vector<graph::TensorType> outputs;
    for (graph::ValueId v : node.inputs) inputs.push_back(graph.value(v).type);
    for (graph::ValueId v : node.outputs) outputs.push_back(graph.value(v).type);
    double flops = node.op->cost(inputs, outputs, node.attributes).flops;
    if (node.op == &ops::kAttention) {
      const plan::SlowPath slow =
          device.slow ? device.slow(node.op->name, inputs, node.attributes) : plan::SlowPath{};
      flops = device.attention_slowdown * (slow.kind == plan::SlowPath::Kind::kMasked ? slow.flops : flops);
    }
    (node.layer < graph.layers() ? costs[static_cast<size_t>(node.layer)] : head) += flops;
  }
  return {costs, head};
}

std::int32_t ChunkOfLayer(const ChunkLayers& chunks, std::int32_t layer) {
  if (layer < 0) return 0;
  for (size_t c = 0; c < chunks.size(); ++c) {
    if (layer < chunks[c].second) return static_cast<std::int32_t>(c);
  }
  return static_cast<std::int32_t>(chunks.size() - 1);
}

CutGraph Cut(LocalGraph local, const ChunkLayers& chunks, plan::Plan* plan) {
  CutGraph cut;
  cut.base = static_cast<std::int32_t>(plan->values.size());
  cut.forward.resize(chunks.size());
  cut.backward.resize(chunks.size());
  cut.weights.resize(chunks.size());
  cut.prepare.resize(chunks.size());
  cut.producer_chunk.assign(local.values.size(), -1);
  cut.producer_pass.assign(local.values.size(), plan::Pass::kForward);
  absl::flat_hash_set<std::pair<std::int32_t, std::int32_t>> known;
  for (size_t i = 0; i < local.nodes.size(); ++i) {
    const LocalNode& node = local.nodes[i];
    const bool backward = node.phase == graph::Phase::kBackward;
    const std::int32_t chunk = ChunkOfLayer(chunks, node.layer);
    auto& lists = backward ? cut.backward : node.phase == graph::Phase::kPrepare ? cut.prepare : cut.forward;
    lists[static_cast<size_t>(chunk)].push_back(static_cast<std::int32_t>(i));
    for (std::int32_t input : node.inputs) {
      const std::int32_t producer = cut.producer_chunk[static_cast<size_t>(input)];
      if (producer < 0 || producer == chunk || !known.insert({input, chunk}).second) continue;
      plan->transfers.push_back({.value = cut.base + input,
                                 .from_chunk = producer,
                                 .to_chunk = chunk,
                                 .bytes = local.values[static_cast<size_t>(input)].local_bytes()});
    }
    for (std::int32_t output : node.outputs) {
      if (local.values[static_cast<size_t>(output)].kind != ValueKind::kActivation) continue;
      cut.producer_chunk[static_cast<size_t>(output)] = chunk;
      cut.producer_pass[static_cast<size_t>(output)] =
          backward ? plan::Pass::kBackward : plan::Pass::kForward;
    }
  }
  plan->values.insert(plan->values.end(), local.values.begin(), local.values.end());
  cut.local = std::move(local);
  return cut;
}

absl::Status CheckTransfers(const plan::Plan& plan) {
  for (const plan::Transfer& transfer : plan.transfers) {
    const std::int32_t step = transfer.to_chunk - transfer.from_chunk;
    if (step == 1 || step == -1) continue;
    return Internal("pipeline: {} goes from chunk {} to chunk {}",
                    plan.values[static_cast<size_t>(transfer.value)].name, transfer.from_chunk,
                    transfer.to_chunk);
  }
  return absl::OkStatus();
}

void SetParameters(const Graph& graph, const CutGraph& cut, bool tied_across_stages, plan::Plan* plan) {
  for (const graph::Parameter& parameter : graph.parameters()) {
    const graph::Value& value = graph.value(parameter.value);
    plan->parameters.push_back({.value = cut.base + cut.local.value_of[static_cast<size_t>(parameter.value)],
                                .gradient = -1,
                                .name = value.name,
                                .logical_shape = parameter.logical_shape,
                                .initializer = parameter.initializer,
                                .weight_decay = parameter.weight_decay,
                                .tied = tied_across_stages && value.name == "embedding.tokens"});
    plan->parameter_count += parameter.logical_shape.elements();
  }
}

// Tells the leaves of a local graph which parameter they are, or are the gradient of. Parameters of both
// graphs are the same, in the same order: one model built them.
void LinkParameters(const Graph& graph, const CutGraph& cut, plan::Plan* plan) {
  absl::flat_hash_map<graph::ValueId, std::int32_t> index;
  for (size_t i = 0; i < graph.parameters().size(); ++i) {
    index[graph.parameters()[i].value] = static_cast<std::int32_t>(i);
  }
  for (size_t v = 0; v < graph.values().size(); ++v) {
    const graph::Value& value = graph.values()[v];
    if (value.kind != ValueKind::kParameter && value.gradient_of == graph::kNoValue) continue;
    const bool gradient = value.kind == ValueKind::kAccumulator;
    const std::int32_t parameter = index.at(gradient ? value.gradient_of : static_cast<graph::ValueId>(v));
    const std::int32_t local = cut.base + cut.local.value_of[v];
    plan->values[static_cast<size_t>(local)].parameter = parameter;
    if (gradient) plan->parameters[static_cast<size_t>(parameter)].gradient = local;
  }
}

bool Overlaps(const recipe::Recipe& recipe, const CompileOptions& options) {
  const std::string& overlap = recipe.parallelism.overlap;
  return options.training && (overlap == "on" || (overlap == "auto" && options.profile.overlaps));
}

std::string ScheduleOf(const recipe::Parallelism& parallelism) {
  if (parallelism.schedule != "auto") return parallelism.schedule;
  return parallelism.virtual_stages > 1 ? "interleaved" : "1f1b";
}

bool ExchangesActivations(const recipe::Recipe& recipe) {
  return recipe.parallelism.tp * recipe.parallelism.cp > 1;
}

// Why exchange over tp and cp does not run behind computation although it might; empty: it does.
std::string ExposedNote(const recipe::Recipe& recipe, const CompileOptions& options) {
  if (!Overlaps(recipe, options) || !ExchangesActivations(recipe) || Lanes(recipe, options) > 1) return "";
  const std::int64_t micro_batch = recipe.training.micro_batch;
  std::string why;
  if (micro_batch % 2 != 0) {
    why = fmt::format("micro_batch {} has no two halves", micro_batch);
    if (recipe.parallelism.pp == 1 && recipe.microbatches() % 2 == 0)
      why += fmt::format("; with {}, each half is what a microbatch is now", 2 * micro_batch);
  } else if (ZeroStageOf(recipe.parallelism) > 1) {
    why =
        "shards of gradients are exchanged in each microbatch, beside NCCL's exchange of halves or half by "
        "half";
  } else {
    why = "what dp exchanges between hosts would hold up the halves' own exchange, by the predicted time";
  }
  return fmt::format("exchange over tp and cp is not hidden behind computation: {}", why);
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
                   std::int64_t narrow, const std::string& why, plan::Plan* plan) {
  const plan::Mesh& mesh = plan->mesh;
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
  plan->notes.push_back(
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
         (recipe.parallelism.cp == 1 || pushed.Has(graph::Axis::kCp));
}

plan::Plan Header(const recipe::Recipe& recipe, const Graph& graph, const CompileOptions& options) {
  plan::Plan plan;
  plan.mesh = plan::Mesh::Of(recipe.parallelism);
  plan.lanes = Lanes(recipe, options);
  plan.microbatches = recipe.microbatches() * plan.lanes;
  plan.microbatch_samples =
      recipe.training.micro_batch / plan.lanes * recipe.parallelism.dp * recipe.parallelism.ep;
  plan.global_batch = recipe.training.global_batch;
  plan.sequence = recipe.data.sequence_length;
  plan.vocab = recipe.model.vocab;
  plan.vocab_rows = graph.value(graph.parameters().front().value).type.shape[0];
  plan.schedule = ScheduleOf(recipe.parallelism);
  plan.compute = recipe.precision.compute;
  plan.loss_scaler = plan::LossScalerOf(recipe);
  if (plan.vocab_rows != plan.vocab) {
    plan.notes.push_back(
        fmt::format("vocabulary {} is stored in {} rows (a multiple of {} × tp {}); the {} padding rows take "
                    "no part in the loss",
                    plan.vocab, plan.vocab_rows, recipe.model.vocab_multiple, recipe.parallelism.tp,
                    plan.vocab_rows - plan.vocab));
  }
  if (std::string note = ExposedNote(recipe, options); !note.empty()) plan.notes.push_back(std::move(note));
  const std::int64_t host = recipe.cluster.devices_per_node;
  NoteNotPushed(recipe, options, 0, host,
                fmt::format("they are not all on one host (devices_per_node {})", host), &plan);
  NoteNotPushed(recipe, options, host, PushingBlock(recipe, options), options.profile.unreachable, &plan);
  return plan;
}

// What is kept of a microbatch's gradients in shards is their sum over both halves: each is made at once.
bool SumsShardsByHalves(const plan::Plan& plan) {
  for (const plan::StagePlan& stage : plan.stages) {
    absl::flat_hash_set<std::int32_t> sharded;  // gradients
    for (const plan::Bucket& bucket : stage.buckets) {
      if (bucket.gradient_shard.elements == 0) continue;
      for (const plan::Bucket::Item& item : bucket.items)
        sharded.insert(plan.parameters[static_cast<size_t>(item.parameter)].gradient);
    }
    if (sharded.empty()) continue;
    for (const plan::Segment& segment : stage.segments) {
      for (const plan::Instruction& instruction : segment.instructions) {
        if (instruction.op == nullptr || instruction.joint) continue;
        for (const plan::BufferRef& output : instruction.outputs) {
          if (sharded.contains(output.value)) return true;
        }
      }
    }
  }
  return false;
}

// Whether halves would wait for each other in a segment: no order of their turns was found
// (compile/interleave.h).
bool HalvesAreStuck(const plan::Plan& plan) {
  for (const plan::StagePlan& stage : plan.stages) {
    for (const plan::Segment& segment : stage.segments) {
      if (segment.chunk >= 0 && segment.order.empty() && !segment.instructions.empty() &&
          !segment.name.starts_with("evaluate"))
        return true;
    }
  }
  return false;
}

absl::StatusOr<LocalGraph> Localize(const Graph& graph, const PlacementOptions& options,
                                    const FuseOptions& fusing) {
  RETURN_IF_ERROR(graph.Verify());
  ASSIGN_OR_RETURN(LocalGraph local, PlaceGraph(graph, options));
  Fuse(fusing, &local);
  return local;
}

}  // namespace

bool HoldsUpHalves(const recipe::Recipe& recipe, const CompileOptions& options) {
  const plan::Mesh mesh = plan::Mesh::Of(recipe.parallelism);
  return !OnOneHost(recipe, mesh, graph::Axis::kDp) &&
         !ConversionsArePushed(recipe, PushedAxes(recipe, mesh, options));
}

std::int64_t Lanes(const recipe::Recipe& recipe, const CompileOptions& options) {
  const bool halves = options.halves && Overlaps(recipe, options) && ExchangesActivations(recipe) &&
                      recipe.training.micro_batch % 2 == 0;
  if (!halves || ZeroStageOf(recipe.parallelism) < 2) return halves ? 2 : 1;
  // FP8's gradients are made half by half (SumsShardsByHalves); and what each microbatch exchanges between
  // hosts would hold up the halves' own exchange where that has the same stream.
  return recipe.precision.compute == "fp8" || HoldsUpHalves(recipe, options) ? 1 : 2;
}

ChunkLayers CutLayers(const recipe::Recipe& recipe, const Graph& graph, const plan::DeviceProfile& device) {
  const std::int64_t chunks = recipe.parallelism.pp * recipe.parallelism.virtual_stages;
  std::vector<std::int64_t> counts = recipe.parallelism.layers_per_stage;
  if (counts.empty()) {
    const auto [costs, head] = LayerCosts(graph, device);
    counts = plan::BalancedCut(costs, chunks, head);
  }
  ChunkLayers layers;
  std::int64_t first = 0;
  for (std::int64_t count : counts) {
    layers.emplace_back(first, first + count);
    first += count;
  }
  return layers;
}

absl::StatusOr<FlatExchange> ExchangeOf(const recipe::Recipe& recipe, const CompileOptions& options) {
  const plan::Mesh mesh = plan::Mesh::Of(recipe.parallelism);
  RETURN_IF_ERROR(CheckPushed(recipe, mesh, options));
  const plan::AxisSet pushed = PushedAxes(recipe, mesh, options);
  const bool lanes = Lanes(recipe, options) > 1;
  const bool conversions = ConversionsArePushed(recipe, pushed);
  const bool behind = Overlaps(recipe, options) && (lanes || conversions);
  // Beside conversions by NCCL nothing else is exchanged, and fp8 reads all weights before the first pass.
  const bool at_begin = behind && conversions && recipe.precision.compute != "fp8";
  const bool apart = !lanes || conversions;  // collectives of NCCL are on one stream
  return FlatExchange{.behind = behind,
                      .stream = apart ? plan::kBucketStream : plan::kExchangeStream,
                      .beside_conversions = conversions,
                      .pushed = pushed,
                      .direct = recipe.parallelism.exchange == "auto",
                      .at_begin = at_begin};
}

std::int64_t ZeroStageOf(const recipe::Parallelism& parallelism) {
  return parallelism.schedule == plan::kZeroBubble ? std::min<std::int64_t>(parallelism.zero_stage, 1)
                                                   : parallelism.zero_stage;
}

BucketStorage StorageOf(const recipe::Recipe& recipe, const FlatExchange& exchange, bool training) {
  return {.training = training,
          .zero_stage = ZeroStageOf(recipe.parallelism),
          .matrix_masters = recipe.precision.master_dtype == "fp32",
          .narrow_moments = recipe.optimizer.moment_dtype == "bf16",
          .in_turns = exchange.behind ? 2 : 1,
          .gather_at_begin = training && exchange.at_begin};
}

absl::StatusOr<plan::Plan> Compile(const recipe::Recipe& recipe, Graph train, const Graph& evaluate,
                                   const CompileOptions& options) {
  const Graph& forward = options.training ? train : evaluate;
  const ChunkLayers chunks = CutLayers(recipe, forward, options.profile);
  plan::Plan plan = Header(recipe, forward, options);
  ASSIGN_OR_RETURN(const FlatExchange exchange, ExchangeOf(recipe, options));
  const PlacementOptions placement{.mesh = plan.mesh,
                                   .sequence_parallel = recipe.parallelism.sequence_parallel};
  FuseOptions fusing{.profile = &options.profile,
                     .logits_bytes = recipe.training.logits_bytes,
                     .fp8 = {},
                     .layers = forward.layers(),
                     .chunk_of = [&](std::int32_t layer) { return ChunkOfLayer(chunks, layer); }};
  if (recipe.precision.compute == "fp8") {
    fusing.fp8 = {.gradients = recipe.precision.fp8_gradients,
                  .current = recipe.precision.fp8_scaling == "current",
                  .head = recipe.precision.fp8_head};
  }
  CutGraph train_cut;
  if (options.training) {
    const DType of_matrices = recipe.precision.gradient_dtype == "bf16" ? DType::kBF16 : DType::kF32;
    RETURN_IF_ERROR(graph::Differentiate(&train, ops::kAdd, of_matrices));
    graph::Recompute(&train,
                     [&](const Node& node) { return IsRecomputed(recipe.recompute, node, train.layers()); });
    ASSIGN_OR_RETURN(LocalGraph local, Localize(train, placement, fusing));
    train_cut = Cut(std::move(local), chunks, &plan);
  }
  CutGraph evaluate_cut;
  if (options.evaluation) {
    fusing.fp8 = {};  // evaluation keeps the weights' own precision
    ASSIGN_OR_RETURN(LocalGraph local, Localize(evaluate, placement, fusing));
    evaluate_cut = Cut(std::move(local), chunks, &plan);
    plan.logits = evaluate_cut.base + evaluate_cut.local.value_of[static_cast<size_t>(evaluate.logits())];
  }
  RETURN_IF_ERROR(CheckTransfers(plan));
  for (plan::Transfer& transfer : plan.transfers)
    transfer.push = TransfersArePushed(recipe, plan.mesh, options);

  const bool tied = recipe.model.tied_embeddings && recipe.parallelism.pp > 1;
  SetParameters(forward, options.training ? train_cut : evaluate_cut, tied, &plan);
  if (options.training) LinkParameters(train, train_cut, &plan);
  if (options.training && plan.schedule == plan::kZeroBubble) DeferWeights(plan, &train_cut);
  if (options.evaluation) LinkParameters(evaluate, evaluate_cut, &plan);
  for (size_t c = 0; c < chunks.size(); ++c) {
    plan.chunk_stage.push_back(static_cast<std::int32_t>(c) % static_cast<std::int32_t>(plan.mesh.pp));
  }
  const StageInputs inputs{.train = options.training ? &train_cut : nullptr,
                           .evaluate = options.evaluation ? &evaluate_cut : nullptr,
                           .storage = StorageOf(recipe, exchange, options.training),
                           .optimizer = &recipe.optimizer,
                           .exchange = exchange,
                           .rates = {.matmul_flops = recipe.cluster.matmul_flops,
                                     .memory_bandwidth = recipe.cluster.memory_bandwidth,
                                     .link_bandwidth = recipe.cluster.intra_node_bandwidth,
                                     .attention_slowdown = options.profile.attention_slowdown},
                           .options = &options};
  for (std::int32_t stage = 0; stage < plan.mesh.pp; ++stage) BuildStage(inputs, stage, chunks, &plan);
  if (plan.lanes > 1 && SumsShardsByHalves(plan))
    return FailedPrecondition("gradients in shards are made half by half");
  if (options.training && plan.lanes > 1 && HalvesAreStuck(plan))
    return FailedPrecondition("halves would wait for each other");
  if (!options.hash) return plan;
  Hasher hasher;
  plan::WriteCanonical(plan, [&](std::string_view text) { hasher.Update(text); });
  plan.hash = hasher.HexDigest();
  return plan;
}

}  // namespace engine::compile
