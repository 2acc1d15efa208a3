#include "engine/compile/placements.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine/compile/conversion.h"
#include "engine/driver/compile_recipe.h"
#include "engine/verify/verify.h"
#include "tests/compile/block_recipe.h"
#include "tests/graphs/graphs.h"
#include "tests/plan/plans.h"

namespace engine::compile {
namespace {

using Counts = std::map<std::string, int>;  // "all_reduce tp" → how many

// Collectives of a segment whose name contains `part`; "" for all.
Counts CollectivesOf(const plan::Plan& plan, const std::string& segment_name, const std::string& part) {
  Counts counts;
  for (const plan::StagePlan& stage : plan.stages) {
    for (const plan::Segment& segment : stage.segments) {
      if (segment.name != segment_name) continue;
      for (const plan::Instruction& instruction : segment.instructions) {
        if (instruction.collective() == plan::Collective::kNone ||
            instruction.name.find(part) == std::string::npos)
          continue;
        ++counts[std::string(instruction.kernel()) + " " + instruction.group().axes.ToString()];
      }
    }
  }
  return counts;
}

// Of these steps, of which the last one is `up`, in a layout that all of its steps allow.
recipe::Recipe OfBlock(const std::string& steps, const std::vector<std::string>& sets) {
  const recipe::LoadResult loaded =
      LoadBlock(steps + R"({ do = "residual", as = "r", of = ["x", "up"], to = "x" },)", sets);
  for (const Diagnostic& diagnostic : loaded.diagnostics) MESSAGE(Format(diagnostic));
  REQUIRE(loaded.ok());
  return loaded.recipe;
}

// The layout of the parameter or state of this name, which all programs of a verified plan share.
std::string LayoutOf(const plan::Plan& plan, const std::string& name) {
  int programs = 0;
  std::string layout;
  for (const plan::LocalValue& value : plan.values) {
    if (value.name != name) continue;
    if (programs++ > 0) CHECK(value.layout.ToString() == layout);
    layout = value.layout.ToString();
  }
  CAPTURE(name);
  CHECK(programs > 1);
  return layout;
}

}  // namespace

// Dropout is in training alone, and to split what it reads makes another signature of the product behind it the cheapest.
TEST_CASE("placements: parameters lie in evaluation as in training") {
  const recipe::Recipe recipe = OfBlock(R"(
      { do = "linear", as = "fc1", of = "x", out = ["F"] },
      { do = "act", as = "a", act = "silu" },
      { do = "linear", as = "down", out = ["C"] },
      { do = "dropout", as = "drop", p = 0.1 },
      { do = "linear", as = "up", out = ["D"] },)",
                                        {"model.dims.D=16", "model.dims.C=32", "parallelism.tp=2"});
  const absl::StatusOr<plan::Plan> plan = driver::CompileRecipe(recipe, {});
  if (!plan.ok()) FAIL(Message(plan.status()));
  CHECK(LayoutOf(*plan, "layers.0.up.weight") == "tp:S(0)");
}

// Prompts are split along cp and single tokens are not.
TEST_CASE("placements: parameters and caches lie the same way for prompts and for single tokens") {
  const recipe::Recipe recipe = OfBlock(R"(
      { do = "linear", as = "qkv", of = "x", out = ["H", 3, "E"] },
      { do = "qkv_split", as = "s", to = ["q","k","v"] },
      { do = "attention", as = "core", of = ["q","k","v"] },
      { do = "linear", as = "down", out = ["C"] },
      { do = "linear", as = "up", out = ["D"] },)",
                                        {"model.dims.H=4", "parallelism.tp=2", "parallelism.cp=2"});
  const absl::StatusOr<plan::Plan> plan = driver::CompileGeneration(
      recipe, {}, {.slots = 2, .context = 64, .prefill_tokens = {16, 64}, .decode_batches = {1, 2}});
  if (!plan.ok()) FAIL(Message(plan.status()));
  LayoutOf(*plan, "layers.0.up.weight");
}

TEST_CASE("placements: tp alone gives Megatron's f and g, and nothing else in a layer") {
  for (const bool llama : {false, true}) {
    const plan::Plan plan = plan::TinyPlan(llama, {"parallelism.tp=2"});
    CAPTURE(llama);
    CHECK(CollectivesOf(plan, "forward.0", "layers.3.") == Counts{{"all_reduce tp", 2}});
    CHECK(CollectivesOf(plan, "backward.0", "layers.3.") == Counts{{"all_reduce tp", 2}});
    // The embedding; log-sum-exp and target of the loss.
    CHECK(CollectivesOf(plan, "forward.0", "") == Counts{{"all_reduce tp", 2 * 8 + 1 + 2}});
    // The head's input gradient.
    CHECK(CollectivesOf(plan, "backward.0", "") == Counts{{"all_reduce tp", 2 * 8 + 1}});
  }
}

