// What an iteration goes to by components of the model.
#include "engine/predict/components.h"

#include <doctest/doctest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "engine/model/load.h"
#include "engine/predict/compare.h"
#include "engine/predict/print.h"
#include "tests/data/temp_dir.h"
#include "tests/predict/plans.h"

namespace engine::predict {
namespace {

using Uses = std::vector<ComponentUse>;

// A recipe that extends one of those in recipes/.
recipe::Recipe TextRecipe(const std::string& name, const std::vector<std::string>& sets,
                          const std::string& changes = "") {
  recipe::LoadOptions options;
  options.sets = {"precision.compute=bf16", "cluster.device=h200"};
  options.sets.insert(options.sets.end(), sets.begin(), sets.end());
  const data::TempDir folder;
  const std::string path = folder / "recipe.toml";
  std::ofstream(path) << "extends = [\"" << ENGINE_SOURCE_DIR "/recipes/" << name << ".toml\"]\n" << changes;
  const recipe::LoadResult loaded = model::Load(path, options);
  for (const Diagnostic& diagnostic : loaded.diagnostics) MESSAGE(Format(diagnostic));
  REQUIRE_MESSAGE(loaded.ok(), name);
  return loaded.recipe;
}

// One rank, so that nothing runs beside a kernel; attention by the kernels whose time is in proportion to its pairs, however
// few these are.
Prediction PredictText(const std::string& changes) {
  const std::vector<std::string> sets = {"parallelism.tp=1", "precision.attention=reference"};
  return Predict(CudaPlan(TextRecipe("custom-block", sets, changes)), SmallNodes());
}

void Flatten(const Uses& uses, const std::string& path, std::map<std::string, ComponentUse>* all) {
  for (const ComponentUse& use : uses) {
    std::string name = path + use.name;
    if (use.layers > 0) name += "*";
    if (!use.variant.empty()) name += "(" + use.variant + ")";
    CHECK_MESSAGE(all->try_emplace(name, use).second, name);
    Flatten(use.within, name + "/", all);
  }
}

// Of a stage by path: "layers*/attention/qkv"; "layers*(window = 0)/core".
std::map<std::string, ComponentUse> UsesByPath(const Prediction& prediction, std::size_t stage = 0) {
  std::map<std::string, ComponentUse> all;
  Flatten(prediction.components.at(stage).uses, "", &all);
  return all;
}

std::string NamesOf(const Uses& uses) {
  std::string names;
  for (const ComponentUse& use : uses) names += (names.empty() ? "" : " ") + use.name;
  return names;
}

// Every use that has others within it is what they are together: nodes belong to steps.
void CheckWithin(const ComponentUse& use) {
  if (use.within.empty()) return;
  CAPTURE(use.name);
  ComponentUse sum;
  for (const ComponentUse& inner : use.within) {
    sum.forward_s += inner.forward_s;
    sum.backward_s += inner.backward_s;
    sum.parameters += inner.parameters;
    sum.saved_bytes += inner.saved_bytes;
    CheckWithin(inner);
  }
  CHECK(use.forward_s == doctest::Approx(sum.forward_s).epsilon(1e-9));
  CHECK(use.backward_s == doctest::Approx(sum.backward_s).epsilon(1e-9));
  CHECK(use.parameters == sum.parameters);
  CHECK(use.saved_bytes == sum.saved_bytes);
}

void CheckSums(const plan::Plan& plan, const Prediction& prediction) {
  REQUIRE(prediction.components.size() == plan.stages.size());
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const StageTime& time = prediction.stages[s];
    const StageComponents& components = prediction.components[s];
    double kernels = components.other.total_s();
    std::int64_t saved = 0;
    REQUIRE(!components.uses.empty());
    for (const ComponentUse& use : components.uses) {
      CHECK(use.total_s() + static_cast<double>(use.parameters + use.saved_bytes) > 0);
      kernels += use.total_s();
      saved += use.saved_bytes;
      CheckWithin(use);
    }
    CHECK(kernels == doctest::Approx(time.compute_s).epsilon(1e-9));
    CHECK(kernels + time.update_s + time.exposed_s + time.bubble_s ==
          doctest::Approx(prediction.iteration_s).epsilon(1e-9));
    CHECK(components.other.total_s() < 0.2 * time.compute_s);
    CHECK(saved <= plan.stages[s].memory.activations);
  }
}

}  // namespace

TEST_CASE("components: with exchange, update and bubble they add up to the iteration") {
  for (const std::vector<std::string>& layout : kLayouts) {
    CAPTURE(Text(layout));
    const plan::Plan plan = PlanOfLayout(layout);
    const Prediction prediction = Predict(plan, SmallNodes());
    CheckSums(plan, prediction);
    // Where events are noted, each run is played anew.
    std::vector<PlayedEvent> events;
    const Prediction noted = Predict(plan, SmallNodes(), &events);
    for (std::size_t s = 0; s < plan.stages.size(); ++s) {
      const auto other = UsesByPath(noted, s);
      for (const auto& [path, use] : UsesByPath(prediction, s))
        CHECK(use.total_s() == doctest::Approx(other.at(path).total_s()).epsilon(1e-9));
    }
  }
}

