// Iterations that a loss scale's overflow skips: the learning rate stays where it was, though the host hears
// of it late. On the CPU executor in fp32, with the dynamic loss scaler put into its plan and overflows made
// by hand.
#include <cmath>
#include <csignal>
#include <limits>
#include <set>

#include "engine/recipe/batch_size.h"
#include "engine/recipe/learning_rate.h"
#include "tests/train/run_testing.h"

namespace engine::train::testing {
namespace {

// What happens in which iterations, from 0.
struct Events {
  std::set<std::uint64_t> overflows;
  std::uint64_t stop = 1000;  // a SIGTERM
};

class ClipLaunch final : public backend::Launch {
 public:
  ClipLaunch(plan::Instruction instruction, const Events& events)
      : instruction(std::move(instruction)), events_(events) {
    this->instruction.AsKernel()->attributes.Set("dynamic", std::int64_t{1});
    this->instruction.AsKernel()->attributes.Set("window", std::int64_t{1000});
    this->instruction.AsKernel()->attributes.Set("hysteresis", std::int64_t{2});
    this->instruction.AsKernel()->attributes.Set("min_scale", 1.0);
  }
  absl::Status Run(const backend::KernelContext& context) override {
    if (context.iteration == events_.stop) std::raise(SIGTERM);
    if (events_.overflows.contains(context.iteration)) scalars[1] = std::numeric_limits<double>::infinity();
    return launch->Run(context);
  }

  plan::Instruction instruction;
  double* scalars = nullptr;
  std::unique_ptr<backend::Launch> launch;

 private:
  const Events& events_;
};

// As a GPU does, it lets the host start an iteration before it says how the last one ended.
class ScalingBackend final : public backend::cpu::CpuBackend {
 public:
  ScalingBackend(bool asynchronous, const Events& events)
      : CpuBackend(1), asynchronous_(asynchronous), events_(events) {}
  bool asynchronous() const override { return asynchronous_; }
  absl::StatusOr<std::unique_ptr<backend::Launch>> Prepare(backend::LaunchArgs args) override {
    if (args.instruction->kernel() != "clip_factor") return CpuBackend::Prepare(std::move(args));
    auto clip = std::make_unique<ClipLaunch>(*args.instruction, events_);
    args.instruction = &clip->instruction;
    clip->scalars = args.inputs[0].as<double>();
    ASSIGN_OR_RETURN(clip->launch, CpuBackend::Prepare(std::move(args)));
    return clip;
  }

