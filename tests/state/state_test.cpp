// Weights and optimizer state: the same bits in every layout, at the start, and through checkpoints of other
// layouts.
#include "engine/state/state.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <map>

#include "engine/ops/fp8.h"
#include "tests/state/world.h"

namespace engine::train::testing {
namespace {

double StdOf(const std::vector<float>& values) {
  double sum = 0;
  double squares = 0;
  for (float value : values) {
    sum += value;
    squares += static_cast<double>(value) * value;
  }
  const double n = static_cast<double>(values.size());
  return std::sqrt(squares / n - sum / n * (sum / n));
}

}  // namespace

TEST_CASE("initial weights are those of the generator, of the recipe's deviation") {
  const World world({});
  world.Initialize();
  const std::vector<float> embedding = world.Weight("embedding.tokens");
  REQUIRE(embedding.size() == 300 * 32);
  const PhiloxKey key = MakePhiloxKey(7, "embedding.tokens");
  for (size_t i = 0; i < embedding.size(); ++i)
    REQUIRE(embedding[i] == static_cast<float>(0.1 * PhiloxNormal(key, i)));
  // The deviation of n draws is off by σ/√(2n); five of those.
  const auto check = [&](const std::string& name, double std) {
    INFO(name);
    const std::vector<float> values = world.Weight(name);
    CHECK(std::abs(StdOf(values) - std) < 5 * std / std::sqrt(2.0 * static_cast<double>(values.size())));
  };
  const double scaled = 0.1 / std::sqrt(2.0 * 4);  // output projections: σ/√(2·layers) (GPT-2, Megatron-LM)
  check("embedding.tokens", 0.1);
  check("embedding.positions", 0.1);
  check("layers.0.attention.qkv.weight", 0.1);
  check("layers.3.attention.proj.weight", scaled);
  check("layers.2.mlp.fc1.weight", 0.1);
  check("layers.1.mlp.fc2.weight", scaled);
  for (float value : world.Weight("layers.0.mlp.norm.weight")) REQUIRE(value == 1.0F);
  for (float value : world.Weight("layers.0.attention.qkv.bias")) REQUIRE(value == 0.0F);
}

TEST_CASE("what an optimizer keeps begins as its entry says") {
  static constexpr plan::OptimizerState kStates[] = {
      {.name = "m", .title = "first moments", .folder = "adam.m", .initial = 0.5F},
      {.name = "v", .title = "second moments", .folder = "adam.v"}};
  plan::OptimizerDef optimizer = plan::AllOptimizers()[0];
  optimizer.states = kStates;
  for (const std::vector<std::string>& layout : {kLayouts[0], kLayouts[1], kLayouts[2]}) {
    const World world(layout, [&](plan::Plan& plan) { plan.optimizer = &optimizer; });
    world.Initialize();
    std::int64_t elements = 0;
    for (const auto& rank : world.ranks->executors()) {
      for (const executor::OptimizerRange& range : rank->OptimizerState()) {
        for (size_t s = 0; s < std::size(kStates); ++s) {
          const auto* numbers = reinterpret_cast<const float*>(range.states[s].data);
          const auto wrong = std::count_if(numbers, numbers + (range.end - range.begin),
                                           [&](float x) { return x != kStates[s].initial; });
          CHECK(wrong == 0);
        }
        elements += range.end - range.begin;
      }
    }
    CHECK(elements >= world.plan.parameter_count);
  }
}

TEST_CASE("padded rows of the vocabulary are zero and stay zero") {
  const World world({"parallelism.tp=2", "model.vocab_multiple=128"});  // 300 → 512 rows, 256 a rank
  REQUIRE(world.plan.vocab_rows == 512);
  world.Initialize();
  world.Train(0, 2);
  const executor::RankExecutor& last = *world.ranks->executors()[1];
  for (const executor::LocalTensor& tensor : last.Parameters()) {
    if (world.plan.parameters[static_cast<size_t>(tensor.parameter)].name != "embedding.tokens") continue;
    REQUIRE((tensor.view.shape == Shape{256, 32}));
    for (std::int64_t i = (300 - 256) * 32; i < 256 * 32; ++i) REQUIRE(tensor.view.as<float>()[i] == 0.0F);
  }
}

namespace {

// Names of the states of each stage, in their order.
using StateNames = std::vector<std::vector<std::string>>;

// Gives the plan states of quantised tensors, which the CPU has no kernels for.
World WithStates(const std::vector<std::string>& layout, const StateNames& names,
                 DType format = DType::kE4M3) {
  return World(layout, [&](plan::Plan& plan) {
    REQUIRE(plan.stages.size() == names.size());
    for (size_t s = 0; s < names.size(); ++s) {
      plan::StagePlan& stage = plan.stages[s];
      stage.scales = {.offset = stage.arena_bytes,
                      .elements = 8 * static_cast<std::int64_t>(names[s].size()),
                      .dtype = DType::kF32};
      stage.arena_bytes += (stage.scales.bytes() + 255) / 256 * 256;
      for (const std::string& name : names[s]) {
        plan.values.push_back({.name = name,
                               .shape = {8},
                               .dtype = DType::kF32,
                               .layout = {},
                               .local = {8},
                               .kind = graph::ValueKind::kState});
        stage.states.push_back(
            {.buffer = {.value = static_cast<std::int32_t>(plan.values.size() - 1),
                        .offset = stage.scales.offset + 32 * static_cast<std::int64_t>(stage.states.size()),
                        .elements = 8,
                        .dtype = DType::kF32},
             .spec = ops::ScaleSpec(2, format)});
      }
    }
  });
}

float& ScaleOf(const executor::RankExecutor& rank, size_t i) { return rank.State(i).as<float>()[4]; }

}  // namespace

TEST_CASE("states of quantised tensors go by name from layout to layout") {
  const std::vector<std::pair<std::vector<std::string>, StateNames>> worlds = {
      {{}, {{"w", "x", "y", "z"}}},
      {{"parallelism.dp=2", "training.micro_batch=2"}, {{"w", "x", "y", "z"}}},
      {{"parallelism.tp=2"}, {{"z", "x", "y", "x", "w"}}},  // x is quantised twice
      {{"parallelism.pp=2"}, {{"z", "w"}, {"y", "x"}}},
      {{"parallelism.dp=2", "parallelism.pp=2", "training.micro_batch=2"}, {{"w"}, {"x", "z", "y"}}}};
  const std::map<std::string, float> scales = {{"w", 3}, {"x", 5}, {"y", 7}, {"z", 11}};
  const auto each = [](const World& world, const StateNames& names, const auto& visit) {
    for (const auto& rank : world.ranks->executors()) {
      const std::vector<std::string>& mine = names[static_cast<size_t>(world.plan.StageOfRank(rank->rank()))];
      for (size_t i = 0; i < mine.size(); ++i) visit(*rank, mine[i], i);
    }
  };
  const TempDir folder;
  int saved = 0;
  for (const auto& [layout, names] : worlds) {
    const World from = WithStates(layout, names);
    from.Initialize();
    each(from, names, [&](const executor::RankExecutor& rank, const std::string& name, size_t i) {
      CHECK(ScaleOf(rank, i) == 2);
      ScaleOf(rank, i) = scales.at(name);
    });
    const std::string checkpoint = from.Save(folder / std::to_string(saved++));
    for (const auto& [other, other_names] : worlds) {
      const World to = WithStates(other, other_names);
      to.Load(checkpoint);
      each(to, other_names, [&](const executor::RankExecutor& rank, const std::string& name, size_t i) {
        CAPTURE(name);
        CHECK(ScaleOf(rank, i) == scales.at(name));
      });
    }
    // A tensor that the checkpoint has no state of, and tensors that are of another format here.
    const World changed = WithStates({}, {{"new", "x"}});
    changed.Load(checkpoint);
    CHECK(ScaleOf(*changed.ranks->executors()[0], 0) == 2);
    CHECK(ScaleOf(*changed.ranks->executors()[0], 1) == 5);
    const World wider = WithStates({}, {{"w", "x"}}, DType::kE5M2);
    wider.Load(checkpoint);
    CHECK(ScaleOf(*wider.ranks->executors()[0], 0) == 2);
    CHECK(ScaleOf(*wider.ranks->executors()[0], 1) == 2);
  }
}

TEST_CASE("a checkpoint of any layout loads in any other bit by bit, and the next losses agree") {
  // Two float32 sums in different orders, as in layout_test.cpp.
  constexpr double kBound = 4 * 110 * 1.2e-7;
  const TempDir folder;
  std::vector<std::string> saved;
  std::vector<double> losses;  // of iterations 2 and 3, on one rank
  for (size_t from = 0; from < kLayouts.size(); ++from) {
    const World world(kLayouts[from]);
    world.Initialize();
    world.Train(0, 2);
    saved.push_back(world.Save(folder / ("from" + std::to_string(from))));
    if (from == 0) losses = world.Train(2, 4);
  }
  for (size_t to = 0; to < kLayouts.size(); ++to) {
    for (size_t from = 0; from < kLayouts.size(); ++from) {
      INFO("layout " << from << " in layout " << to);
      const World world(kLayouts[to]);
      world.Load(saved[from]);
      // Written again, weights and both moments, before anything is trained.
      CHECK((Tensors(world.Save(folder / "again")) == Tensors(saved[from])));
      const std::vector<double> next = world.Train(2, 4);
      for (size_t i = 0; i < next.size(); ++i) CHECK(std::abs(next[i] - losses[i]) <= kBound * losses[i]);
    }
  }
}

TEST_CASE("a checkpoint of another model is refused by name and shape") {
  const TempDir folder;
  const World world({"model.layers=2"});
  world.Initialize();
  const std::string saved = world.Save(folder / "root");
  const auto reader = checkpoint::Reader::Open(saved);
  REQUIRE(reader.ok());
  const auto refusal = [&](const std::vector<std::string>& sets) {
    const World other(sets);
    return Message(other.ranks->Run([&](executor::RankExecutor& rank) {
      return state::LoadCheckpoint(other.plan, *reader, true, rank);
    }));
  };
  CHECK(Contains(refusal({}), "checkpoint " + saved + " has no tensor layers."));
  CHECK(refusal({"model.layers=2", "model.vocab=290"}) ==
        "tensor embedding.tokens is [300, 32] in checkpoint " + saved +
            ", but [290, 32] in this recipe's model");
}

}  // namespace engine::train::testing
