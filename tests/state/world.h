// The ranks of a layout, and what is in their state.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/state/save.h"
#include "engine/state/state.h"
#include "tests/train/run_testing.h"

namespace engine::train::testing {

inline const std::vector<std::vector<std::string>> kLayouts = {
    {},
    {"parallelism.dp=4", "parallelism.zero_stage=1", "training.micro_batch=2"},
    {"parallelism.tp=2", "parallelism.sequence_parallel=true"},
    {"parallelism.dp=2", "parallelism.pp=2", "parallelism.zero_stage=1", "parallelism.overlap=on",
     "training.micro_batch=2"},
    {"parallelism.dp=2", "parallelism.zero_stage=1", "parallelism.overlap=on", "training.micro_batch=4"},
    {"parallelism.tp=4", "parallelism.dp=2", "parallelism.zero_stage=1", "training.micro_batch=4"},
    {"parallelism.pp=2", "parallelism.virtual_stages=2", "training.micro_batch=2"},
    {"parallelism.cp=2", "parallelism.zero_stage=1"},
    {"parallelism.dp=2", "parallelism.zero_stage=2", "parallelism.tp=2", "training.micro_batch=2"},
    {"parallelism.dp=4", "parallelism.zero_stage=3", "parallelism.overlap=on", "training.micro_batch=2"},
    {"parallelism.dp=2", "parallelism.tp=2", "parallelism.pp=2", "parallelism.zero_stage=1",
     "training.micro_batch=2"},
};

inline void Must(const absl::Status& status) { REQUIRE_MESSAGE(status.ok(), Message(status)); }

// The metadata of a checkpoint after two iterations.
inline checkpoint::Metadata MetadataAfterTwo(const plan::Plan& plan, const recipe::Parallelism& p) {
  return {.iteration = 2,
          .consumed_samples = 16,
          .seed = 7,
          .optimizer_steps = 2,
          .plan_hash = plan.hash,
          .recipe_toml = "",
          .engine_version = "test",
          .mesh = {{"dp", p.dp}, {"tp", p.tp}, {"pp", p.pp}, {"cp", p.cp}, {"ep", p.ep}}};
}

// The ranks of one layout of the same model and data.
struct World {
  explicit World(const std::vector<std::string>& layout, const std::function<void(plan::Plan&)>& change = {},
                 state::Device own_device = CpuDevice())
      : recipe(MakeRecipe(kGptLike, layout)), device(std::move(own_device)) {
    absl::StatusOr<plan::Plan> compiled = driver::CompileRecipe(recipe, {.profile = device.profile});
    Must(compiled.status());
    plan = *std::move(compiled);
    if (change) change(plan);
    auto created = state::Ranks::Create(plan, device, static_cast<std::uint64_t>(recipe.training.seed));
    Must(created.status());
    ranks = *std::move(created);
  }
  void Initialize() const {
    Must(ranks->Run([&](executor::RankExecutor& rank) {
      return state::InitializeParameters(plan, static_cast<std::uint64_t>(recipe.training.seed), rank);
    }));
  }
  // Losses of the iterations [begin, end).
  std::vector<double> Train(int begin, int end) const {
    std::vector<double> losses;
    for (int i = begin; i < end; ++i) {
      double loss = 0;
      Must(ranks->Run([&](executor::RankExecutor& rank) -> absl::Status {
        ASSIGN_OR_RETURN(const executor::IterationResult result,
                         rank.Train(i, i + 1, 1e-2, CounterFeed(plan, i * plan.global_batch)));
        if (rank.rank() == 0) loss = result.sums[0];
        return absl::OkStatus();
      }));
      losses.push_back(loss);
    }
    return losses;
  }
  checkpoint::Metadata MetadataOf() const { return MetadataAfterTwo(plan, recipe.parallelism); }
  // The folder of a checkpoint under `root`.
  std::string Save(const std::string& root) const {
    Must(state::SaveCheckpoint(plan, root, MetadataOf(), *ranks));
    return checkpoint::IterationPath(root, 2);
  }
  void Load(const std::string& folder) const {
    const auto reader = checkpoint::Reader::Open(folder);
    Must(reader.status());
    Must(ranks->Run(
        [&](executor::RankExecutor& rank) { return state::LoadCheckpoint(plan, *reader, true, rank); }));
  }
  std::vector<float> Weight(const std::string& name) const {
    std::vector<float> values;
    for (size_t p = 0; p < plan.parameters.size(); ++p) {
      if (plan.parameters[p].name == name)
        Must(state::GatherParameter(plan, *ranks, static_cast<std::int32_t>(p), &values));
    }
    REQUIRE(!values.empty());
    return values;
  }

  recipe::Recipe recipe;
  state::Device device;
  plan::Plan plan;
  std::unique_ptr<state::Ranks> ranks;
};

}  // namespace engine::train::testing
