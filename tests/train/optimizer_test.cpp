// Runs with another optimizer than AdamW: SGD with momentum, against its formula, through checkpoints, and what a run
// makes of a checkpoint that the other optimizer has written.
#include <algorithm>
#include <cmath>

#include "tests/train/run_testing.h"

namespace engine::train::testing {
namespace {

constexpr int kSteps = 5;

// torch.optim.SGD with dampening 0, in float64, on the gradients that the run itself has reduced: of matrices and
// tables the weight decay is added to the clipped gradient; the first step's buffer is that sum. `largest` becomes
// the largest number that the formula meets.
std::vector<double> Expected(const recipe::Optimizer& o, const plan::PlanParameter& parameter,
                             const Trained& trained, size_t p, double* largest) {
  std::vector<double> weights(trained.initial[p].begin(), trained.initial[p].end());
  std::vector<double> buffer(weights.size());
  const bool decays = parameter.logical_shape.rank() > 1 && !parameter.name.ends_with(".bias");
  const double decay = decays ? o.weight_decay : 0;
  for (size_t i = 0; i < trained.gradients.size(); ++i) {
    const double clip = std::min(1.0, o.clip_grad_norm / (trained.grad_norms[i] + 1e-6));
    for (size_t e = 0; e < weights.size(); ++e) {
      const double d = clip * trained.gradients[i][p][e] + decay * weights[e];
      buffer[e] = i == 0 ? d : o.momentum * buffer[e] + d;
      weights[e] -= o.learning_rate * buffer[e];
      *largest = std::max({*largest, std::abs(weights[e]), std::abs(buffer[e])});
    }
  }
  return weights;
}

// Sets of a run of so many iterations, whose learning rate does not depend on its length.
std::vector<std::string> Sets(int iterations) {
  return {"training.iterations=" + std::to_string(iterations), "training.micro_batch=4", "parallelism.dp=2",
          "parallelism.zero_stage=1", "checkpoint.interval=3"};
}

struct OptimizerFolder : TempDir {
  OptimizerFolder() { WriteDataset(*this / "text", 60); }
};

}  // namespace

TEST_CASE("sgd: the weights move by its formula") {
  for (const char* sets :
       {"micro_batch=4", "dp=2 zero_stage=1 micro_batch=2", "dp=2 zero_stage=3 micro_batch=1"}) {
    INFO(sets);
    const recipe::Recipe recipe = MakeRecipe(kGptLike, SetsOf(sets), kSgd);
    const state::Device device = CpuDevice();
    const auto plan = driver::CompileRecipe(recipe, {.profile = device.profile});
    const Trained trained = TrainFor(recipe, plan, kSteps, device);
    CHECK(*std::max_element(trained.grad_norms.begin(), trained.grad_norms.end()) > 1);  // some are clipped
    double moved = 0;
    for (size_t p = 0; p < trained.names.size(); ++p) {
      double largest = 0;
      const std::vector<double> expected =
          Expected(recipe.optimizer, plan->parameters[p], trained, p, &largest);
      double worst = 0;
      for (size_t e = 0; e < expected.size(); ++e) {
        worst = std::max(worst, std::abs(expected[e] - trained.weights[p][e]));
        moved = std::max(moved, std::abs(expected[e] - trained.initial[p][e]));
      }
      // Five roundings a step, of numbers up to the largest; an error of the buffer reaches the weights of all later
      // steps, rate / (1 − momentum) = 1 of it together.
      CHECK_MESSAGE(worst <= 5 * kSteps * 0x1p-24 * largest, trained.names[p]);
    }
    CHECK(moved > 1e-2);
  }
}

TEST_CASE("sgd: a resumed run gives the bits of the undisturbed one") {
  const OptimizerFolder folder;
  const std::string whole = folder / "whole";
  const std::string pieces = folder / "pieces";
  MustRun(RunRecipe(folder, Sets(6), kSgd), whole);
  MustRun(RunRecipe(folder, Sets(3), kSgd), pieces);
  CHECK(Contains(MustRun(RunRecipe(folder, Sets(6), kSgd), pieces), "after iteration 3"));
  CHECK(TimelessMetrics(pieces) == TimelessMetrics(whole));
  const auto tensors = TensorsOf(whole, 6);
  CHECK((TensorsOf(pieces, 6) == tensors));
  const std::vector<float>& momentum = tensors.at("optimizer/momentum/embedding.tokens");
  CHECK(momentum.size() == tensors.at("embedding.tokens").size());
  CHECK(std::any_of(momentum.begin(), momentum.end(), [](float m) { return m != 0; }));
  for (const auto& [name, values] : tensors) CHECK(!name.starts_with("adam."));
}

TEST_CASE("a run does not go on from a checkpoint of another optimizer, and says whose it is") {
  for (const auto& [first, then, was, is] :
       {std::tuple(kAdamW, kSgd, "adamw", "sgd"), std::tuple(kSgd, kAdamW, "sgd", "adamw")}) {
    const OptimizerFolder folder;
    const std::string out = folder / "out";
    MustRun(RunRecipe(folder, Sets(3), first), out);
    const std::string metrics = data::ReadFile(out + "/metrics.jsonl");
    const RunResult refused = RunCaught(RunRecipe(folder, Sets(6), then), out);
    CHECK(refused.status.code() == absl::StatusCode::kFailedPrecondition);
    CHECK(Message(refused.status) ==
          fmt::format(
              "checkpoint {0} was written by the optimizer \"{1}\", but optimizer.kind of this recipe is "
              "\"{2}\", which cannot go on from its states\n"
              "    hint: optimizer.kind = \"{1}\" goes on; a run with \"{2}\" begins in another --out",
              checkpoint::IterationPath(CheckpointRoot(out), 3), was, is));
    CHECK((Checkpoints(out) == std::vector<std::int64_t>{3}));
    CHECK(data::ReadFile(out + "/metrics.jsonl") == metrics);
    MustRun(RunRecipe(folder, Sets(6), first), out);  // as the hint has it
  }
}

}  // namespace engine::train::testing
