#include "engine/driver/compile_recipe.h"

#include <fmt/format.h>

#include <cstdint>
#include <string_view>
#include <utility>

#include "engine/base/units.h"
#include "engine/driver/row_notes.h"
#include "engine/model/build.h"
#include "engine/predict/predict.h"
#include "engine/verify/verify.h"

namespace engine::driver {
namespace {

// Dtype of weights and activations. fp8 is a property of single products: what lies in memory is bf16.
DType ComputeDType(const recipe::Recipe& recipe) {
  if (recipe.precision.compute == "fp32") return DType::kF32;
  return recipe.precision.compute == "fp16" ? DType::kF16 : DType::kBF16;
}

// Of devices without slow kernels, and in float32, there is nothing to ask for.
std::string_view AttentionKernel(const recipe::Recipe& recipe, const plan::DeviceProfile& profile) {
  const bool asks = recipe.precision.attention == "reference" && recipe.precision.compute != "fp32";
  return asks && profile.slow ? "reference" : "";
}

model::BuildOptions ModelOptions(const recipe::Recipe& recipe, const compile::Policy& policy,
                                 const plan::DeviceProfile& profile, bool dropout, bool windows,
                                 bool scores) {
  return {.batch = policy.microbatch_samples,
          .rank_samples = policy.microbatch_samples / (recipe.parallelism.dp * recipe.parallelism.ep),
          .sequence = policy.sequence,
          .vocab_multiple = recipe.model.vocab_multiple * recipe.parallelism.tp,
          .whole_experts = recipe.parallelism.expert_tp == 1,
          .ep = recipe.parallelism.ep,
          .expert_rows = recipe.parallelism.expert_rows,
          .dtype = ComputeDType(recipe),
          .dropout = dropout,
          .windows = windows,
          .attention_kernel = AttentionKernel(recipe, profile),
          .forced_router = recipe.debug.router == "model" ? "" : std::string_view(recipe.debug.router),
          .global_samples = static_cast<double>(policy.global_batch),
          .init_std = recipe.model.init_std,
          .scores = scores};
}

absl::StatusOr<compile::Compiled> CompileByPolicy(const recipe::Recipe& recipe, const compile::Policy& policy,
                                                  const compile::CompileOptions& options, bool windows) {
  const auto build = [&](bool wanted, bool dropout, bool scores) {
    return wanted ? model::BuildModel(recipe,
                                      ModelOptions(recipe, policy, options.profile, dropout, windows, scores))
                  : graph::Graph();
  };
  const bool keep_scores = options.keep_scores || !recipe.evaluation.tasks.empty();
  graph::Graph training = build(options.training, /*dropout=*/true, /*scores=*/false);
  const std::int64_t active = model::CountActiveParameters(training);
  const bool has_experts = active != model::CountParameters(training);
  ASSIGN_OR_RETURN(compile::Compiled compiled,
                   compile::Compile(policy, std::move(training),
                                    build(options.evaluation, /*dropout=*/false, keep_scores), options));
  if (has_experts) {
    compiled.plan.notes.push_back(
        fmt::format("of experts a token meets those that it goes to: {} parameters", WithThousands(active)));
  }
  if (recipe.parallelism.expert_rows > 0) AddRowNotes(&compiled.plan);
  return compiled;
}

absl::StatusOr<compile::Compiled> CompileAs(const recipe::Recipe& recipe,
                                            const compile::CompileOptions& options, bool windows) {
  ASSIGN_OR_RETURN(const compile::Policy policy, compile::ResolvePolicy(recipe, options));
  return CompileByPolicy(recipe, policy, options, windows);
}

absl::StatusOr<plan::Plan> CompileBest(const recipe::Recipe& recipe, const compile::CompileOptions& options,
                                       bool windows) {
  ASSIGN_OR_RETURN(const compile::Policy policy, compile::ResolvePolicy(recipe, options));
  ASSIGN_OR_RETURN(compile::Compiled compiled, CompileByPolicy(recipe, policy, options, windows));
  const bool refused = !compiled.halves_refused.empty();
  if (!refused && !policy.halves_may_be_held_up) return std::move(compiled.plan);
  compile::CompileOptions whole_options = options;
  whole_options.halves = false;
  absl::StatusOr<compile::Compiled> whole = CompileAs(recipe, whole_options, windows);
  if (!whole.ok()) return refused ? whole.status() : absl::StatusOr<plan::Plan>(std::move(compiled.plan));
  const auto seconds = [&](const plan::Plan& plan) {
    return predict::Predict(plan, recipe.cluster).iteration_s;
  };
  const bool takes_whole = refused || seconds(whole->plan) < seconds(compiled.plan);
  return std::move(takes_whole ? whole->plan : compiled.plan);
}

}  // namespace

absl::StatusOr<compile::Compiled> CompileAsSaid(const recipe::Recipe& recipe,
                                                const compile::CompileOptions& options) {
  return CompileAs(recipe, options, /*windows=*/true);
}

absl::StatusOr<plan::Plan> CompileUnverified(const recipe::Recipe& recipe,
                                             const compile::CompileOptions& options) {
  return CompileBest(recipe, options, /*windows=*/true);
}

absl::StatusOr<plan::Plan> CompileWithoutWindows(const recipe::Recipe& recipe,
                                                 const compile::CompileOptions& options) {
  return CompileBest(recipe, options, /*windows=*/false);
}

absl::Status VerifyAgainst(const recipe::Recipe& recipe, const plan::Plan& plan) {
  return verify::Verify(
      plan, {.memory_bytes = recipe.cluster.memory_bytes, .reserved_bytes = recipe.cluster.reserved_bytes});
}

absl::StatusOr<plan::Plan> CompileRecipe(const recipe::Recipe& recipe,
                                         const compile::CompileOptions& options) {
  ASSIGN_OR_RETURN(plan::Plan plan, CompileUnverified(recipe, options));
  RETURN_IF_ERROR(VerifyAgainst(recipe, plan));
  return plan;
}

}  // namespace engine::driver
