// Plans of tiny recipes for tests.
#pragma once

#include <doctest/doctest.h>

#include <set>
#include <string>
#include <vector>

#include "engine/driver/compile_recipe.h"
#include "engine/recipe/load.h"

namespace engine::plan {

// A GPT-2-like model (learned positions, LayerNorm, GELU, biases, tied, dropout), or a Llama-like one
// (rotary, RMSNorm, SwiGLU, grouped queries, untied). `sets` are as of --set.
inline recipe::Recipe TinyRecipe(bool llama, const std::vector<std::string>& sets) {
  const std::string gpt = R"(
    [model]
    layers = 8
    hidden = 32
    vocab = 257
    vocab_multiple = 8
    max_positions = 64
    attention = { heads = 8, position = "learned", bias = true }
    mlp = { hidden = 64, activation = "gelu_tanh", bias = true }
    norm = { kind = "layernorm" }
    dropout = { embedding = 0.1, hidden = 0.1, attention = 0.1 }
    tied_embeddings = true
  )";
  const std::string llama_like = R"(
    [model]
    layers = 8
    hidden = 32
    vocab = 257
    vocab_multiple = 8
    max_positions = 64
    attention = { heads = 8, kv_heads = 4, position = "rotary", bias = false }
    mlp = { hidden = 64, activation = "swiglu", bias = false }
    norm = { kind = "rmsnorm" }
    tied_embeddings = false
  )";
  const std::string rest = R"(
    [data]
    paths = ["none"]
    sequence_length = 32
    [optimizer]
    learning_rate = 1e-3
    [training]
    global_batch = 16
    micro_batch = 1
    iterations = 5
    [data.tokenizer]
    kind = "byte"
  )";
  recipe::LoadOptions options;
  options.sets = sets;
  const recipe::LoadResult result = recipe::LoadText((llama ? llama_like : gpt) + rest, "tiny.toml", options);
  for (const Diagnostic& diagnostic : result.diagnostics) MESSAGE(Format(diagnostic));
  REQUIRE(result.ok());
  return result.recipe;
}

// Not verified.
inline Plan TinyPlan(bool llama, const std::vector<std::string>& sets) {
  absl::StatusOr<Plan> plan = driver::CompileUnverified(TinyRecipe(llama, sets), {});
  if (!plan.ok()) FAIL(Message(plan.status()));
  return *std::move(plan);
}

inline const LocalValue& ValueOf(const Plan& plan, const BufferRef& ref) {
  return plan.values[static_cast<size_t>(ref.value)];
}

// Names of the states of all stages.
inline std::set<std::string> StateNames(const Plan& plan) {
  std::set<std::string> names;
  for (const StagePlan& stage : plan.stages) {
    for (const State& state : stage.states) names.insert(ValueOf(plan, state.buffer).name);
  }
  return names;
}

}  // namespace engine::plan
