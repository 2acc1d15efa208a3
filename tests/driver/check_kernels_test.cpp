#include "engine/driver/check_kernels.h"

#include <doctest/doctest.h>

#include <fmt/format.h>

#include <string>
#include <vector>

#include "engine/backend/cuda/profile/profile.h"
#include "engine/driver/advise_subject.h"
#include "engine/graph/op.h"
#include "engine/ops/ops.h"
#include "tests/plan/plans.h"

namespace engine::driver {
namespace {

using Sets = std::vector<std::string>;

// Heads of no multiple of 8 elements, which no fast kernel takes.
Sets OddHeads(const Sets& more) {
  Sets sets = {"model.attention.head_dim=12", "cluster.device=h200"};
  sets.insert(sets.end(), more.begin(), more.end());
  return sets;
}

plan::Plan PlanOf(const recipe::Recipe& recipe, const plan::DeviceProfile& profile) {
  absl::StatusOr<plan::Plan> plan = CompileUnverified(recipe, {.profile = profile});
  if (!plan.ok()) FAIL(Message(plan.status()));
  return *std::move(plan);
}

std::string Errors(const Sets& sets, const plan::DeviceProfile& profile = backend::cuda::CudaProfile()) {
  const recipe::Recipe recipe = plan::TinyRecipe(false, sets);
  const plan::Plan plan = PlanOf(recipe, profile);
  std::string text;
  for (const Diagnostic& error : CheckKernels(recipe, plan)) {
    CHECK(error.severity == Severity::kError);
    CHECK(error.code == "E305");
    text += fmt::format("{}:{}: {}\n", error.span.file, error.span.line, error.message);
  }
  CHECK(HasRefusedKernels(plan) == !text.empty());
  return text;
}

// Words of the attribute kernel of all attention in a plan, of forward and backward passes.
std::string AskedKernels(const Sets& sets, const plan::DeviceProfile& profile) {
  int asked = 0;
  int all = 0;
  const plan::Plan plan = PlanOf(plan::TinyRecipe(false, sets), profile);
  for (const plan::StagePlan& stage : plan.stages) {
    for (const plan::Segment& segment : stage.segments) {
      for (const plan::Instruction& instruction : segment.instructions) {
        if (instruction.op() == nullptr || instruction.family() != graph::Family::kAttention) continue;
        ++all;
        asked +=
            instruction.attributes().Has("kernel") && instruction.attributes().String("kernel") == "reference"
                ? 1
                : 0;
      }
    }
  }
  REQUIRE(all == 3 * 8);  // forward, backward and evaluation of 8 layers
  return fmt::format("{} of {}", asked, all);
}

}  // namespace

TEST_CASE("kernels: attention in 16 bits that has no fast kernel is one error, at the keys that cause it") {
  const std::string odd = Errors(OddHeads({"precision.compute=bf16", "model.dropout.attention=0"}));
  CHECK(odd.starts_with("--set:1: attention with heads of 12 elements has no fast kernel on h200: in "));
  CHECK(odd.find("in cuDNN none of heads of ") != std::string::npos);
  CHECK(odd.find("in the kernels for Hopper none ") != std::string::npos);
  CHECK(odd.find('\n') + 1 == odd.size());
  CHECK(!Errors(OddHeads({"precision.compute=fp16"})).empty());
  // Evaluation has no dropout: what is left of the causes there is no error of its own.
  const std::string both = Errors(OddHeads({"precision.compute=bf16", "model.dropout.attention=0.1"}));
  CHECK(both.find("dropout.attention 0.1") != std::string::npos);
  CHECK(both.find('\n') + 1 == both.size());
  // On Ampere there is no dropout, and what the recipe says last is the place.
  const plan::DeviceProfile ampere = backend::cuda::CudaProfile(true, {.major = 8, .hopper = false});
  CHECK(Errors({"precision.compute=bf16", "model.attention.head_dim=64", "cluster.device=a100"}, ampere) ==
        "--set:3: attention with dropout.attention 0.1 has no fast kernel on a100: in cuDNN none with "
        "dropout; in the kernels for Hopper none on other GPUs than H100 and H200 (sm_90a)\n");
  CHECK(Errors({"precision.compute=bf16", "model.attention.head_dim=64", "model.dropout.attention=0",
                "cluster.device=a100"},
               ampere)
            .empty());
}

TEST_CASE("kernels: the hint has what is near, and what the reference kernels take") {
  const Sets sets = {"precision.compute=bf16", "model.attention.head_dim=64", "cluster.device=a100"};
  const recipe::Recipe recipe = plan::TinyRecipe(false, sets);
  const plan::DeviceProfile ampere = backend::cuda::CudaProfile(true, {.major = 8, .hopper = false});
  const std::vector<Diagnostic> errors = CheckKernels(recipe, PlanOf(recipe, ampere));
  REQUIRE(errors.size() == 1);
  CHECK(
      errors[0].hint.starts_with("no dropout; or H100 or H200; or precision.attention = \"reference\": the "
                                 "reference kernels take "));
}

TEST_CASE("kernels: float32, the reference kernels that a recipe asks for, and the CPU are not refused") {
  const plan::DeviceProfile cuda = backend::cuda::CudaProfile();
  CHECK(Errors(OddHeads({"precision.compute=fp32"})).empty());
  CHECK(Errors(OddHeads({"precision.compute=bf16", "precision.attention=reference"})).empty());
  CHECK(Errors(OddHeads({"precision.compute=bf16"}), {}).empty());
  // The ops say who asked; where nothing is slow, or there are no others, nothing is asked for, and plans stay what they were.
  CHECK(AskedKernels({"precision.compute=bf16", "precision.attention=reference"}, cuda) == "24 of 24");
  CHECK(AskedKernels({"precision.compute=bf16"}, cuda) == "0 of 24");
  CHECK(AskedKernels({"precision.compute=fp32", "precision.attention=reference"}, cuda) == "0 of 24");
  CHECK(AskedKernels({"precision.compute=bf16", "precision.attention=reference"}, {}) == "0 of 24");
}

// Of models written as steps; a decoder's key has a rule of its own.
TEST_CASE("kernels: CUDA has none for heads that are wider than the reference kernels'") {
  const auto lacks = [](std::int64_t head, std::int64_t value_head) {
    const graph::TensorType q = {.shape = {1, 8, 2, head}, .dtype = DType::kF32};
    const graph::TensorType v = {.shape = {1, 8, 2, value_head}, .dtype = DType::kF32};
    return backend::cuda::CudaProfile().lacks(ops::kAttention, std::vector{q, q, v}, {});
  };
  CHECK(lacks(512, 512).empty());
  CHECK(lacks(520, 128) == "attention with heads of 520 elements, of which 512 are the most");
  CHECK(lacks(128, 520) == "attention with heads of 520 elements, of which 512 are the most");
}

TEST_CASE("kernels: what the reference kernels cost is said where they cost much") {
  predict::Prediction time;
  time.iteration_s = 3;
  time.fast_iteration_s = 2;
  predict::SlowTime& slow = time.slow.emplace_back();
  slow.seconds = 1.2;
  slow.fast_s = 1;
  CHECK(SlowerBy(time, "; ").empty());
  slow.seconds = 4;
  CHECK(SlowerBy(time, "; ")
            .starts_with("; the reference kernels take 4 times as long, an iteration 1.5 times"));
}

}  // namespace engine::driver
