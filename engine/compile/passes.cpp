#include "engine/compile/passes.h"

#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>

#include <algorithm>
#include <chrono>

#include "engine/base/hash.h"
#include "engine/compile/fuse.h"
#include "engine/compile/stage.h"
#include "engine/compile/weights.h"
#include "engine/graph/autodiff.h"
#include "engine/ops/ops.h"
#include "engine/plan/canonical.h"

namespace engine::compile {
namespace {

using graph::Graph;
using graph::Node;
using graph::ValueKind;

bool Recomputes(const RecomputePolicy& recompute, const Graph& graph, const Node& node) {
  if (graph.units()[static_cast<size_t>(node.unit)].kind != graph::Unit::Kind::kBlock) return false;
  const bool moves_state = std::any_of(node.outputs.begin(), node.outputs.end(), [&](graph::ValueId output) {
    return graph.value(output).kind == ValueKind::kState;
  });
  if (moves_state) return false;  // it would move twice
  if (recompute.all) return true;
  const auto wants = [&](const char* module) {
    return std::find(recompute.modules.begin(), recompute.modules.end(), module) != recompute.modules.end();
  };
  switch (node.op->family) {
    case graph::Family::kAttention:
      return wants("attention");
    case graph::Family::kNorm:
      return wants("norm");
    case graph::Family::kActivation:
      return wants("activation");
    default:
      return false;
  }
}

absl::Status BalancePass(Compilation* c) {
  const Graph& graph = c->programs().front()->logical;
  std::vector<std::int64_t> blocks = c->policy.chunk_blocks;
  if (blocks.empty()) blocks = BalancedBlocks(c->policy.chunks, graph, c->options.profile);
  c->plan.units = graph.units();
  c->plan.components = graph.components();
  c->chunks = CutUnits(graph.units(), blocks);
  return absl::OkStatus();
}

absl::Status DifferentiatePass(Compilation* c) {
  if (!c->policy.training) return absl::OkStatus();
  return graph::Differentiate(&c->train.logical, ops::kAdd, c->policy.bulk_gradients);
}

absl::Status RecomputePass(Compilation* c) {
  if (!c->policy.training) return absl::OkStatus();
  const Graph& graph = c->train.logical;
  graph::Recompute(&c->train.logical,
                   [&](const Node& node) { return Recomputes(c->policy.recompute, graph, node); });
  return absl::OkStatus();
}

absl::Status PlacePass(Compilation* c) {
  DecidedLayouts decided;
  for (ProgramGraph* program : c->programs()) {
    RETURN_IF_ERROR(program->logical.Verify());
    ASSIGN_OR_RETURN(
        program->local,
        PlaceGraph(program->logical,
                   {.mesh = c->policy.mesh, .sequence_parallel = c->policy.sequence_parallel}, &decided));
  }
  return absl::OkStatus();
}

// A device may lack kernels for what a graph asks of it: the plan must not be made, rather than fail where it runs.
absl::Status HasKernels(const plan::DeviceProfile& profile, const LocalGraph& graph) {
  if (!profile.lacks) return absl::OkStatus();
  for (const LocalNode& node : graph.nodes) {
    if (node.op == nullptr) continue;
    std::vector<graph::TensorType> inputs;
    for (const std::int32_t input : node.inputs) {
      const plan::LocalValue& value = graph.values[static_cast<size_t>(input)];
      inputs.push_back({.shape = value.local, .dtype = value.dtype});
    }
    const std::string lacks = profile.lacks(*node.op, inputs, node.attributes);
    if (lacks.empty()) continue;
    return Unimplemented("{} ({}): the {} executor has no kernel for {}; the cpu executor has", node.name,
                         node.op->name, profile.name, lacks);
  }
  return absl::OkStatus();
}

absl::Status FusePass(Compilation* c) {
  for (ProgramGraph* program : c->programs()) {
    Fuse({.profile = &c->options.profile,
          .logits_bytes = c->policy.logits_bytes,
          // Evaluation keeps the weights' own precision.
          .fp8 = program == &c->train ? c->policy.fp8 : Fp8Options{},
          .logical = &program->logical,
          .chunk_of = [&](std::int32_t unit) { return ChunkOfUnit(c->chunks, unit); }},
         &program->local);
    RETURN_IF_ERROR(HasKernels(c->options.profile, program->local));
  }
  return absl::OkStatus();
}

absl::Status CutPass(Compilation* c) {
  for (ProgramGraph* program : c->programs()) {
    ASSIGN_OR_RETURN(program->cut, CutIntoChunks(std::move(program->local), c->chunks, &c->plan));
  }
  for (plan::Transfer& transfer : c->plan.transfers) transfer.push = c->policy.push_transfers;
  for (size_t chunk = 0; chunk < c->chunks.size(); ++chunk)
    c->plan.chunk_stage.push_back(static_cast<std::int32_t>(chunk) %
                                  static_cast<std::int32_t>(c->plan.mesh.pp));
  const auto in_plan = [](const ProgramGraph& program, graph::ValueId value) {
    return program.cut.base + program.cut.local.value_of[static_cast<size_t>(value)];
  };
  const auto note_logits = [&](plan::FormId form, const ProgramGraph& program) {
    const graph::ValueId logits = program.logical.logits();
    if (program.logical.nodes().empty() || logits == graph::kNoValue) return;
    c->plan.logits[form].value = in_plan(program, logits);
    if (const auto& top = program.logical.top_logits()) {
      c->plan.top_logits[form] = {.tokens = in_plan(program, top->tokens),
                                  .values = in_plan(program, top->values),
                                  .log_sums = in_plan(program, top->log_sums)};
      if (top->row_log_sums != graph::kNoValue)
        c->plan.top_logits[form].row_log_sums = in_plan(program, top->row_log_sums);
    }
  };
  note_logits(plan::kEvaluateForm, c->evaluate);
  for (size_t g = 0; g < c->generation.size(); ++g)
    note_logits(plan::kFirstGenerationForm + static_cast<plan::FormId>(g), c->generation[g]);
  if (const auto& scores = c->evaluate.logical.scores()) {
    c->plan.scores = {.log_probability = in_plan(c->evaluate, scores->log_probability),
                      .rank = in_plan(c->evaluate, scores->rank)};
  }
  return absl::OkStatus();
}

// Who reads a parameter.
struct Readers {
  std::int32_t unit = -1;                              // the first
  graph::ComponentId component = graph::kNoComponent;  // likewise
  std::vector<std::int32_t> stages;                    // in that order
};
absl::flat_hash_map<graph::ValueId, Readers> ReadersOf(const Compilation& c, const Graph& graph) {
  const auto stage_of = [&](std::int32_t unit) {
    return c.plan.chunk_stage[static_cast<size_t>(ChunkOfUnit(c.chunks, unit))];
  };
  absl::flat_hash_map<graph::ValueId, Readers> readers;
  for (const Node& node : graph.nodes()) {
    for (graph::ValueId input : node.inputs) {
      if (graph.value(input).kind != ValueKind::kParameter) continue;
      Readers& of =
          readers.try_emplace(input, Readers{.unit = node.unit, .component = node.component, .stages = {}})
              .first->second;
      const std::int32_t stage = stage_of(node.unit);
      if (std::find(of.stages.begin(), of.stages.end(), stage) == of.stages.end()) of.stages.push_back(stage);
    }
  }
  return readers;
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

// Of a frozen parameter nothing else matters.
graph::TrainingSettings SettingsOf(const graph::Parameter& parameter) {
  return parameter.training.frozen ? graph::TrainingSettings{.frozen = true} : parameter.training;
}

absl::Status ParametersPass(Compilation* c) {
  const ProgramGraph& first = *c->programs().front();
  absl::flat_hash_map<graph::ValueId, Readers> readers = ReadersOf(*c, first.logical);
  for (const graph::Parameter& parameter : first.logical.parameters()) {
    const Readers& read = readers[parameter.value];
    c->plan.parameters.push_back(
        {.value = first.cut.base + first.cut.local.value_of[static_cast<size_t>(parameter.value)],
         .gradient = -1,
         .name = first.logical.value(parameter.value).name,
         .logical_shape = parameter.logical_shape,
         .initializer = parameter.initializer,
         .role = parameter.role,
         .unit = read.unit,
         .component = read.component,
         .weight_decay = parameter.weight_decay,
         .training = SettingsOf(parameter),
         .holders = read.stages});
    c->plan.parameter_count += parameter.logical_shape.elements();
  }
  for (const graph::Metric& metric : first.logical.metrics()) {
    const auto made_by =
        std::find_if(first.logical.nodes().begin(), first.logical.nodes().end(), [&](const Node& node) {
          return std::find(node.outputs.begin(), node.outputs.end(), metric.sum) != node.outputs.end();
        });
    if (made_by == first.logical.nodes().end()) return Internal("metric {}: nothing adds to it", metric.name);
    if (metric.classes > 0 && c->plan.metrics.empty())
      return Internal("metric {}: the first one is one number (plan::ScalarOf)", metric.name);
    const std::int64_t first_number = c->plan.numbers();
    c->plan.metrics.push_back({.name = metric.name,
                               .count = metric.count,
                               .weight = metric.weight,
                               .unit = made_by->unit,
                               .classes = metric.classes,
                               .first = first_number,
                               .of_labels = metric.of_labels,
                               .has_terms = metric.has_terms});
  }
  for (const ProgramGraph* program : c->programs()) {
    LinkParameters(program->logical, program->cut, &c->plan);
    const std::vector<graph::Metric>& metrics = program->logical.metrics();
    for (size_t m = 0; m < metrics.size(); ++m) {
      const std::int32_t id =
          program->cut.base + program->cut.local.value_of[static_cast<size_t>(metrics[m].sum)];
      c->plan.values[static_cast<size_t>(id)].metric = static_cast<std::int32_t>(m);
    }
  }
  return absl::OkStatus();
}

absl::Status DeferPass(Compilation* c) {
  if (c->policy.training && c->plan.schedule == plan::kZeroBubble) DeferWeights(c->plan, &c->train.cut);
  return absl::OkStatus();
}

absl::Status StagesPass(Compilation* c) {
  const bool evaluates = !c->evaluate.logical.nodes().empty();
  StageInputs inputs{.train = c->policy.training ? &c->train.cut : nullptr,
                     .evaluate = evaluates ? &c->evaluate.cut : nullptr,
                     .generation = {},
                     .policy = &c->policy,
                     .profile = &c->options.profile,
                     .keep_logits = c->options.keep_logits};
  for (const ProgramGraph& program : c->generation) inputs.generation.push_back(&program.cut);
  for (std::int32_t stage = 0; stage < c->plan.mesh.pp; ++stage)
    c->halves_stuck = !BuildStage(inputs, stage, c->chunks, &c->plan) || c->halves_stuck;
  return absl::OkStatus();
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
        if (instruction.op() == nullptr || instruction.half == plan::Half::kBoth) continue;
        for (const plan::BufferRef& output : instruction.outputs) {
          if (sharded.contains(output.value)) return true;
        }
      }
    }
  }
  return false;
}

