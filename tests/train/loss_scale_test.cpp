// The loss scale of fp16 at work: on the CPU executor in fp32, whose plan gets the scaler of an fp16 recipe,
// and where gradients whose norm is more than a limit overflow.
#include <cmath>
#include <limits>

#include "engine/plan/loss_scaler.h"
#include "engine/recipe/print.h"
#include "engine/train/resume.h"
#include "tests/train/run_testing.h"

namespace engine::train::testing {
namespace {

class OverflowLaunch final : public backend::LaunchAround {
 public:
  OverflowLaunch(std::unique_ptr<backend::Launch> inner, double* scalars, double limit)
      : LaunchAround(std::move(inner)), scalars_(scalars), limit_(limit) {}
  absl::Status Run(const backend::KernelContext& context) override {
    if (std::sqrt(scalars_[1]) > limit_) scalars_[1] = std::numeric_limits<double>::infinity();
    return LaunchAround::Run(context);
  }

 private:
  double* const scalars_;
  const double limit_;
};

class OverflowBackend final : public backend::cpu::CpuBackend {
 public:
  explicit OverflowBackend(double limit) : CpuBackend(1), limit_(limit) {}
  absl::StatusOr<std::unique_ptr<backend::Launch>> Prepare(backend::LaunchArgs args) override {
    double* const scalars =
        args.instruction->kernel() == "clip_factor" ? args.inputs[0].as<double>() : nullptr;
    ASSIGN_OR_RETURN(std::unique_ptr<backend::Launch> launch, CpuBackend::Prepare(std::move(args)));
    if (scalars == nullptr) return launch;
    return std::make_unique<OverflowLaunch>(std::move(launch), scalars, limit_);
  }

 private:
  const double limit_;
};

constexpr double kFp16Max = 65504;

void MustDo(const absl::Status& status) { REQUIRE_MESSAGE(status.ok(), Message(status)); }

// Puts the scaler of the same recipe in fp16 into the plan of one in fp32.
void Scale(const std::vector<std::string>& sets, plan::Plan* plan) {
  std::vector<std::string> fp16 = sets;
  fp16.emplace_back("precision.compute=fp16");
  const absl::StatusOr<plan::Plan> scaled = driver::CompileUnverified(MakeRecipe(kGptLike, fp16), {});
  MustDo(scaled.status());
  plan->loss_scaler = scaled->loss_scaler;
  for (plan::StagePlan& stage : plan->stages) {
    for (plan::Instruction& instruction : stage.segments[static_cast<size_t>(stage.update())].instructions) {
      if (instruction.kernel() == "clip_factor")
        plan::SetScaler(plan->loss_scaler, &instruction.AsKernel()->attributes);
    }
  }
}

// A run of two ranks on one batch, over and over.
class ScaledRun {
 public:
  explicit ScaledRun(const std::vector<std::string>& scaler, double limit = kFp16Max)
      : recipe_(MakeRecipe(kGptLike, {"parallelism.dp=2", "training.micro_batch=4"})), device_(CpuDevice()) {
    device_.make_backend = [=](std::int64_t, std::int64_t) {
      return std::make_unique<OverflowBackend>(limit);
    };
    absl::StatusOr<plan::Plan> compiled = driver::CompileRecipe(recipe_, {.profile = device_.profile});
    MustDo(compiled.status());
    plan_ = *std::move(compiled);
    if (!scaler.empty()) Scale(scaler, &plan_);
    auto created = state::Ranks::Create(plan_, device_, 7);
    MustDo(created.status());
    ranks_ = *std::move(created);
    MustDo(ranks_->Run(
        [&](executor::RankExecutor& rank) { return state::InitializeParameters(plan_, 7, rank); }));
  }

