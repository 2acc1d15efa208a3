// Products of experts in FP8: the plans that CUDA's profile gives.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "engine/backend/cuda/profile/profile.h"
#include "engine/compile/compile.h"
#include "engine/model/load.h"
#include "engine/ops/fp8.h"
#include "tests/plan/plans.h"

namespace engine::compile {
namespace {

using Sets = std::vector<std::string>;

constexpr const char* kRecipe = R"(
[model]
dims = { D = 64, L = 4, H = 4, K = 2, E = 16, F = 64, X = 8, V = 320 }
inputs = { tokens = "i32[B,S]", labels = "i32[B,S]", positions = "i32[B,S]" }
rotary.rope = { dim = "E", base = 1e4 }
main = [
  { do = "embedding", as = "embedding.tokens", of = "tokens", rows = "V", width = "D" },
  { do = "stack", as = "layers", repeat = "L", layer = ["attention as attention", "moe as mlp"] },
  { do = "rms_norm", as = "final_norm" },
  { do = "linear", as = "head", out = ["V"] },
  { do = "cross_entropy", as = "loss" },
]
[block.attention]
steps = [
  { do = "rms_norm", as = "norm", of = "x" },
  { do = "linear", as = "qkv", out = ["K", "H/K+2", "E"] },
  { do = "qkv_split", as = "split", to = ["q", "k", "v"], rotary = "rope" },
  { do = "attention", as = "core", of = ["q", "k", "v"] },
  { do = "linear", as = "proj", out = ["D"], init = "branch" },
  { do = "residual", as = "residual", of = ["x", "proj"], to = "x" },
]
[block.moe]
steps = [
  { do = "rms_norm", as = "norm", of = "x" },
  { do = "route", as = "router", experts = "X", top_k = 2, aux_loss = 0.01, to = ["choice", "weight"] },
  { do = "experts", as = "experts", of = ["norm", "choice", "weight"], hidden = "F" },
  { do = "residual", as = "residual", of = ["x", "experts"], to = "x" },
]
[data]
paths = ["none"]
sequence_length = 32
[training]
global_batch = 16
micro_batch = 2
iterations = 5
[precision]
compute = "fp8"
[optimizer]
learning_rate = 1e-3
)";

// Verified.
plan::Plan QuantizedPlan(const Sets& sets) {
  const recipe::LoadResult loaded = model::LoadText(kRecipe, "test.toml", {.sets = sets, .root = ""});
  std::string errors;
  for (const Diagnostic& diagnostic : loaded.diagnostics) errors += Format(diagnostic);
  REQUIRE_MESSAGE(loaded.ok(), errors);
  absl::StatusOr<plan::Plan> plan =
      driver::CompileRecipe(loaded.recipe, {.profile = backend::cuda::CudaProfile()});
  if (!plan.ok()) FAIL(Message(plan.status()));
  return *std::move(plan);
}

using Found = std::vector<const plan::Instruction*>;

// Of all stages, in segments whose name begins so.
Found InstructionsOf(const plan::Plan& plan, std::string_view segments, std::string_view kernel) {
  Found found;
  for (const plan::StagePlan& stage : plan.stages) {
    for (const plan::Segment& segment : stage.segments) {
      if (!segment.name.starts_with(segments)) continue;
      for (const plan::Instruction& instruction : segment.instructions) {
        if (instruction.kernel() == kernel) found.push_back(&instruction);
      }
    }
  }
  return found;
}

}  // namespace