absl::Status HalvesPass(Compilation* c) {
  if (c->plan.halves == 1) return absl::OkStatus();
  if (SumsShardsByHalves(c->plan)) {
    c->halves_refused = "gradients in shards are made half by half";
  } else if (c->halves_stuck) {
    c->halves_refused = "halves would wait for each other";
  }
  return absl::OkStatus();
}

absl::Status HashPass(Compilation* c) {
  if (!c->options.hash || !c->halves_refused.empty()) return absl::OkStatus();
  Hasher hasher;
  plan::WriteCanonical(c->plan, [&](std::string_view text) { hasher.Update(text); });
  c->plan.hash = hasher.HexDigest();
  return absl::OkStatus();
}

constexpr Pass kPasses[] = {
    {"balance", "which units each chunk of the pipeline has", BalancePass},
    {"differentiate", "the backward nodes", DifferentiatePass},
    {"recompute", "forward nodes that run again in the backward pass", RecomputePass},
    {"place", "a placement for each tensor and axis, collectives where it changes", PlacePass},
    {"fuse", "chains of ops become those that the device has kernels for, in FP8 where asked for", FusePass},
    {"cut", "nodes by chunk, transfers between neighbours, relays over the chunks in between", CutPass},
    {"parameters", "what is trained, and who shares it", ParametersPass},
    {"defer", "gradients of weights apart from the backward pass, under a zero bubble", DeferPass},
    {"stages", "buckets, slots, segments, memory and programs", StagesPass},
    {"halves", "whether halves of microbatches may run in turns", HalvesPass},
    {"hash", "the plan's hash", HashPass},
};