  executor::IterationResult Next() {
    executor::IterationResult result;
    MustDo(ranks_->Run([&](executor::RankExecutor& rank) -> absl::Status {
      ASSIGN_OR_RETURN(const executor::IterationResult own,
                       rank.Train(iteration_, steps_ + 1, 1e-2, CounterFeed(plan_, 0)));
      if (rank.rank() == 0) result = own;
      return absl::OkStatus();
    }));
    ++iteration_;
    steps_ = result.steps;
    return result;
  }
  void Skip(int iterations) {
    for (int i = 0; i < iterations; ++i) Next();
  }

  std::string Save(const TempDir& folder, const std::string& recipe = "") {
    const std::string root = CheckpointRoot(folder / "");
    checkpoint::Metadata metadata;
    metadata.iteration = iteration_;
    metadata.recipe_toml = recipe;
    metadata.mesh = {{"dp", 2}};
    MustDo(state::SaveCheckpoint(plan_, root, metadata, *ranks_));
    return checkpoint::IterationPath(root, iteration_);
  }
  void Load(const std::string& folder) {
    const auto reader = checkpoint::Reader::Open(folder);
    MustDo(reader.status());
    MustDo(ranks_->Run(
        [&](executor::RankExecutor& rank) { return state::LoadCheckpoint(plan_, *reader, true, rank); }));
  }
  std::vector<float> Weights() {
    std::vector<float> all;
    for (size_t p = 0; p < plan_.parameters.size(); ++p) {
      std::vector<float> values;
      MustDo(state::GatherParameter(plan_, *ranks_, static_cast<std::int32_t>(p), &values));
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }

 private:
  recipe::Recipe recipe_;
  state::Device device_;
  plan::Plan plan_;
  std::unique_ptr<state::Ranks> ranks_;
  std::int64_t iteration_ = 0;
  std::int64_t steps_ = 0;
};

// Megatron-LM's DynamicGradScaler: an overflow uses up a chance and starts the count anew; without a chance
// left each overflow halves the scale. After `window` clean iterations the scale doubles and the chances come
// back.
struct MegatronScaler {
  double scale, smallest;
  int window, chances;
  int clean = 0;
  int left = chances;