TEST_CASE(
    "fp8 plan: products of experts take operands in FP8 with their states, and the groups of their rows") {
  for (const bool current : {false, true}) {
    const plan::Plan plan =
        QuantizedPlan({current ? "precision.fp8_scaling=current" : "precision.fp8_scaling=delayed"});
    const std::string rows = current ? "quantize_rows_current" : "quantize_rows";
    std::map<std::int32_t, const plan::Instruction*> made;
    for (const std::string& quantize : {rows, std::string(current ? "quantize_current" : "quantize")}) {
      for (const plan::Instruction* instruction : InstructionsOf(plan, "", quantize)) {
        made[instruction->outputs[0].value] = instruction;
        made[instruction->outputs[1].value] = instruction;
      }
    }
    const auto check = [&](const char* segments, const char* product, std::array<size_t, 2> forms) {
      const Found products = InstructionsOf(plan, segments, product);
      CHECK(products.size() == 8);
      for (const plan::Instruction* instruction : products) {
        REQUIRE(instruction->inputs.size() == 5);
        for (size_t i = 0; i < 2; ++i) {
          const plan::Instruction& quantize = *made.at(instruction->inputs[i].value);
          CHECK(quantize.outputs[forms[i]].value ==
                instruction->inputs[i].value);  // as it lies, or transposed
          const plan::BufferRef& state = current ? quantize.outputs[2] : quantize.inputs.back();
          CHECK(instruction->inputs[2 + i].value == state.value);
          if (quantize.kernel() == rows) CHECK(quantize.inputs[1].value == instruction->inputs[4].value);
        }
      }
    };
    check("forward.0", "grouped_linear_fp8", {0, 0});
    check("backward.0", "grouped_linear_dgrad_fp8", {0, 1});
    check("backward.0", "grouped_linear_wgrad_fp8", {1, 1});
    for (const char* plain : {"grouped_linear", "grouped_linear_dgrad", "grouped_linear_wgrad"})
      CHECK(InstructionsOf(plan, plain == std::string("grouped_linear") ? "forward" : "backward", plain)
                .empty());
    CHECK(InstructionsOf(plan, "forward.0", rows).size() == 8);      // rows of norms and of activations
    CHECK(InstructionsOf(plan, "backward.0", rows).size() == 8);     // gradients
    CHECK(InstructionsOf(plan, "forward.0", "linear").size() == 4);  // routers
    // Weights, of which every expert's has to have sizes that FP8 takes: of attention two a layer, of experts two.
    CHECK(InstructionsOf(plan, "begin", current ? "quantize_current" : "quantize").size() == 16);
  }
}

TEST_CASE("fp8 plan: experts' rows that are made again are quantised again") {
  for (const char* granularity : {"cheap", "full"}) {
    const plan::Plan plan = QuantizedPlan({std::string("recompute.granularity=") + granularity});
    CHECK(InstructionsOf(plan, "backward.0", "grouped_linear_wgrad_fp8").size() == 8);
    CHECK(InstructionsOf(plan, "backward.0", "quantize_rows").size() == 16);
    CHECK(StateNames(plan) == StateNames(QuantizedPlan({})));
  }
}

// Gate and up together are 80 wide; the other matrix takes 40.
TEST_CASE("fp8 plan: matrices of experts whose sizes are no multiples of 16 stay in 16 bits") {
  const plan::Plan plan = QuantizedPlan({"model.dims.F=40"});
  CHECK(InstructionsOf(plan, "forward.0", "grouped_linear_fp8").size() == 4);
  CHECK(InstructionsOf(plan, "forward.0", "grouped_linear").size() == 4);
  CHECK(InstructionsOf(plan, "forward.0", "linear_fp8").size() == 8);
}

// The verifier has seen each plan.
TEST_CASE("fp8 plan: in every layout products of experts are in FP8, and a tensor has one scale") {
  const std::set<std::string> names = StateNames(QuantizedPlan({}));
  CHECK(names.size() == 4 * 4 * 3);
  for (const Sets& sets :
       {Sets{"parallelism.dp=2"}, Sets{"parallelism.ep=2"}, Sets{"parallelism.ep=4", "parallelism.dp=2"},
        Sets{"parallelism.tp=2"}, Sets{"parallelism.tp=2", "parallelism.sequence_parallel=true"},
        Sets{"parallelism.ep=2", "parallelism.tp=2", "parallelism.sequence_parallel=true",
             "parallelism.expert_tp=1"},
        Sets{"parallelism.pp=2", "parallelism.ep=2", "parallelism.schedule=zero_bubble"},
        Sets{"parallelism.ep=2", "parallelism.zero_stage=1", "recompute.granularity=full"}}) {
    CAPTURE(sets[0]);
    CAPTURE(sets.back());
    const plan::Plan plan = QuantizedPlan(sets);
    CHECK(InstructionsOf(plan, "", "grouped_linear_wgrad").empty());
    CHECK(InstructionsOf(plan, "", "grouped_linear_wgrad_fp8").size() ==
          static_cast<size_t>(8 * plan.halves));
    CHECK(StateNames(plan) == names);
  }
}

}  // namespace engine::compile
