// What stands beside products of few rows becomes part of them, on a GPU, in programs of generation: there nothing that lies
// between them has another reader.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <map>
#include <string>
#include <vector>

#include "engine/backend/cuda/profile/profile.h"
#include "engine/compile/compile.h"
#include "tests/plan/plans.h"

namespace engine::compile {
namespace {

// Of two layers, verified; prompts of 32 tokens, and steps of 1, 2, 16 and 17 sequences.
plan::Plan GenerationPlan(bool llama, std::vector<std::string> sets) {
  for (const char* set :
       {"model.layers=2", "model.attention.heads=4", "training.global_batch=1", "training.micro_batch=1"})
    sets.emplace_back(set);
  absl::StatusOr<plan::Plan> plan = driver::CompileGeneration(
      plan::TinyRecipe(llama, sets), {.profile = backend::cuda::CudaProfile()},
      {.slots = 17, .context = 32, .prefill_tokens = {32}, .decode_batches = {1, 2, 16, 17}});
  if (!plan.ok()) FAIL(Message(plan.status()));
  return *std::move(plan);
}

// "add 1, linear 12": how often each kernel runs in a segment.
std::string CountedKernels(const plan::Plan& plan, const std::string& name) {
  std::map<std::string, int> counts;
  for (const plan::Segment& segment : plan.stages[0].segments) {
    if (segment.name != name) continue;
    for (const plan::Instruction& instruction : segment.instructions)
      ++counts[std::string(instruction.kernel())];
  }
  std::string text;
  for (const auto& [kernel, count] : counts)
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", kernel, count);
  return text;
}

}  // namespace

TEST_CASE("fuse: in a step of few sequences, what stands beside products is part of them") {
  const plan::Plan llama = GenerationPlan(true, {"precision.compute=bf16"});
  const plan::Plan gpt = GenerationPlan(false, {"precision.compute=bf16"});
  CHECK(CountedKernels(llama, "decode1x1.0") ==
        "cached_attention 2, embedding 1, linear_residual 4, norm_linear 5, qkv_split 2, top_logits 1");
  // The first norm takes the sum of both embeddings.
  CHECK(CountedKernels(gpt, "decode1x1.0") ==
        "add_layer_norm 1, cached_attention 2, embedding 2, linear 1, linear_residual 4, norm_linear 4, "
        "qkv_split 2, top_logits 1");
  // Of several rows only a gate and an up projection.
  for (const char* segment : {"decode2x1.0", "decode16x1.0"}) {
    CHECK(
        CountedKernels(llama, segment) ==
        "add_rms_norm 4, cached_attention 2, embedding 1, linear 7, linear_gated 2, qkv_split 2, rms_norm 1, "
        "top_logits 1");
    CHECK(CountedKernels(gpt, segment) ==
          "add_layer_norm 5, cached_attention 2, embedding 2, linear 7, linear_gelu 2, qkv_split 2, "
          "top_logits 1");
  }
  // Of more rows the library makes products, and so it does in fp32.
  const char* const kPlain =
      "add_rms_norm 4, cached_attention 2, embedding 1, linear 9, qkv_split 2, rms_norm 1, swiglu 2, "
      "top_logits 1";
  CHECK(CountedKernels(llama, "decode17x1.0") == kPlain);
  CHECK(CountedKernels(GenerationPlan(true, {}), "decode1x1.0") == kPlain);
  // Sums have one order whatever the number of rows.
  const plan::Plan invariant = GenerationPlan(true, {"precision.compute=bf16", "generate.invariant=true"});
  CHECK(CountedKernels(invariant, "decode1x1.0").find("linear 9, qkv_split 2, rms_norm 1, swiglu 2") !=
        std::string::npos);
}

// The gradient reads the gate and the up projection again, however few rows there are.
TEST_CASE("fuse: a training step keeps what its gradients read") {
  const recipe::Recipe recipe =
      plan::TinyRecipe(true, {"model.layers=2", "precision.compute=bf16", "data.sequence_length=8",
                              "training.global_batch=1", "training.micro_batch=1"});
  absl::StatusOr<plan::Plan> plan = driver::CompileRecipe(recipe, {.profile = backend::cuda::CudaProfile()});
  if (!plan.ok()) FAIL(Message(plan.status()));
  CHECK(CountedKernels(*plan, "forward.0") ==
        "add_rms_norm 4, attention 2, embedding 1, linear 8, qkv_split 2, rms_norm 1, swiglu 2");
}

}  // namespace engine::compile
