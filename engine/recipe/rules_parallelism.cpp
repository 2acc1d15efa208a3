#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <string_view>

#include "engine/recipe/rules.h"

namespace engine::recipe {
namespace {

// Factors of the world, in the order in which people say them.
struct Axis {
  const char* name;
  const char* key;
  std::int64_t Parallelism::*degree;
};
constexpr Axis kAxes[] = {{"dp", "parallelism.dp", &Parallelism::dp},
                          {"tp", "parallelism.tp", &Parallelism::tp},
                          {"pp", "parallelism.pp", &Parallelism::pp},
                          {"cp", "parallelism.cp", &Parallelism::cp},
                          {"ep", "parallelism.ep", &Parallelism::ep}};

constexpr const char* kEpCounts =
    "EP is a factor of its own here, WORLD_SIZE = DP · TP · PP · CP · EP, unlike in Megatron and torchtitan, "
    "which "
    "fold it into the others";

std::int64_t WorldOrOverflow(const Parallelism& p) {
  return ProductOrOverflow({p.dp, p.tp, p.pp, p.cp, p.ep});
}

std::string Factors(const Parallelism& p) {
  return fmt::format("dp {} · tp {} · pp {} · cp {} · ep {}", p.dp, p.tp, p.pp, p.cp, p.ep);
}

Choice TpDividing(std::int64_t size) {
  return {.key = "parallelism.tp", .name = "tp", .values = Divisors(size), .keeps = "parallelism.dp"};
}

Choice CpDividing(std::int64_t size) {
  return {.key = "parallelism.cp", .name = "cp", .values = Divisors(size), .keeps = "parallelism.dp"};
}

Choice SequenceLength(std::int64_t length, std::int64_t multiple_of) {
  return {.key = "data.sequence_length",
          .name = "sequence_length",
          .values = MultiplesAround(length, multiple_of)};
}

void TpDividesHeads(const RuleContext& c) {
  const Attention& a = c.recipe.model.attention;
  const std::int64_t tp = c.recipe.parallelism.tp;
  const bool grouped = a.kv_heads > 0 && a.kv_heads != a.heads;
  const std::int64_t heads = c.recipe.kv_heads();
  if (heads % tp == 0) return;
  c.Error({"parallelism.tp", grouped ? "model.attention.kv_heads" : "model.attention.heads"},
          fmt::format("{} {} cannot be shared by tp {}: {} is not a multiple of {}",
                      grouped ? "kv_heads" : "heads", heads, tp, heads, tp),
          c.WaysOut({TpDividing(heads),
                     {.key = grouped ? "model.attention.kv_heads" : "model.attention.heads",
                      .name = grouped ? "kv_heads" : "heads",
                      .values = MultiplesAround(heads, tp)}}));
}

void TpDividesFfn(const RuleContext& c) {
  const std::int64_t tp = c.recipe.parallelism.tp;
  const std::int64_t ffn = c.recipe.ffn_hidden();
  if (ffn == 0 || ffn % tp == 0) return;
  const bool is_default = c.recipe.model.mlp.hidden == 0;
  c.Error({"parallelism.tp", "model.mlp.hidden"},
          fmt::format("mlp.hidden {}{} cannot be shared by tp {} (remainder {})", ffn,
                      is_default ? fmt::format(" (the default for hidden {})", c.recipe.model.hidden) : "",
                      tp, ffn % tp),
          c.WaysOut({TpDividing(ffn),
                     {.key = "model.mlp.hidden",
                      .name = "mlp.hidden",
                      .values = MultiplesAround(ffn, tp),
                      .around = ffn}}));
}

void ExpertsShareTp(const RuleContext& c) {
  const Parallelism& p = c.recipe.parallelism;
  if (p.expert_tp > 1 && p.expert_tp != p.tp) {
    c.Error({"parallelism.expert_tp", "parallelism.tp"},
            fmt::format("expert_tp {} is neither 1 nor tp {}", p.expert_tp, p.tp),
            fmt::format("expert_tp {}: experts are split as all weights are; expert_tp 1: each rank of tp "
                        "has whole experts "
                        "and its own tokens",
                        p.tp));
  } else if (p.expert_tp == 1 && p.tp > 1 && !p.sequence_parallel) {
    c.Error({"parallelism.expert_tp", "parallelism.sequence_parallel"},
            fmt::format("with expert_tp 1 the ranks of tp {} have whole experts, and without "
                        "sequence_parallel all of them the same "
                        "tokens, so that they would repeat each other's work",
                        p.tp),
            fmt::format("sequence_parallel true, or expert_tp {}", p.tp));
  }
}

void ExpertParallelism(const RuleContext& c) {
  const Parallelism& p = c.recipe.parallelism;
  if (c.recipe.is_text() && c.recipe.model.layers == 0) return;  // its steps have not been read yet
  const std::int64_t experts = c.recipe.model.experts;
  if (experts > 0) {
    ExpertsShareTp(c);
    if (experts % p.ep == 0) return;
    c.Error({"parallelism.ep"},
            fmt::format("{} experts cannot be shared by ep {} (remainder {})", experts, p.ep, experts % p.ep),
            fmt::format("ep {}", NearestDivisors(p.ep, experts)));
    return;
  }
  if (p.ep > 1) {
    const std::string ways =
        c.WaysOut({{.key = "parallelism.ep", .name = "ep", .values = {1}, .keeps = "parallelism.dp"}});
    c.Error({"parallelism.ep"}, fmt::format("ep {} would split experts, and this model has none", p.ep),
            ways.empty() ? kEpCounts : ways + "; " + kEpCounts);
  }
  if (p.expert_tp != 0) {
    c.Error(
        {"parallelism.expert_tp"},
        fmt::format("expert_tp {} says how experts use the tp axis, and this model has none", p.expert_tp),
        "expert_tp 0");
  }
  if (c.recipe.debug.router != "model") {
    c.Error({"debug.router"},
            fmt::format("router \"{}\" says which experts tokens go to, and this model has none",
                        c.recipe.debug.router),
            "router \"model\"");
  }
  if (p.expert_rows != 0) {
    c.Error({"parallelism.expert_rows"},
            fmt::format("expert_rows {:g} is a budget of rows of experts, and this model has none",
                        p.expert_rows),
            "expert_rows 0");
  }
}

void WorldFitsInteger(const RuleContext& c) {
  const Parallelism& p = c.recipe.parallelism;
  if (WorldOrOverflow(p) >= 0) return;
  c.Error({"parallelism.dp", "parallelism.tp", "parallelism.pp", "parallelism.cp", "parallelism.ep"},
          fmt::format("the world size {} does not fit in 63 bits", Factors(p)));
}

// Values of each axis that make the world `devices` ranks large, the other axes as they are.
std::vector<Choice> AxesThatFill(const Parallelism& p, std::int64_t devices, const std::string& effect) {
  std::vector<Choice> choices;
  for (const Axis& axis : kAxes) {
    const std::int64_t others = WorldOrOverflow(p) / (p.*axis.degree);
    if (devices % others != 0) continue;
    choices.push_back({.key = axis.key, .name = axis.name, .values = {devices / others}, .effect = effect});
  }
  return choices;
}

void WorldFillsCluster(const RuleContext& c) {
  const Parallelism& p = c.recipe.parallelism;
  const Cluster& cluster = c.recipe.cluster;
  const std::int64_t world = WorldOrOverflow(p);
  if (world < 0 || cluster.nodes == 0 || cluster.devices_per_node == 0) return;
  const std::int64_t devices = cluster.nodes * cluster.devices_per_node;
  if (world == devices) return;
  const std::string fills = fmt::format(" gives {}", devices);
  const std::string fits = fmt::format(" gives {}", world);
  std::vector<Choice> choices = AxesThatFill(p, devices, fills);
  if (world % cluster.devices_per_node == 0) {
    choices.push_back({.key = "cluster.nodes",
                       .name = "nodes",
                       .values = {world / cluster.devices_per_node},
                       .effect = fits});
  }
  std::string hint = c.WaysOut(choices);
  if (!hint.empty()) hint += "; ";
  c.Error({"parallelism.dp", "parallelism.tp", "parallelism.pp", "parallelism.cp", "parallelism.ep",
           "cluster.devices_per_node", "cluster.nodes"},
          fmt::format("{} = {}, but [cluster] has {} × {} = {}", Factors(p), world,
                      Counted(cluster.nodes, "node"), Counted(cluster.devices_per_node, "device"), devices),
          hint + kEpCounts);
}

// With one of the cluster's numbers open, the world must still fill whole nodes.
void WorldFillsNodes(const RuleContext& c) {
  const Parallelism& p = c.recipe.parallelism;
  const Cluster& cluster = c.recipe.cluster;
  const std::int64_t world = WorldOrOverflow(p);
  if (world < 0) return;
  if (cluster.nodes > 0 && cluster.devices_per_node == 0 && world % cluster.nodes != 0) {
    c.Error({"cluster.nodes", "parallelism.dp"},
            fmt::format("{} = {} ranks cannot be shared by {} equally", Factors(p), world,
                        Counted(cluster.nodes, "node")),
            c.WaysOut({{.key = "cluster.nodes", .name = "nodes", .values = Divisors(world)}}));
  }
  const std::int64_t each = cluster.devices_per_node;
  if (cluster.nodes == 0 && each > 0 && world > each && world % each != 0) {
    c.Error({"cluster.devices_per_node", "parallelism.dp"},
            fmt::format("{} = {} ranks do not fill whole nodes of {}", Factors(p), world,
                        Counted(each, "device")),
            fmt::format("a world of {}", NearestMultiples(world, each)));
  }
}

// Groups along tp, and along cp beside it, are aligned blocks of ranks, and so are hosts. What goes along dp
// and pp, NCCL takes over where hosts are crossed.
void PushStaysOnHost(const RuleContext& c) {
  const Parallelism& p = c.recipe.parallelism;
  const std::int64_t each = c.recipe.cluster.devices_per_node;
  if (p.exchange != "push" || c.recipe.cluster.device == "cpu" || each == 0) return;
  const bool tp_stays = p.tp == 1 || each % p.tp == 0;
  const std::int64_t both = ProductOrOverflow({p.tp, p.cp});
  if (tp_stays && (p.cp == 1 || (both > 0 && each % both == 0))) return;
  const std::string other = c.WaysOut({tp_stays ? CpDividing(each) : TpDividing(each)});
  c.Error(
      {"parallelism.exchange", tp_stays ? "parallelism.cp" : "parallelism.tp", "cluster.devices_per_node"},
      fmt::format("the ranks of {} cannot \"push\": they are not on one host of {}",
                  tp_stays ? fmt::format("tp {} · cp {}", p.tp, p.cp) : fmt::format("tp {}", p.tp),
                  Counted(each, "device")),
      "exchange \"auto\", which pushes where it can" + (other.empty() ? "" : "; or " + other));
}

void ZeroStageIsBuilt(const RuleContext& c) {
  const Parallelism& p = c.recipe.parallelism;
  const bool has_shards = p.dp > 1 || p.cp > 1 || p.ep > 1;
  if (p.zero_stage > 1 && p.schedule == "zero_bubble" && has_shards) {
    c.Error({"parallelism.zero_stage", "parallelism.schedule"},
            fmt::format("zero_stage {}: keeping gradients sharded over dp is not built for schedule "
                        "\"zero_bubble\", which makes them in two passes",
                        p.zero_stage),
            "zero_stage 1 or 0; or schedule \"1f1b\" or \"auto\"");
  }
  if (p.zero_stage > 2 && c.recipe.precision.compute == "fp8") {
    c.Error(
        {"parallelism.zero_stage", "precision.compute"},
        "zero_stage 3: keeping parameters sharded over dp is not built for compute \"fp8\", which quantises "
        "them once an iteration",
        "zero_stage 2, 1 or 0; or compute \"bf16\"");
  }
}

void SequenceParallelNeedsTp(const RuleContext& c) {
  const Parallelism& p = c.recipe.parallelism;
  if (!p.sequence_parallel || p.tp > 1) return;
  c.Error({"parallelism.sequence_parallel", "parallelism.tp"},
          fmt::format("sequence_parallel splits the sequence over tp, but tp is {}", p.tp),
          "sequence_parallel = false; or tp at least 2");
}

void SequenceIsDivisible(const RuleContext& c) {
  const Parallelism& p = c.recipe.parallelism;
  const std::int64_t length = c.recipe.data.sequence_length;
  const std::int64_t chunks = p.cp > 1 ? 2 * p.cp : 1;
  if (length % chunks != 0) {
    c.Error({"parallelism.cp", "data.sequence_length"},
            fmt::format("sequence_length {} cannot be cut into 2 × cp {} = {} equal chunks", length, p.cp,
                        chunks),
            c.WaysOut({CpDividing(length), SequenceLength(length, chunks)}));
    return;
  }
  if (!p.sequence_parallel || length / p.cp % p.tp == 0) return;
  c.Error({"parallelism.sequence_parallel", "parallelism.tp", "data.sequence_length"},
          fmt::format("sequence_parallel: sequence_length {} / cp {} = {} cannot be shared by tp {}", length,
                      p.cp, length / p.cp, p.tp),
          c.WaysOut({TpDividing(length / p.cp), SequenceLength(length, std::lcm(chunks, p.cp * p.tp))}));
}

void ScheduleSuitsStages(const RuleContext& c) {
  const Parallelism& p = c.recipe.parallelism;
  if (p.virtual_stages > 1 && p.pp == 1) {
    c.Error({"parallelism.virtual_stages", "parallelism.pp"},
            fmt::format("virtual_stages {} needs a pipeline, but pp is 1", p.virtual_stages),
            "virtual_stages 1; or pp at least 2");
  }
  if (p.virtual_stages > 1 && (p.schedule == "1f1b" || p.schedule == "zero_bubble")) {
    c.Error({"parallelism.schedule", "parallelism.virtual_stages"},
            fmt::format("schedule \"{}\" has one chunk a rank, but virtual_stages is {}", p.schedule,
                        p.virtual_stages),
            "schedule \"interleaved\" or \"auto\"; or virtual_stages 1");
  }
  if (p.pp == 1 && p.schedule == "zero_bubble") {
    c.Error({"parallelism.schedule", "parallelism.pp"},
            "schedule \"zero_bubble\" needs a pipeline, but pp is 1",
            "pp at least 2; or schedule \"1f1b\" or \"auto\"");
  }
  if (p.virtual_stages == 1 && p.schedule == "interleaved") {
    c.Error({"parallelism.schedule", "parallelism.virtual_stages"},
            "schedule \"interleaved\" needs several chunks a rank, but virtual_stages is 1",
            "virtual_stages at least 2; or schedule \"1f1b\" or \"auto\"");
  }
}

void LayersFillStages(const RuleContext& c) {
  const Parallelism& p = c.recipe.parallelism;
  const std::int64_t stages = ProductOrOverflow({p.pp, p.virtual_stages});
  if (c.recipe.model.layers >= stages) return;
  c.Error({"parallelism.pp", "parallelism.virtual_stages", "model.layers"},
          fmt::format("layers {} cannot fill pp {} × virtual_stages {} = {} stages", c.recipe.model.layers,
                      p.pp, p.virtual_stages, stages),
          fmt::format("pp × virtual_stages at most {}", c.recipe.model.layers));
}

void StageListHasRightLength(const RuleContext& c) {
  const Parallelism& p = c.recipe.parallelism;
  const auto entries = static_cast<std::int64_t>(p.layers_per_stage.size());
  const std::int64_t stages = ProductOrOverflow({p.pp, p.virtual_stages});
  if (entries == 0 || entries == stages) return;
  c.Error({"parallelism.layers_per_stage"},
          fmt::format("layers_per_stage has {}, but pp {} × virtual_stages {} = {}",
                      entries == 1 ? "1 entry" : fmt::format("{} entries", entries), p.pp, p.virtual_stages,
                      stages));
}

void StageListHasAllLayers(const RuleContext& c) {
  const std::vector<std::int64_t>& list = c.recipe.parallelism.layers_per_stage;
  if (list.empty()) return;
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < list.size(); ++i) {
    sum += list[i];
    if (list[i] == 0) {
      c.Error({"parallelism.layers_per_stage"}, fmt::format("layers_per_stage: stage {} has no layer", i),
              "at least 1 layer a stage");
      return;
    }
  }
  if (sum == c.recipe.model.layers) return;
  c.Error({"parallelism.layers_per_stage", "model.layers"},
          fmt::format("layers_per_stage adds up to {}, but the model has {}", sum,
                      Counted(c.recipe.model.layers, "layer")));
}

// A layer's place is its successor's, which is at least two layers later: what it hands on is read by the next one.
void OffloadLeavesLayers(const RuleContext& c) {
  const Parallelism& p = c.recipe.parallelism;
  const std::int64_t layers = c.recipe.offload.activation_layers;
  if (layers == 0) return;
  const std::int64_t stages = ProductOrOverflow({p.pp, p.virtual_stages});
  if (p.schedule == "zero_bubble") {
    c.Error({"offload.activation_layers", "parallelism.schedule"},
            "offload.activation_layers needs backward passes that are done with what they read, but schedule "
            "\"zero_bubble\" reads most of it again later",
            "schedule \"1f1b\" or \"interleaved\"; or activation_layers 0");
  }
  const std::int64_t fewest = p.layers_per_stage.empty()
                                  ? c.recipe.model.layers / stages
                                  : *std::min_element(p.layers_per_stage.begin(), p.layers_per_stage.end());
  constexpr std::int64_t kStay = 2;
  if (layers + kStay <= fewest) return;
  c.Error(
      {"offload.activation_layers", "model.layers", "parallelism.pp", "parallelism.virtual_stages",
       "parallelism.layers_per_stage"},
      fmt::format(
          "activation_layers {}, but the smallest chunk of the pipeline has {}, and {} of each chunk stay "
          "on the device",
          layers, Counted(fewest, "layer"), kStay),
      fewest > kStay ? fmt::format("activation_layers at most {}", fewest - kStay) : "activation_layers 0");
}

}  // namespace

