#include "engine/driver/compile_recipe.h"

#include <utility>

#include "engine/model/decoder.h"
#include "engine/predict/predict.h"
#include "engine/verify/verify.h"

namespace engine::driver {
namespace {

// Dtype of weights and activations. fp8 is a property of single products: what lies in memory is bf16.
DType ComputeDType(const recipe::Recipe& recipe) {
  if (recipe.precision.compute == "fp32") return DType::kF32;
  return recipe.precision.compute == "fp16" ? DType::kF16 : DType::kBF16;
}

model::BuildOptions ModelOptions(const recipe::Recipe& recipe, const compile::CompileOptions& options,
                                 bool dropout) {
  const double tokens =
      static_cast<double>(recipe.training.global_batch) * static_cast<double>(recipe.data.sequence_length);
  const std::int64_t micro_batch = recipe.training.micro_batch / compile::Lanes(recipe, options);
  return {.batch = micro_batch * recipe.parallelism.dp * recipe.parallelism.ep,
          .sequence = recipe.data.sequence_length,
          .vocab_rows = recipe.padded_vocab(),
          .dtype = ComputeDType(recipe),
          .dropout = dropout,
          .loss_scale = 1.0 / tokens};
}

}  // namespace

bool MayHoldUpHalves(const recipe::Recipe& recipe, const compile::CompileOptions& options) {
  const recipe::Parallelism& p = recipe.parallelism;
  return p.pp > 1 && p.dp > 1 && compile::HoldsUpHalves(recipe, options);
}

absl::StatusOr<plan::Plan> CompileAsSaid(const recipe::Recipe& recipe,
                                         const compile::CompileOptions& options) {
  return compile::Compile(
      recipe, model::BuildDecoder(recipe, ModelOptions(recipe, options, /*dropout=*/true)),
      options.evaluation ? model::BuildDecoder(recipe, ModelOptions(recipe, options, /*dropout=*/false))
                         : graph::Graph(),
      options);
}

absl::StatusOr<plan::Plan> CompileUnverified(const recipe::Recipe& recipe,
                                             const compile::CompileOptions& options) {
  absl::StatusOr<plan::Plan> plan = CompileAsSaid(recipe, options);
  const bool refused = options.halves && absl::IsFailedPrecondition(plan.status());
  if (!refused && !(plan.ok() && plan->lanes > 1 && MayHoldUpHalves(recipe, options))) return plan;
  compile::CompileOptions whole = options;
  whole.halves = false;
  absl::StatusOr<plan::Plan> other = CompileAsSaid(recipe, whole);
  if (refused || !other.ok()) return refused ? std::move(other) : std::move(plan);
  const double in_turns = predict::Predict(*plan, recipe.cluster).iteration_s;
  return predict::Predict(*other, recipe.cluster).iteration_s < in_turns ? std::move(other) : std::move(plan);
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