TEST_CASE("placements: sequence parallelism gathers and scatters, and reduces no activation whole") {
  for (const bool llama : {false, true}) {
    const plan::Plan plan = plan::TinyPlan(llama, {"parallelism.tp=2", "parallelism.sequence_parallel=true"});
    const plan::Plan deeper =
        plan::TinyPlan(llama, {"parallelism.tp=2", "parallelism.sequence_parallel=true", "model.layers=9"});
    CAPTURE(llama);
    // What one more layer adds.
    const auto layer = [&](const char* segment, const char* collective) {
      return CollectivesOf(deeper, segment, "").at(collective) -
             CollectivesOf(plan, segment, "").at(collective);
    };
    CHECK(layer("forward.0", "all_gather tp") == 2);
    CHECK(layer("forward.0", "reduce_scatter tp") == 2);
    // The saved input of the column-parallel product is gathered again for its weight's gradient.
    CHECK(layer("backward.0", "all_gather tp") == 4);
    CHECK(layer("backward.0", "reduce_scatter tp") == 2);
    CHECK(CollectivesOf(plan, "forward.0", "").count("all_to_all tp") == 0);
    CHECK(CollectivesOf(plan, "backward.0", "").count("all_to_all tp") == 0);
    CHECK(CollectivesOf(plan, "forward.0", "").at("all_reduce tp") == 2);  // per-token statistics of the loss
    CHECK(CollectivesOf(plan, "backward.0", "").count("all_reduce tp") == 0);
  }
}

TEST_CASE("placements: sequence parallelism splits tokens by samples where they suffice") {
  // The dim along which the first sum of the forward pass is scattered over tp.
  const auto split = [](const std::vector<std::string>& more) {
    std::vector<std::string> sets = {"parallelism.tp=2", "parallelism.sequence_parallel=true"};
    sets.insert(sets.end(), more.begin(), more.end());
    const plan::Plan plan = plan::TinyPlan(false, sets);
    for (const plan::Instruction& instruction : plan.stages[0].segments[1].instructions) {
      if (instruction.collective() != plan::Collective::kReduceScatter) continue;
      const auto& values = plan.values;
      const Shape& from = values[static_cast<size_t>(instruction.inputs[0].value)].local;
      const Shape& to = values[static_cast<size_t>(instruction.outputs[0].value)].local;
      return from[0] != to[0] ? 0 : from[1] != to[1] ? 1 : -1;
    }
    return -1;
  };
  CHECK(split({}) == 1);  // one sample
  CHECK(split({"training.micro_batch=2", "training.global_batch=8"}) == 0);
  CHECK(split({"training.micro_batch=2", "training.global_batch=8", "parallelism.dp=2"}) == 0);
  CHECK(split({"training.micro_batch=3", "training.global_batch=6"}) == 1);
  CHECK(split({"training.micro_batch=1", "training.global_batch=8", "parallelism.dp=2"}) == 1);
}

TEST_CASE("placements: a norm of each head takes the rank's heads, one over all heads takes them all") {
  using graph::Placement;
  for (const bool all_heads : {false, true}) {
    CAPTURE(all_heads);
    const plan::Plan plan = plan::TinyPlanOf(plan::NormedDecoder(2, all_heads ? 2 : 1), {"parallelism.tp=2"});
    REQUIRE(verify::Verify(plan, {}).ok());
    const auto on_tp = [&](const plan::BufferRef& ref) {
      return plan.values[static_cast<size_t>(ref.value)].layout.At(graph::Axis::kTp);
    };
    int norms = 0;
    for (const plan::Segment& segment : plan.stages[0].segments) {
      for (const plan::Instruction& instruction : segment.instructions) {
        if (!instruction.name.ends_with(".q_norm")) continue;
        CAPTURE(instruction.name);
        ++norms;
        const bool backward = instruction.kernel() == "rms_norm_grad";
        const Placement x = on_tp(instruction.inputs[backward ? 1 : 0]);
        CHECK(on_tp(instruction.inputs[backward ? 2 : 1]) == Placement::R());  // the gain
        if (all_heads) {
          CHECK(x != Placement::S(2));
          CHECK(x != Placement::S(3));
        } else {
          CHECK(x == Placement::S(2));
          if (backward) CHECK(on_tp(instruction.outputs[1]) == Placement::P());
        }
      }
    }
    CHECK(norms >= 4);
  }
}