  void Update(bool overflow) {
    if (overflow) {
      clean = 0;
      if (--left <= 0) scale = std::max(scale / 2, smallest);
    } else if (++clean == window) {
      clean = 0;
      left = chances;
      scale *= 2;
    }
  }
};

}  // namespace

TEST_CASE("loss scale: window, hysteresis, minimum and start are Megatron-LM's") {
  struct Case {
    MegatronScaler rule;
    double limit;
  };
  const std::vector<Case> cases = {{{.scale = 0x1p20, .smallest = 1, .window = 4, .chances = 3}, kFp16Max},
                                   {{.scale = 0x1p17, .smallest = 1, .window = 2, .chances = 1}, kFp16Max},
                                   {{.scale = 0x1p12, .smallest = 0x1p9, .window = 5, .chances = 2}, 0}};
  for (auto [rule, limit] : cases) {
    CAPTURE(rule.window);
    ScaledRun run({fmt::format("precision.initial_loss_scale={:.1f}", rule.scale),
                   fmt::format("precision.min_loss_scale={:.1f}", rule.smallest),
                   fmt::format("precision.loss_scale_window={}", rule.window),
                   fmt::format("precision.loss_scale_hysteresis={}", rule.chances)},
                  limit);
    const double first = rule.scale;
    std::int64_t skipped = 0;
    int doubled = 0;
    for (int i = 0; i < 24; ++i) {
      CAPTURE(i);
      const double before = rule.scale;
      const executor::IterationResult result = run.Next();
      const bool overflow = result.skipped > skipped;
      skipped = result.skipped;
      CHECK(result.steps + result.skipped == i + 1);
      CHECK(std::isfinite(result.grad_norm) == !overflow);
      if (!overflow) CHECK(result.grad_norm * before <= limit);
      rule.Update(overflow);
      CHECK(result.loss_scale == rule.scale);
      if (rule.scale > before) ++doubled;
    }
    // The recipe's numbers all came into play.
    CHECK(skipped > rule.chances);
    CHECK(rule.scale < first);
    if (limit > 0) CHECK(doubled > 1);
    if (limit == 0) CHECK(rule.scale == rule.smallest);
  }
}

TEST_CASE("loss scale: a constant one changes no bit, skips what overflows and never moves") {
  ScaledRun plain({});
  ScaledRun constant({"precision.loss_scale=1024.0"});
  const std::vector<float> initial = plain.Weights();
  for (int i = 0; i < 4; ++i) {
    const executor::IterationResult expected = plain.Next();
    const executor::IterationResult result = constant.Next();
    CHECK(result.sums[0] == expected.sums[0]);
    CHECK(result.grad_norm == expected.grad_norm);
    CHECK(result.loss_scale == 1024);
    CHECK(result.skipped == 0);
  }
  CHECK((constant.Weights() == plain.Weights()));
  CHECK((plain.Weights() != initial));
  ScaledRun overflowing({"precision.loss_scale=1048576.0"});
  for (int i = 0; i < 4; ++i) {
    const executor::IterationResult result = overflowing.Next();
    CHECK(result.loss_scale == 1048576);
    CHECK(result.skipped == i + 1);
  }
  CHECK((overflowing.Weights() == initial));
}

TEST_CASE("loss scale: what a checkpoint says of it, and what the recipe does now") {
  const TempDir folder;
  const std::vector<std::string> before = {"precision.initial_loss_scale=8192.0",
                                           "precision.loss_scale_window=100"};
  ScaledRun run(before);
  run.Skip(3);
  const std::string moving = run.Save(folder);
  const auto resumed = [](const std::string& checkpoint, const std::vector<std::string>& sets,
                          int iterations) {
    ScaledRun next(sets);
    next.Load(checkpoint);
    std::string scales;
    for (int i = 0; i < iterations; ++i) scales += fmt::format(" {}", next.Next().loss_scale);
    return scales;
  };
  CHECK(resumed(moving, before, 2) == " 8192 8192");
  // Three iterations are behind it, the fifth doubles; where it would begin now is not asked.
  CHECK(resumed(moving, {"precision.loss_scale_window=5"}, 3) == " 8192 16384 16384");
  CHECK(resumed(moving, {"precision.loss_scale=256.0"}, 2) == " 256 256");
  ScaledRun constant({"precision.loss_scale=256.0"});
  constant.Load(moving);
  constant.Skip(4);
  const std::string constant_folder = constant.Save(folder);
  CHECK(resumed(constant_folder, {"precision.loss_scale=64.0"}, 1) == " 64");
  CHECK(resumed(constant_folder, {"precision.initial_loss_scale=4096.0", "precision.loss_scale_window=2"},
                2) == " 4096 8192");
}

TEST_CASE("loss scale: a resumed run says which of its keys have no effect any more") {
  const auto recipe = [](std::vector<std::string> sets) {
    sets.emplace_back("precision.compute=fp16");
    return MakeRecipe(kGptLike, sets);
  };
  const TempDir folder;
  ScaledRun({}).Save(folder, recipe::ToToml(recipe({})));
  const auto notes = [&](const std::vector<std::string>& sets) {
    const recipe::Recipe again = recipe(sets);
    const data::Fingerprints none;
    const auto point = FindResumePoint({again, none, folder / ""});
    MustDo(point.status());
    REQUIRE(point->has_value());
    return (*point)->notes;
  };
  CHECK(notes({}).empty());
  CHECK(notes({"precision.initial_loss_scale=4096.0"}) ==
        std::vector<std::string>{
            "changed since the checkpoint: precision.initial_loss_scale: 4294967296.0 → 4096.0 "
            "(no effect: the loss scale goes on from where it is)"});
  CHECK(notes({"precision.loss_scale=64.0"}) ==
        std::vector<std::string>{"changed since the checkpoint: precision.loss_scale: 0.0 → 64.0"});
}

}  // namespace engine::train::testing
