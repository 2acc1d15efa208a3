// Checkpoints of models with experts: what any layout writes any other reads, bit by bit. The expert is a dim of a logical
// tensor, so that ranks of ep hold boxes of it as ranks of tp hold boxes of others.
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "tests/train/run_testing.h"
#include "tests/train/text_testing.h"

namespace engine::train::testing {
namespace {

// Mixtral's steps with eight experts, and a bias of the router that goes by a rate of its own and has no moments.
recipe::Recipe SmallMixtral(const std::string& sets) {
  std::vector<std::string> all = {
      "model.dims={ D = 32, L = 2, H = 4, K = 2, E = 8, F = 12, X = 8, T = 2, V = 300 }",
      "block.mlp.steps.router={ bias_rate = 0.01 }",
      "model.vocab_multiple=16",
      "model.init_std=0.1",
      "data.paths=[\"none\"]",
      "data.sequence_length=16",
      "optimizer.learning_rate=1e-2",
      "optimizer.epsilon=1e-3",
      "optimizer.weight_decay=0.1",
      "schedule.kind=constant",
      "training.global_batch=8",
      "training.iterations=5",
      "training.seed=7"};
  const std::vector<std::string> own = SetsOf(sets);
  all.insert(all.end(), own.begin(), own.end());
  return Loaded(model::Load(ENGINE_SOURCE_DIR "/configs/blocks/mixtral.toml", {.sets = all, .root = ""}));
}

void Must(const absl::Status& status) { REQUIRE_MESSAGE(status.ok(), Message(status)); }

// The ranks of one layout.
struct ExpertWorld {
  explicit ExpertWorld(const std::string& sets) : recipe(SmallMixtral(sets)), device(CpuDevice()) {
    absl::StatusOr<plan::Plan> compiled = driver::CompileRecipe(recipe, {.profile = device.profile});
    Must(compiled.status());
    plan = *std::move(compiled);
    auto created = state::Ranks::Create(plan, device, 7);
    Must(created.status());
    ranks = *std::move(created);
  }
  void Begin() const {
    Must(
        ranks->Run([&](executor::RankExecutor& rank) { return state::InitializeParameters(plan, 7, rank); }));
  }
  // The objective of each of the iterations [first, end).
  std::vector<double> Train(int first, int end) const {
    std::vector<double> losses;
    for (int i = first; i < end; ++i) {
      double loss = 0;
      Must(ranks->Run([&](executor::RankExecutor& rank) -> absl::Status {
        ASSIGN_OR_RETURN(const executor::IterationResult result,
                         rank.Train(i, i + 1, 1e-2, CounterFeed(plan, i * plan.global_batch)));
        if (rank.rank() == 0) loss = plan.Objective(result.sums, plan.global_batch);
        return absl::OkStatus();
      }));
      losses.push_back(loss);
    }
    return losses;
  }
  std::string Save(const std::string& root) const {
    Must(state::SaveCheckpoint(plan, root,
                               {.iteration = 2,
                                .consumed_samples = 16,
                                .seed = 7,
                                .optimizer_steps = 2,
                                .plan_hash = plan.hash,
                                .recipe_toml = "",
                                .engine_version = "test",
                                .mesh = {}},
                               *ranks));
    return checkpoint::IterationPath(root, 2);
  }
  void Load(const std::string& folder) const {
    const auto reader = checkpoint::Reader::Open(folder);
    Must(reader.status());
    Must(ranks->Run(
        [&](executor::RankExecutor& rank) { return state::LoadCheckpoint(plan, *reader, true, rank); }));
  }

  recipe::Recipe recipe;
  state::Device device;
  plan::Plan plan;
  std::unique_ptr<state::Ranks> ranks;
};

}  // namespace

TEST_CASE("a checkpoint of any layout of experts loads in any other bit by bit, and the next losses agree") {
  const std::vector<const char*> layouts = {"micro_batch=2",
                                            "dp=2 micro_batch=2",
                                            "tp=2 micro_batch=2",
                                            "ep=2 micro_batch=2",
                                            "ep=4 micro_batch=2",
                                            "ep=2 pp=2 micro_batch=2",
                                            "ep=2 cp=2 micro_batch=2",
                                            "ep=2 dp=2 zero_stage=1 micro_batch=2",
                                            "ep=2 dp=2 zero_stage=3 micro_batch=2",
                                            "dp=2 zero_stage=2 micro_batch=2",
                                            "tp=2 sequence_parallel=true expert_tp=1 micro_batch=2",
                                            "ep=2 tp=2 sequence_parallel=true expert_tp=1 micro_batch=2"};
  const TempDir folder;
  std::vector<std::string> saved;
  std::vector<double> losses;  // of iterations 2 and 3, on one rank
  for (const char* sets : layouts) {
    const ExpertWorld world(sets);
    world.Begin();
    world.Train(0, 2);
    saved.push_back(world.Save(folder / ("from" + std::to_string(saved.size()))));
    if (losses.empty()) losses = world.Train(2, 4);
  }
  const std::map<std::string, std::vector<float>> first = Tensors(saved[0]);
  // Logical tensors: nothing of ep in a name or a shape, moments of every weight but the two biases.
  CHECK(first.at("layers.1.mlp.experts.fc1.weight").size() == size_t{8} * 2 * 12 * 32);
  CHECK(first.at("adam.v/layers.0.mlp.experts.fc2.weight").size() == size_t{8} * 32 * 12);
  CHECK(first.contains("layers.0.mlp.router.bias"));
  CHECK(!first.contains("adam.m/layers.0.mlp.router.bias"));
  for (size_t to = 0; to < layouts.size(); ++to) {
    for (size_t from = 0; from < layouts.size(); ++from) {
      INFO(std::string(layouts[from]) << " in " << std::string(layouts[to]));
      const ExpertWorld world(layouts[to]);
      world.Load(saved[from]);
      // Written again, weights and both moments, before anything is trained.
      CHECK((Tensors(world.Save(folder / "again")) == Tensors(saved[from])));
      const std::vector<double> next = world.Train(2, 4);
      for (size_t i = 0; i < next.size(); ++i) CHECK(std::abs(next[i] - losses[i]) <= kBound * losses[i]);
    }
  }
}

}  // namespace engine::train::testing
