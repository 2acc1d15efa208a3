// Activations that wait in the host's memory come back as they were: a run that sends them there has the bits of one that
// keeps them, in less of the device's memory.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "tests/train/testing.h"

namespace engine::train::testing {
namespace {

struct OffloadCase {
  std::string model;
  std::vector<std::string> sets;
  int layers = 0;
};

std::vector<std::string> WithSet(std::vector<std::string> sets, const std::string& more) {
  sets.push_back(more);
  return sets;
}

}  // namespace

TEST_CASE("a run whose first layers wait in the host's memory has the bits of one that keeps them") {
  const std::vector<OffloadCase> cases = {
      {kGptLike, {"model.layers=6"}, 2},
      {kLlamaLike, {"model.layers=6"}, 4},  // a layer's place is handed on twice
      {kLlamaLike, {"model.layers=6", "recompute.granularity=cheap"}, 3},
      {kGptLike, {"model.layers=6", "recompute.granularity=full"}, 4},
      {kLlamaLike, {"model.layers=6", "training.micro_batch=2"}, 3},  // sums over microbatches
      {kLlamaLike, {"model.layers=6", "lora.rank=4", "recompute.granularity=cheap"}, 3},
      {kGptLike, {"model.layers=8", "parallelism.pp=2", "training.micro_batch=2"}, 2},
      {kLlamaLike,
       {"model.layers=12", "parallelism.pp=2", "parallelism.virtual_stages=2", "training.micro_batch=2"},
       1},
      {kLlamaLike,
       {"model.layers=6", "parallelism.dp=2", "parallelism.zero_stage=3", "training.micro_batch=2"},
       3},
      {kGptLike, {"model.layers=6", "parallelism.tp=2", "parallelism.cp=2", "parallelism.overlap=on"}, 3}};
  for (const OffloadCase& one : cases) {
    CAPTURE(one.sets.size());
    CAPTURE(one.layers);
    const recipe::Recipe kept = MakeRecipe(one.model, one.sets);
    const recipe::Recipe sent =
        MakeRecipe(one.model, WithSet(one.sets, "offload.activation_layers=" + std::to_string(one.layers)));
    const Trained expected = TrainFor(MakeRecipe(one.model, WithSet(one.sets, "parallelism.overlap=off")), 3);
    const Trained actual = TrainFor(sent, 3);
    CHECK(actual.losses == expected.losses);
    CHECK(actual.gradients == expected.gradients);
    CHECK(actual.weights == expected.weights);
    CHECK(actual.evaluations == expected.evaluations);
    const plan::DeviceProfile profile = backend::cpu::CpuBackend::CpuProfile();
    const absl::StatusOr<plan::Plan> with = driver::CompileRecipe(sent, {.profile = profile});
    const absl::StatusOr<plan::Plan> without = driver::CompileRecipe(
        MakeRecipe(one.model, WithSet(one.sets, "parallelism.overlap=off")), {.profile = profile});
    REQUIRE(with.ok());
    REQUIRE(without.ok());
    for (size_t s = 0; s < with->stages.size(); ++s) {
      const std::int64_t saved = without->stages[s].memory.activations - with->stages[s].memory.activations;
      CHECK(saved > 0);
      CHECK(saved ==
            with->stages[s].host_bytes);  // every place in the host's memory frees one of the device's
    }
  }
}

}  // namespace engine::train::testing