 private:
  bool asynchronous_;
  const Events& events_;
};

state::Device ScalingDevice(bool asynchronous, const Events* events) {
  state::Device device = CpuDevice();
  device.make_backend = [=](std::int64_t, std::int64_t) {
    return std::make_unique<ScalingBackend>(asynchronous, *events);
  };
  return device;
}

constexpr std::int64_t kAllIterations = 12;
// The first two, one alone, two in a row, and the last.
const Events kOverflows = {.overflows = {0, 1, 4, 6, 7, 11}};

struct SkipFolder : TempDir {
  SkipFolder() { WriteDataset(*this / "text", 60); }
};

// A rate that differs in each iteration. `grows`: the batch grows from 2 to 8 samples over the first seven.
recipe::Recipe SkipRecipe(const SkipFolder& folder, bool grows = false) {
  std::vector<std::string> sets = {"training.iterations=12", "training.micro_batch=1", "schedule.kind=cosine",
                                   "schedule.warmup_samples=16", "parallelism.dp=2"};
  if (grows) {
    for (const char* set : {"start=2", "increment=2", "samples=24"})
      sets.push_back(std::string("training.rampup.") + set);
  }
  return RunRecipe(folder, sets);
}

void MustRunOn(const state::Device& device, const recipe::Recipe& recipe, const std::string& out) {
  const RunResult result = RunCaught(recipe, out, false, device);
  REQUIRE_MESSAGE(result.status.ok(), Message(result.status));
}

}  // namespace

TEST_CASE("skip: the learning rate follows the steps, not the iterations") {
  for (const bool grows : {false, true}) {
    CAPTURE(grows);
    const SkipFolder folder;
    const recipe::Recipe recipe = SkipRecipe(folder, grows);
    for (const bool asynchronous : {false, true}) {
      CAPTURE(asynchronous);
      const std::string out = folder / (asynchronous ? "beside" : "in turn");
      MustRunOn(ScalingDevice(asynchronous, &kOverflows), recipe, out);
      const std::vector<nlohmann::json> lines = IterationMetrics(out);
      REQUIRE(lines.size() == kAllIterations);
      std::int64_t steps = 0;
      std::int64_t trained = 0;  // samples of these
      std::int64_t consumed = 0;
      for (size_t i = 0; i < lines.size(); ++i) {
        CAPTURE(i);
        const bool skipped = kOverflows.overflows.contains(i);
        CHECK(lines[i]["learning_rate"].get<double>() == recipe::LearningRate(recipe, trained));
        const std::int64_t batch = recipe::BatchAt(recipe.training, consumed);
        steps += skipped ? 0 : 1;
        trained += skipped ? 0 : batch;
        consumed += batch;
        CHECK(lines[i]["skipped_iterations"] == static_cast<std::int64_t>(i) + 1 - steps);
        CHECK(lines[i]["consumed_samples"] == consumed);
      }
    }
    CHECK(TimelessMetrics(folder / "in turn") == TimelessMetrics(folder / "beside"));
    CHECK((TensorsOf(folder / "in turn", kAllIterations) == TensorsOf(folder / "beside", kAllIterations)));
  }
}

TEST_CASE("skip: without an overflow, the rate is that of the samples consumed") {
  const SkipFolder folder;
  const recipe::Recipe recipe = SkipRecipe(folder);
  const Events none;
  MustRunOn(ScalingDevice(true, &none), recipe, folder / "scaler");
  MustRunOn(CpuDevice(), recipe, folder / "plain");
  for (const nlohmann::json& line : IterationMetrics(folder / "plain")) {
    CHECK(line["learning_rate"].get<double>() ==
          recipe::LearningRate(recipe, line["consumed_samples"].get<std::int64_t>() - 8));
  }
  CHECK(TimelessMetrics(folder / "scaler") == TimelessMetrics(folder / "plain"));
  CHECK((TensorsOf(folder / "scaler", kAllIterations) == TensorsOf(folder / "plain", kAllIterations)));
}

TEST_CASE("skip: a run that is stopped and resumed is the undisturbed one, bit by bit") {
  const SkipFolder folder;
  // Of a growing batch skipped iterations have several sizes, which the checkpoint has to say.
  const recipe::Recipe recipe = SkipRecipe(folder, /*grows=*/true);
  const state::Device undisturbed = ScalingDevice(true, &kOverflows);
  MustRunOn(undisturbed, recipe, folder / "whole");
  const auto whole = TensorsOf(folder / "whole", kAllIterations);
  // Of metrics, all but the count of skipped iterations: in fp32 no checkpoint keeps it.
  const auto rates = [](const std::string& out) {
    std::vector<std::pair<double, double>> rates;
    for (const nlohmann::json& line : IterationMetrics(out)) {
      rates.emplace_back(line["learning_rate"], line["loss"]);
    }
    return rates;
  };
  for (std::uint64_t stop = 0; stop + 1 < kAllIterations; ++stop) {
    CAPTURE(stop);
    const std::string out = folder / std::to_string(stop);
    Events events = kOverflows;
    events.stop = stop;
    MustRunOn(ScalingDevice(true, &events), recipe, out);
    CHECK(Checkpoints(out).back() <= static_cast<std::int64_t>(stop) + 1);
    MustRunOn(undisturbed, recipe, out);
    CHECK(rates(out) == rates(folder / "whole"));
    CHECK((TensorsOf(out, kAllIterations) == whole));
  }
}

}  // namespace engine::train::testing