std::vector<Rule> ParallelismRules() {
  const std::vector<std::string> axes = {"parallelism.dp", "parallelism.tp", "parallelism.pp",
                                         "parallelism.cp", "parallelism.ep"};
  std::vector<std::string> world = axes;
  world.insert(world.end(), {"cluster.nodes", "cluster.devices_per_node"});
  const std::string sp = "parallelism.sequence_parallel";
  const std::string chunks = "parallelism.virtual_stages";
  const std::string list = "parallelism.layers_per_stage";
  return {
      {{"parallelism.tp", "model.hidden", "model.mlp", "model.attention"}, TpDividesHeads},
      {{"parallelism.tp", "model.hidden", "model.mlp", "model.attention"}, TpDividesFfn},
      {{"parallelism.ep", "parallelism.expert_tp", "parallelism.expert_rows", "parallelism.tp", sp},
       ExpertParallelism},
      {axes, WorldFitsInteger},
      {world, WorldFillsCluster},
      {world, WorldFillsNodes},
      {{"parallelism.exchange", "parallelism.tp", "parallelism.cp", "cluster.device",
        "cluster.devices_per_node"},
       PushStaysOnHost},
      {{"parallelism.zero_stage", "parallelism.schedule", "precision.compute", "parallelism.dp",
        "parallelism.cp", "parallelism.ep"},
       ZeroStageIsBuilt},
      {{sp, "parallelism.tp"}, SequenceParallelNeedsTp},
      {{sp, "parallelism.tp", "parallelism.cp", "data.sequence_length"}, SequenceIsDivisible},
      {{chunks, "parallelism.pp", "parallelism.schedule"}, ScheduleSuitsStages},
      {{chunks, "parallelism.pp", "model.layers"}, LayersFillStages},
      {{"offload", "parallelism", "model.layers"}, OffloadLeavesLayers},
      {{chunks, "parallelism.pp", list}, StageListHasRightLength},
      {{"model.layers", list}, StageListHasAllLayers},
  };
}

}  // namespace engine::recipe