TEST_CASE("components: they add up in models whose steps are text, and with fp8 and recomputation") {
  for (const std::vector<std::string>& layout : std::vector<std::vector<std::string>>{
           {"parallelism.tp=1"},
           {"parallelism.tp=2"},
           {"parallelism.tp=1", "parallelism.pp=2"},
           {"parallelism.tp=1", "parallelism.pp=3", "parallelism.schedule=zero_bubble"}}) {
    CAPTURE(Text(layout));
    const plan::Plan plan = CudaPlan(TextRecipe("custom-block", layout));
    CheckSums(plan, Predict(plan, SmallNodes()));
  }
  for (const char* set :
       {"precision.compute=fp8", "recompute.granularity=full", "recompute.granularity=selective"}) {
    CAPTURE(set);
    const plan::Plan plan = CudaPlan(TextRecipe("gpt2-124m-1gpu", {set}));
    CheckSums(plan, Predict(plan, SmallNodes()));
  }
}

// Each kernel that was played belongs to the component of its instruction, in the pass whose segment ran it.
TEST_CASE("components: they are the kernels of the timeline") {
  const plan::Plan plan = PlanOfLayout({"parallelism.pp=2"});
  std::vector<PlayedEvent> events;
  const Prediction prediction = Predict(plan, SmallNodes(), &events);
  for (std::int32_t stage = 0; stage < 2; ++stage) {
    const plan::StagePlan& of = plan.stages[static_cast<std::size_t>(stage)];
    const plan::ChunkPasses& pass = of.chunks[0].train();
    std::map<std::string, PassTimes> top;  // by the outermost component, whatever layers it has
    for (const PlayedEvent& event : events) {
      if (event.stage != stage || event.stream != plan::kComputeStream) continue;
      if (event.instruction == nullptr || event.instruction->component == graph::kNoComponent) continue;
      const graph::Component* component =
          &plan.components[static_cast<std::size_t>(event.instruction->component)];
      while (component->within != graph::kNoComponent)
        component = &plan.components[static_cast<std::size_t>(component->within)];
      PassTimes& times = top[component->name];
      const bool backward = event.segment == &of.segments[static_cast<std::size_t>(pass.backward)];
      (backward ? times.backward_s : times.forward_s) += event.end_s - event.begin_s;
    }
    const Uses& uses = prediction.components[static_cast<std::size_t>(stage)].uses;
    CHECK(uses.size() == top.size());
    for (const ComponentUse& use : uses) {
      CAPTURE(use.name);
      CHECK(use.forward_s == doctest::Approx(top[use.name].forward_s).epsilon(1e-9));
      CHECK(use.backward_s == doctest::Approx(top[use.name].backward_s).epsilon(1e-9));
    }
  }
}

TEST_CASE(
    "components: of a decoder, its layers, their blocks and the steps of these, in order of execution") {
  const plan::Plan plan = CudaPlan(plan::TinyRecipe(true, OnSmallNodes({})));
  const Prediction prediction = Predict(plan, SmallNodes());
  const Uses& uses = prediction.components[0].uses;
  CHECK(NamesOf(uses) == "embedding.tokens layers final_norm head");
  const ComponentUse& layers = uses[1];
  CHECK(layers.layers == 8);
  CHECK(layers.variant.empty());
  CHECK(NamesOf(layers.within) == "attention mlp");
  CHECK(layers.within[0].layers == 0);
  const std::map<std::string, ComponentUse> all = UsesByPath(prediction);
  // hidden 32, heads 8 and 4 of 4 elements, mlp 64; all 8 layers
  CHECK(all.at("layers*/attention/norm").parameters == 8 * 32);
  CHECK(all.at("layers*/attention/qkv").parameters == 8 * 32 * (8 + 2 * 4) * 4);
  CHECK(all.at("layers*/attention/proj").parameters == 8 * 32 * 32);
  CHECK(all.at("layers*/mlp/fc1").parameters == 8 * 32 * 2 * 64);
  CHECK(all.at("head").parameters == 264 * 32);
  CHECK(all.at("layers*/attention/core").backward_s > all.at("layers*/attention/core").forward_s);
  // A pipeline has half of the layers in each stage, and the head in its last.
  const Prediction halves =
      Predict(CudaPlan(plan::TinyRecipe(true, OnSmallNodes({"parallelism.pp=2"}))), SmallNodes());
  CHECK(NamesOf(halves.components[0].uses) == "embedding.tokens layers");
  CHECK(NamesOf(halves.components[1].uses) == "layers final_norm head");
  std::int64_t count = 0;
  for (const StageComponents& stage : halves.components) {
    for (const ComponentUse& use : stage.uses) count += use.layers;
  }
  CHECK(count == 8);
}