void AppendLocal(const LocalGraph& graph, std::string* text) {
  const auto values = [&](const std::vector<std::int32_t>& ids) {
    std::string list;
    for (std::int32_t id : ids) {
      const plan::LocalValue& value = graph.values[static_cast<size_t>(id)];
      list += fmt::format("{}{}:{}{}", list.empty() ? "" : ", ", value.name, engine::Name(value.dtype),
                          value.local.ToString());
    }
    return list;
  };
  for (const LocalNode& node : graph.nodes) {
    *text +=
        fmt::format("{} {}{} ({}) -> {}\n", node.op != nullptr ? node.op->name : plan::Name(node.collective),
                    node.name, node.attributes.ToString(), values(node.inputs), values(node.outputs));
  }
}

}  // namespace

std::vector<ProgramGraph*> Compilation::programs() {
  std::vector<ProgramGraph*> wanted;
  for (ProgramGraph* program : {&train, &evaluate}) {
    if (!program->logical.nodes().empty()) wanted.push_back(program);
  }
  for (ProgramGraph& program : generation) wanted.push_back(&program);
  return wanted;
}

std::span<const Pass> Passes() { return kPasses; }

absl::Status RunPasses(Compilation* compilation) {
  using Clock = std::chrono::steady_clock;
  for (const Pass& pass : kPasses) {
    const Clock::time_point begin = Clock::now();
    RETURN_IF_ERROR(pass.run(compilation));
    if (!compilation->options.after) continue;
    const std::chrono::duration<double> seconds = Clock::now() - begin;
    RETURN_IF_ERROR(compilation->options.after(pass.name, seconds.count(), *compilation));
  }
  return absl::OkStatus();
}

std::string ToText(const Compilation& compilation) {
  std::string text;
  if (!compilation.plan.stages.empty()) {
    plan::WriteCanonical(compilation.plan, [&](std::string_view part) { text += part; });
    return text;
  }
  std::vector<std::pair<std::string, const ProgramGraph*>> programs = {{"train", &compilation.train},
                                                                       {"evaluate", &compilation.evaluate}};
  for (size_t g = 0; g < compilation.generation.size(); ++g) {
    const plan::FormId form = plan::kFirstGenerationForm + static_cast<plan::FormId>(g);
    programs.emplace_back(compilation.plan.FormName(form), &compilation.generation[g]);
  }
  for (const auto& [name, program] : programs) {
    if (program->logical.nodes().empty()) continue;
    text += fmt::format("{}\n", name);
    const LocalGraph& local = program->cut.local.nodes.empty() ? program->local : program->cut.local;
    if (local.nodes.empty()) {
      text += program->logical.ToString();
    } else {
      AppendLocal(local, &text);
    }
  }
  return text;
}

}  // namespace engine::compile