TEST_CASE("placements: dp alone exchanges nothing but gradients and scalars") {
  const plan::Plan plan = plan::TinyPlan(false, {"parallelism.dp=4"});
  CHECK(CollectivesOf(plan, "forward.0", "").empty());
  CHECK(CollectivesOf(plan, "backward.0", "").empty());
  const Counts update = CollectivesOf(plan, "update", "");
  CHECK(update.at("all_reduce world") == 1);
  CHECK(update.at("all_reduce dp") == static_cast<int>(plan.stages[0].buckets.size()));
  const Counts zero =
      CollectivesOf(plan::TinyPlan(false, {"parallelism.dp=4", "parallelism.zero_stage=1"}), "update", "");
  CHECK(zero.at("reduce_scatter dp") == zero.at("all_gather dp"));
  CHECK(zero.count("all_reduce dp") == 0);
}

TEST_CASE("placements: cp exchanges heads where they divide, else gathers keys and values") {
  // 8 heads over cp = 4: q, k and v together, and the output, forward.
  const plan::Plan heads = plan::TinyPlan(false, {"parallelism.cp=4"});
  CHECK(CollectivesOf(heads, "forward.0", "layers.3.") == Counts{{"all_to_all cp", 2}});
  CHECK(CollectivesOf(heads, "backward.0", "layers.3.").count("all_gather cp") == 0);
  // 2 kv heads do not divide by 4.
  const plan::Plan gathered = plan::TinyPlan(true, {"parallelism.cp=4", "model.attention.kv_heads=2"});
  CHECK(CollectivesOf(gathered, "forward.0", "layers.3.") == Counts{{"all_gather cp", 2}});
  CHECK(CollectivesOf(gathered, "backward.0", "layers.3.") ==
        Counts{{"all_gather cp", 2}, {"reduce_scatter cp", 2}});
}

TEST_CASE("placements: a layout that does not divide is an error, not a crash") {
  recipe::Recipe recipe = plan::TinyRecipe(false, {"parallelism.cp=2"});
  recipe.data.sequence_length = 30;  // past the recipe's own checks: not a multiple of 2·cp
  const absl::StatusOr<plan::Plan> plan = driver::CompileRecipe(recipe, {});
  REQUIRE_FALSE(plan.ok());
  CHECK_MESSAGE(Message(plan.status()).find("has no lawful placement along cp = 2") != std::string::npos,
                Message(plan.status()));
}

TEST_CASE("wire bytes: ring algorithms") {
  CHECK(plan::WireBytes(plan::Collective::kAllReduce, 800, 800, 4) == 1200);
  CHECK(plan::WireBytes(plan::Collective::kReduceScatter, 800, 200, 4) == 600);
  CHECK(plan::WireBytes(plan::Collective::kAllGather, 200, 800, 4) == 600);
  CHECK(plan::WireBytes(plan::Collective::kAllToAll, 800, 800, 4) == 600);
  CHECK(plan::WireBytes(plan::Collective::kSlice, 800, 200, 4) == 0);
}

// Queries and keys are split by heads along both axes and normalised over all heads: what tp splits lies outside of what cp does.
TEST_CASE("placements: OLMo 2 has plans with tp and cp together") {
  for (const char* tp : {"parallelism.tp=2", "parallelism.tp=4"}) {
    for (const char* cp : {"parallelism.cp=2", "parallelism.cp=4"}) {
      const recipe::LoadResult loaded = model::LoadExtendingText(std::string(R"(
        extends = "configs/models/olmo2-7b.toml"
        [model]
        dims = { D = 32, L = 2, H = 8, K = 8, E = 8, F = 48, V = 257 }
      )") + kOtherTables,
                                                                 "olmo.toml", {.sets = {tp, cp}, .root = ""});
      for (const Diagnostic& diagnostic : loaded.diagnostics) MESSAGE(Format(diagnostic));
      REQUIRE(loaded.ok());
      const absl::StatusOr<plan::Plan> plan = driver::CompileRecipe(loaded.recipe, {});
      CHECK_MESSAGE(plan.ok(), Message(plan.status()));
    }
  }
}

// One gradient is that of both terms: what it knows of its dims stays.
TEST_CASE("placements: terms of a sum may be split each its own way") {
  for (const char* of : {"[\"u\", \"j\"]", "[\"j\", \"u\"]"}) {
    CAPTURE(of);
    const recipe::Recipe recipe = OfBlock(fmt::format(R"(
      {{ do = "linear", as = "u", of = "x", out = ["F"] }},
      {{ do = "linear", as = "a", of = "x", out = ["D"] }},
      {{ do = "linear", as = "b", of = "x", out = ["D"] }},
      {{ do = "join", as = "j", of = ["a", "b"] }},
      {{ do = "add", as = "s", of = {} }},
      {{ do = "linear", as = "up", of = "s", out = ["D"] }},)",
                                                      of),
                                          {"parallelism.tp=2"});
    const absl::StatusOr<plan::Plan> plan = driver::CompileRecipe(recipe, {});
    CHECK_MESSAGE(plan.ok(), Message(plan.status()));
  }
}