// The stream into a layer is all that it keeps: of 32 tokens of 32 elements, 2 bytes each.
TEST_CASE("components: with full recomputation a layer saves its stream alone") {
  const plan::Plan plan = CudaPlan(plan::TinyRecipe(true, OnSmallNodes({"recompute.granularity=full"})));
  const std::map<std::string, ComponentUse> all = UsesByPath(Predict(plan, SmallNodes()));
  const std::int64_t stream = 32 * 32 * 2 * plan.stages[0].chunks[0].slots;
  CHECK(all.at("embedding.tokens").saved_bytes == stream);
  // The last layer's result is made together with its norm, which is the final one.
  CHECK(all.at("layers*").saved_bytes == 7 * stream);
  CHECK(all.at("final_norm").saved_bytes >= stream);
}

TEST_CASE("components: layers that a cycle or a pattern sets apart have rows of their own") {
  const Prediction cycle = PredictText("");
  CHECK(NamesOf(cycle.components[0].uses) == "embedding.tokens layers layers final_norm head");
  const std::map<std::string, ComponentUse> all = UsesByPath(cycle);
  const ComponentUse& within = all.at("layers*(window = 32)");
  const ComponentUse& whole = all.at("layers*(window = 0)");
  CHECK(within.layers == 4);
  CHECK(whole.layers == 2);
  CHECK(within.parameters == 2 * whole.parameters);
  // A layer's products take as long in both, attention does not.
  const double narrow = all.at("layers*(window = 32)/narrow").total_s() / 4;
  CHECK(narrow == doctest::Approx(all.at("layers*(window = 0)/narrow").total_s() / 2).epsilon(1e-9));
  const double core = all.at("layers*(window = 32)/core").total_s() / 4;
  CHECK(core < 0.9 * all.at("layers*(window = 0)/core").total_s() / 2);

  const Prediction pattern = PredictText(R"(
    [[model.replace]]
    step = "layers"
    with = { do = "stack", as = "layers", pattern = "ABA", set = { window = 0 }, letters = { A = "mine", B = ["mine as first", "mine as second"] } }
  )");
  const std::map<std::string, ComponentUse> letters = UsesByPath(pattern);
  CHECK(letters.at("layers*(mine)").layers == 2);
  CHECK(letters.at("layers*(mine as first, mine as second)").layers == 1);
  CHECK(letters.at("layers*(mine as first, mine as second)/second/core").total_s() ==
        doctest::Approx(letters.at("layers*(mine)/core").total_s() / 2).epsilon(1e-9));
}

// Dropout makes attention slower, and touches nothing else.
TEST_CASE("components: a changed step of a text moves its row and those around it alone") {
  const std::string wide = "[model]\ndims.E = 64\n";
  const std::map<std::string, ComponentUse> before = UsesByPath(PredictText(wide));
  const std::map<std::string, ComponentUse> after =
      UsesByPath(PredictText(wide + "[block.mine]\nsteps.core = { dropout = 0.1 }\n"));
  CHECK(before.size() == after.size());
  for (const auto& [path, use] : after) {
    CAPTURE(path);
    REQUIRE(before.contains(path));
    const bool moves = path.ends_with("/core") || use.layers > 0;
    CHECK((before.at(path).total_s() != doctest::Approx(use.total_s()).epsilon(1e-9)) == moves);
  }
}

TEST_CASE("components: as a table, and as JSON") {
  const plan::Plan plan = CudaPlan(plan::TinyRecipe(true, OnSmallNodes({"parallelism.pp=2"})));
  const Prediction prediction = Predict(plan, SmallNodes());
  const std::string text = ComponentsText(prediction);
  for (const char* part :
       {" of stage 1, ", "\n  component ", "\n  layers × ", "\n    attention ", "\n      qkv ", "\n  head ",
        "\n  other kernels ", "\n  update ", "\n  exposed exchange ", "\n  bubble "}) {
    CHECK_MESSAGE(text.find(part) != std::string::npos, part);
  }
  const nlohmann::json json = PredictionToJson(prediction);
  REQUIRE(json.at("stages").size() == 2);
  for (const nlohmann::json& stage : json.at("stages")) {
    double sum =
        stage.at("other").at("forward_s").get<double>() + stage.at("other").at("backward_s").get<double>();
    for (const nlohmann::json& use : stage.at("components"))
      sum += use.at("forward_s").get<double>() + use.at("backward_s").get<double>();
    CHECK(sum == doctest::Approx(stage.at("compute_s").get<double>()).epsilon(1e-9));
  }
  const nlohmann::json& layers = json.at("stages").at(0).at("components").at(1);
  CHECK(layers.at("name") == "layers");
  CHECK(layers.at("layers").get<int>() +
            json.at("stages").at(1).at("components").at(0).at("layers").get<int>() ==
        8);
  CHECK(layers.at("within").at(0).at("name") == "attention");
}

}  // namespace engine::predict
