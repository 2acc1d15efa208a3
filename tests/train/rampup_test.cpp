// A batch that grows: every size has its own program, over one arena, and each is the program of that batch alone.
#include <algorithm>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <limits>

#include "engine/recipe/batch_size.h"
#include "engine/recipe/learning_rate.h"
#include "tests/executor/wrapped_backend.h"
#include "tests/train/run_testing.h"

namespace engine::train::testing {
namespace {

namespace fs = std::filesystem;

// As in layout_test.cpp: two evaluations of one formula in float32, in different summation orders.
constexpr double kRampBound = 4 * 110 * std::numeric_limits<float>::epsilon();

// What the first update makes of the first weights.
struct FirstStep {
  double loss = 0;
  double grad_norm = 0;
  std::vector<std::vector<float>> gradients;  // of the mean over the iteration's own samples
  std::vector<std::vector<float>> weights;
};

FirstStep StepOf(const recipe::Recipe& recipe, const plan::Plan& plan, std::int64_t batch) {
  const auto check = [](const absl::Status& status) { REQUIRE_MESSAGE(status.ok(), Message(status)); };
  const std::int32_t program = plan.ProgramOf(plan::kTrainForm, batch);
  REQUIRE(program >= 0);
  const auto seed = static_cast<std::uint64_t>(recipe.training.seed);
  const state::Device device = CpuDevice();  // the ranks keep a reference
  auto ranks = state::Ranks::Create(plan, device, seed);
  REQUIRE_MESSAGE(ranks.ok(), Message(ranks.status()));
  check((*ranks)->Run(
      [&](executor::RankExecutor& rank) { return state::InitializeParameters(plan, seed, rank); }));
  std::vector<executor::IterationResult> results(static_cast<size_t>(plan.mesh.world()));
  const executor::FeedFunction feed = CounterFeed(plan, 0);
  check((*ranks)->Run([&](executor::RankExecutor& rank) -> absl::Status {
    ASSIGN_OR_RETURN(results[static_cast<size_t>(rank.rank())],
                     rank.Train(0, 1, recipe.optimizer.learning_rate, feed, program));
    return absl::OkStatus();
  }));
  FirstStep step{.loss = plan.Objective(results[0].sums, batch),
                 .grad_norm = results[0].grad_norm,
                 .gradients = {},
                 .weights = {}};
  const auto factor = static_cast<float>(plan.GradientFactor(program));
  for (std::int32_t p = 0; p < static_cast<std::int32_t>(plan.parameters.size()); ++p) {
    check(state::GatherGradient(plan, **ranks, p, &step.gradients.emplace_back()));
    for (float& number : step.gradients.back()) number *= factor;
    check(state::GatherParameter(plan, **ranks, p, &step.weights.emplace_back()));
  }
  return step;
}

double Largest(const std::vector<std::vector<float>>& tensors) {
  double largest = 0;
  for (const std::vector<float>& tensor : tensors) {
    for (const float number : tensor) largest = std::max(largest, std::abs(static_cast<double>(number)));
  }
  return largest;
}

double LargestDifference(const std::vector<std::vector<float>>& a, const std::vector<std::vector<float>>& b) {
  REQUIRE(a.size() == b.size());
  double largest = 0;
  for (size_t p = 0; p < a.size(); ++p) {
    REQUIRE(a[p].size() == b[p].size());
    for (size_t i = 0; i < a[p].size(); ++i)
      largest = std::max(largest, std::abs(static_cast<double>(a[p][i]) - b[p][i]));
  }
  return largest;
}

void CheckStep(const FirstStep& expected, const FirstStep& actual) {
  CHECK(std::abs(expected.loss - actual.loss) <= kRampBound * expected.loss);
  CHECK(std::abs(expected.grad_norm - actual.grad_norm) <= kRampBound * expected.grad_norm);
  CHECK(LargestDifference(expected.gradients, actual.gradients) <= kRampBound * Largest(expected.gradients));
  // Adam's first step is a learning rate of 1e-2 against an epsilon of 1e-3.
  CHECK(LargestDifference(expected.weights, actual.weights) <= 10 * kRampBound * Largest(expected.gradients));
}

std::vector<std::string> Ramp(std::int64_t start, std::int64_t increment, std::int64_t samples) {
  return {"training.rampup.start=" + std::to_string(start),
          "training.rampup.increment=" + std::to_string(increment),
          "training.rampup.samples=" + std::to_string(samples)};
}

std::vector<std::string> With(std::vector<std::string> sets, const std::vector<std::string>& more) {
  sets.insert(sets.end(), more.begin(), more.end());
  return sets;
}

struct RampCase {
  const char* sets;
  std::int64_t start, increment;  // to a batch of 8
};

// The smallest sizes are of one microbatch, of less than the pipeline has stages, and of one pair of halves.
constexpr RampCase kRampLayouts[] = {
    {"micro_batch=1", 1, 1},
    {"micro_batch=2", 2, 2},
    {"dp=2 micro_batch=1", 2, 2},
    {"dp=2 micro_batch=1 zero_stage=1 overlap=on", 2, 6},
    {"dp=2 micro_batch=1 zero_stage=2", 2, 2},
    {"dp=2 micro_batch=1 zero_stage=2 overlap=on", 2, 2},
    {"dp=2 micro_batch=1 zero_stage=3 overlap=on", 2, 6},
    {"pp=2 micro_batch=1", 1, 1},
    {"pp=4 micro_batch=1", 2, 3},
    {"pp=2 virtual_stages=2 micro_batch=1", 2, 2},
    {"pp=2 schedule=zero_bubble micro_batch=1", 1, 1},
    {"dp=2 pp=2 schedule=zero_bubble zero_stage=1 overlap=on micro_batch=1", 2, 2},
    {"dp=2 pp=2 zero_stage=2 micro_batch=1", 2, 2},
    {"tp=2 overlap=on micro_batch=2", 2, 2},
    {"tp=2 pp=2 sequence_parallel=true overlap=on micro_batch=2", 2, 6},
    {"tp=2 dp=2 sequence_parallel=true zero_stage=2 overlap=on micro_batch=2", 4, 4},
    {"cp=2 pp=2 virtual_stages=2 overlap=on micro_batch=2", 4, 4},
};

struct RampFolder : TempDir {
  RampFolder() { WriteDataset(*this / "text", 60); }
};

// Batches of 2 below 8 samples, 4 below 16, 6 below 24, then 8: of 2, 2, 2, 2, 4, 4, 6, 6, 8 and 8.
recipe::Recipe RampRecipe(const RampFolder& folder, const std::vector<std::string>& more) {
  return RunRecipe(folder,
                   With(With({"training.iterations=10", "training.micro_batch=1", "schedule.kind=cosine",
                              "schedule.warmup_samples=12", "data.source=random"},
                             Ramp(2, 2, 24)),
                        more));
}
const std::vector<std::int64_t> kBatches = {2, 2, 2, 2, 4, 4, 6, 6, 8, 8};

}  // namespace

TEST_CASE("ramp-up: each size's loss, gradient and update are those of that batch on one rank") {
  for (const char* model : {kGptLike, kLlamaLike}) {
    std::map<std::int64_t, FirstStep> expected;  // by batch
    for (const RampCase& layout : kRampLayouts) {
      INFO(layout.sets);
      const recipe::Recipe recipe =
          MakeRecipe(model, With(SetsOf(layout.sets), Ramp(layout.start, layout.increment, 100)));
      const absl::StatusOr<plan::Plan> plan = driver::CompileRecipe(recipe, {.profile = CpuDevice().profile});
      REQUIRE_MESSAGE(plan.ok(), Message(plan.status()));
      for (const std::int64_t batch : recipe::BatchSizes(recipe.training)) {
        CAPTURE(batch);
        if (!expected.contains(batch)) {
          const std::string samples = std::to_string(batch);
          const recipe::Recipe alone =
              MakeRecipe(model, {"training.global_batch=" + samples, "training.micro_batch=" + samples});
          expected[batch] =
              StepOf(alone, *driver::CompileRecipe(alone, {.profile = CpuDevice().profile}), batch);
        }
        CheckStep(expected.at(batch), StepOf(recipe, *plan, batch));
      }
    }
  }
}

TEST_CASE("ramp-up: sizes share segments and arena with the plan of the whole batch alone") {
  for (const RampCase& layout : kRampLayouts) {
    INFO(layout.sets);
    const auto plan_of = [&](const std::vector<std::string>& more) {
      const auto plan = driver::CompileRecipe(MakeRecipe(kGptLike, With(SetsOf(layout.sets), more)),
                                              {.profile = CpuDevice().profile});
      REQUIRE_MESSAGE(plan.ok(), Message(plan.status()));
      return *plan;
    };
    const plan::Plan whole = plan_of({});
    const plan::Plan growing = plan_of(Ramp(layout.start, layout.increment, 100));
    const size_t sizes = static_cast<size_t>((8 - layout.start) / layout.increment) + 1;
    REQUIRE(growing.programs.size() == sizes + 1);
    CHECK(whole.programs.size() == 2);
    CHECK(growing.hash != whole.hash);
    for (size_t s = 0; s < whole.stages.size(); ++s) {
      CHECK(growing.stages[s].arena_bytes == whole.stages[s].arena_bytes);
      CHECK(growing.stages[s].segments.size() == whole.stages[s].segments.size());
      CHECK(growing.stages[s].programs.back().size() == whole.stages[s].programs.back().size());
      CHECK(growing.stages[s].programs[sizes - 1].size() == whole.stages[s].programs[0].size());
    }
  }
}

TEST_CASE(
    "ramp-up: a run's iterations are those of runs with one batch, each begun from the checkpoint before") {
  const RampFolder folder;
  for (const char* layout : {"dp=2", "dp=2 zero_stage=2", "pp=2", "pp=2 schedule=zero_bubble"}) {
    CAPTURE(layout);
    const std::vector<std::string> sets = With(
        SetsOf(layout), {"schedule.kind=constant", "schedule.warmup_samples=0", "checkpoint.interval=1"});
    const std::string out = folder / (std::string("ramp ") + layout);
    MustRun(RampRecipe(folder, sets), out);
    const std::vector<nlohmann::json> lines = IterationMetrics(out);
    REQUIRE(lines.size() == kBatches.size());
    std::int64_t consumed = 0;
    for (size_t i = 0; i < lines.size(); ++i) {
      CAPTURE(i);
      consumed += kBatches[i];
      CHECK(lines[i]["global_batch"] == kBatches[i]);
      CHECK(lines[i]["consumed_samples"] == consumed);
      if (i == 0) continue;
      const std::string alone = folder / (std::string("alone ") + layout + std::to_string(i));
      fs::create_directories(CheckpointRoot(alone));
      const auto iteration = static_cast<std::int64_t>(i);
      fs::copy(checkpoint::IterationPath(CheckpointRoot(out), iteration),
               checkpoint::IterationPath(CheckpointRoot(alone), iteration), fs::copy_options::recursive);
      std::vector<std::string> one = sets;
      for (const char* key : {"start", "increment", "samples"})
        one.push_back(std::string("training.rampup.") + key + "=0");
      one.push_back("training.global_batch=" + std::to_string(kBatches[i]));
      one.push_back("training.iterations=" + std::to_string(i + 1));
      MustRun(RampRecipe(folder, one), alone);
      const nlohmann::json line = IterationMetrics(alone).back();
      CHECK(line["consumed_samples"] == consumed);
      CHECK(line["loss"] == lines[i]["loss"]);
      const bool power_of_two = 8 % kBatches[i] == 0;  // then the gradient factor rounds nothing
      const double norm = lines[i]["grad_norm"];
      CHECK(line["grad_norm"].get<double>() == doctest::Approx(norm).epsilon(power_of_two ? 1e-15 : 1e-6));
      const auto weights = TensorsOf(out, iteration + 1);
      const auto of_alone = TensorsOf(alone, iteration + 1);
      REQUIRE(weights.size() == of_alone.size());
      if (power_of_two) CHECK(weights == of_alone);
      for (const auto& [name, values] : weights)
        CHECK(LargestDifference({values}, {of_alone.at(name)}) <= 1e-5);
    }
  }
}

TEST_CASE("ramp-up: a run that is stopped anywhere and resumed is the undisturbed one, bit by bit") {
  const RampFolder folder;
  const recipe::Recipe recipe = RampRecipe(folder, SetsOf("dp=2 zero_stage=1"));
  MustRun(recipe, folder / "whole");
  const std::string metrics = TimelessMetrics(folder / "whole");
  const auto tensors = TensorsOf(folder / "whole", 10);
  std::int64_t consumed = 0;
  for (const nlohmann::json& line : IterationMetrics(folder / "whole")) {
    CHECK(line["learning_rate"].get<double>() == recipe::LearningRate(recipe, consumed));
    consumed = line["consumed_samples"];
  }
  CHECK(consumed == recipe.samples());
  for (std::uint64_t stop = 1; stop < 9; ++stop) {
    CAPTURE(stop);
    const std::string out = folder / ("stopped " + std::to_string(stop));
    std::vector<executor::testing::Probe> probes(2);
    probes[0].before_launch = [stop](std::int64_t, const backend::KernelContext& context) {
      if (context.iteration + 1 == stop) std::raise(SIGTERM);
      return absl::OkStatus();
    };
    const RunResult stopped = RunCaught(recipe, out, false, executor::testing::ProbedDevice(&probes));
    REQUIRE_MESSAGE(stopped.status.ok(), Message(stopped.status));
    CHECK(Checkpoints(out).back() == static_cast<std::int64_t>(stop));
    MustRun(recipe, out);
    CHECK(TimelessMetrics(out) == metrics);
    CHECK(TensorsOf(out, 10) == tensors);
  }
}

}  // namespace engine::train::testing