TEST_CASE("conversions: from every layout to every other one, each by one lawful collective") {
  using graph::Axis;
  using graph::Placement;
  plan::Mesh mesh;
  for (const Axis axis : {Axis::kTp, Axis::kCp, Axis::kDp}) mesh.sizes[static_cast<size_t>(axis)] = 2;
  const Shape shape = {8, 16, 8, 8};
  const graph::Dims dims = {graph::Dim::kSample, graph::Dim::kCausalSequence, graph::Dim::kHead,
                            graph::Dim::kFeature};
  const auto of_axis = [](std::initializer_list<int> split, bool sums) {
    std::vector<Placement> all = {Placement::R()};
    for (const int dim : split) all.push_back(Placement::S(dim));
    if (sums) all.push_back(Placement::P());
    return all;
  };
  // What is partial is summed; nothing becomes partial.
  const auto layouts = [&](bool sums) {
    std::vector<plan::Layout> all;
    for (const Placement& tp : of_axis({0, 1, 2, 3}, sums)) {
      for (const Placement& cp : of_axis({1, 2}, false)) {
        for (const Placement& dp : of_axis({0}, sums)) {
          plan::Layout layout(dims);
          layout.Set(Axis::kTp, tp);
          layout.Set(Axis::kCp, cp);
          layout.Set(Axis::kDp, dp);
          all.push_back(layout);
        }
      }
    }
    return all;
  };
  const graph::Graph graph;
  std::size_t most = 0;
  for (const plan::Layout& have : layouts(true)) {
    for (const plan::Layout& want : layouts(false)) {
      CAPTURE(have.ToString());
      CAPTURE(want.ToString());
      LocalGraphBuilder local(graph);
      LayoutConverter converter(&local, mesh);
      const std::int32_t from = local.AddValue("x", {.shape = shape, .dtype = DType::kF32, .dims = dims},
                                               have, graph::ValueKind::kActivation, graph::kNoValue);
      const std::int32_t to = converter.Convert(from, want, {}, /*share=*/false);
      CHECK(local.value(to).layout == want);
      const LocalGraph made = std::move(local).Finish(mesh);
      most = std::max(most, made.nodes.size());
      for (const LocalNode& node : made.nodes) {
        const plan::Layout& before = made.values[static_cast<size_t>(node.inputs[0])].layout;
        const plan::Layout& after = made.values[static_cast<size_t>(node.outputs[0])].layout;
        CHECK(CanConvert(before, shape, node.axis, after.At(node.axis), mesh));
      }
    }
  }
  CHECK(most <= 5);
}

// What a tensor goes through from one layout to another, on two ranks along each axis.
std::string Steps(const plan::Layout& have, const plan::Layout& want) {
  plan::Mesh mesh;
  for (const graph::Axis axis : {graph::Axis::kTp, graph::Axis::kCp}) mesh.sizes[graph::Index(axis)] = 2;
  const graph::Graph graph;
  LocalGraphBuilder local(graph);
  LayoutConverter converter(&local, mesh);
  const std::int32_t from =
      local.AddValue("x", {.shape = {8, 16, 8, 8}, .dtype = DType::kF32, .dims = have.dims()}, have,
                     graph::ValueKind::kActivation, graph::kNoValue);
  converter.Convert(from, want, {}, /*share=*/false);
  std::string steps;
  for (const LocalNode& node : std::move(local).Finish(mesh).nodes)
    steps += fmt::format("{} {}; ", plan::Name(node.collective), graph::kAxisNames[graph::Index(node.axis)]);
  return steps;
}

TEST_CASE("conversions: a dim is cut along an outer axis before it is exchanged along an inner one") {
  using graph::Axis;
  using graph::Placement;
  const auto layout = [](const Placement& tp, const Placement& cp) {
    plan::Layout made(
        {graph::Dim::kSample, graph::Dim::kCausalSequence, graph::Dim::kHead, graph::Dim::kFeature});
    made.Set(Axis::kTp, tp);
    made.Set(Axis::kCp, cp);
    return made;
  };
  const plan::Layout heads = layout(Placement::S(2), Placement::S(2));
  CHECK(Steps(layout(Placement::R(), Placement::S(1)), heads) == "slice tp; all_to_all cp; ");
  CHECK(Steps(layout(Placement::R(), Placement::P()), heads) == "slice tp; reduce_scatter cp; ");
  // Each goes where the other one is.
  CHECK(Steps(layout(Placement::S(2), Placement::S(3)), layout(Placement::S(3), Placement::S(2))) ==
        "all_gather cp; all_to_all tp; slice cp; ");
  CHECK(Steps(layout(Placement::S(2), Placement::S(1)), layout(Placement::S(1), Placement::S(2))) ==
        "all_gather cp; all_to_all tp; slice cp; ");
}

}  // namespace engine::compile
