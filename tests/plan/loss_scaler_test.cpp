// What a recipe's loss scale becomes in a plan and in the control block.
#include "engine/plan/loss_scaler.h"

#include <array>
#include <limits>

#include "engine/plan/control.h"
#include "tests/plan/plans.h"

namespace engine::plan {
namespace {

using Block = std::array<double, kControlNumbers>;

std::string ClipText(const std::vector<std::string>& sets) {
  const Plan plan = TinyPlan(false, sets);
  std::string text;
  for (const Segment& segment : plan.stages[0].segments) {
    for (const Instruction& instruction : segment.instructions) {
      if (instruction.kernel() == "clip_factor") text += instruction.attributes().ToString();
    }
  }
  return text;
}

LossScaler ScalerOf(const std::vector<std::string>& sets) { return TinyPlan(false, sets).loss_scaler; }

std::vector<std::string> Fp16(std::vector<std::string> sets) {
  sets.emplace_back("precision.compute=fp16");
  return sets;
}

// A block in the middle of a run.
Block Running(double scale, double clean, double left) {
  Block block;
  block.fill(7);
  block[kLossScale] = scale;
  block[kCleanIterations] = clean;
  block[kHysteresis] = left;
  return block;
}

std::string Resumed(const std::vector<std::string>& sets, Block block) {
  ResumeControl(ScalerOf(Fp16(sets)), block.data());
  CHECK(block[kStep] == 7);
  CHECK(block[kSkipped] == 7);
  return fmt::format("{} {} {}", block[kLossScale], block[kCleanIterations], block[kHysteresis]);
}

constexpr double kNever = std::numeric_limits<double>::infinity();

}  // namespace

TEST_CASE("loss scaler: the clip factor knows it, in fp16 and where the guard skips") {
  CHECK(ClipText({}) == "{clip=1}");
  CHECK(ClipText({"precision.compute=bf16"}) == "{clip=1}");
  // Megatron-LM's numbers, where nothing else is said.
  CHECK(ClipText(Fp16({})) == "{clip=1, dynamic=1, window=1000, hysteresis=2, min_scale=1}");
  CHECK(ClipText(Fp16({"precision.loss_scale_window=100", "precision.loss_scale_hysteresis=4",
                       "precision.min_loss_scale=8.0"})) ==
        "{clip=1, dynamic=1, window=100, hysteresis=4, min_scale=8}");
  CHECK(ClipText(Fp16({"precision.loss_scale=1024.0"})) == "{clip=1, constant=1}");
  // Where the guard leaves out what is not finite, it is told of that; the scale is what it was.
  CHECK(ClipText({"guard.on_nonfinite=skip"}) == "{clip=1, constant=1}");
  CHECK(ClipText({"guard.on_nonfinite=skip", "precision.compute=bf16"}) == "{clip=1, constant=1}");
  CHECK(ScalerOf({"guard.on_nonfinite=skip"}).scale == 1);
  CHECK(ClipText({"guard.on_nonfinite=rewind", "checkpoint.interval=10"}) == "{clip=1}");
}

TEST_CASE("loss scaler: where a run begins") {
  const auto start = [](const std::vector<std::string>& sets) {
    Block block;
    block.fill(7);
    StartControl(ScalerOf(sets), block.data());
    for (const Control number : {kStep, kSkipped, kCleanIterations, kGradientFactor})
      CHECK(block[number] == 0);
    return fmt::format("{} {}", block[kLossScale], block[kHysteresis]);
  };
  CHECK(start({}) == "1 0");
  CHECK(start(Fp16({})) == "4294967296 2");
  CHECK(start(Fp16({"precision.initial_loss_scale=4096.0", "precision.loss_scale_hysteresis=4"})) ==
        "4096 4");
  CHECK(start(Fp16({"precision.loss_scale=1024.0"})) == "1024 inf");
}

TEST_CASE("loss scaler: a running scale goes on where keys have changed, and a constant one takes effect") {
  const Block block = Running(512, 30, 1);
  CHECK(Resumed({}, block) == "512 30 1");
  CHECK(Resumed({"precision.initial_loss_scale=64.0", "precision.loss_scale_window=10"}, block) ==
        "512 30 1");
  CHECK(Resumed({"precision.loss_scale_hysteresis=4"}, block) == "512 30 1");
  CHECK(Resumed({"precision.loss_scale_hysteresis=4"}, Running(512, 30, 9)) == "512 30 4");
  CHECK(Resumed({"precision.min_loss_scale=1024.0"}, block) == "1024 30 1");
  CHECK(Resumed({}, Running(512, 0, -3)) == "512 0 -3");  // overflows beyond the second
  CHECK(Resumed({"precision.loss_scale=16.0"}, block) == "16 0 inf");
  CHECK(Resumed({"precision.loss_scale=16.0"}, Running(1024, 0, kNever)) == "16 0 inf");
  CHECK(Resumed({"precision.initial_loss_scale=64.0"}, Running(1024, 0, kNever)) == "64 0 2");
}

}  // namespace engine::plan
