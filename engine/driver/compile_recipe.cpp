#include "engine/driver/compile_recipe.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/units.h"
#include "engine/driver/row_notes.h"
#include "engine/model/build.h"
#include "engine/model/generation.h"
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

// Of a microbatch of so many samples of so many tokens.
struct MicrobatchSize {
  std::int64_t samples, tokens;
};

model::BuildOptions ModelOptions(const recipe::Recipe& recipe, const compile::Policy& policy,
                                 const plan::DeviceProfile& profile, const MicrobatchSize& of, bool dropout,
                                 bool windows, bool scores) {
  return {.batch = of.samples,
          .rank_samples = of.samples / (recipe.parallelism.dp * recipe.parallelism.ep),
          .sequence = of.tokens,
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
    const MicrobatchSize size = {policy.microbatch_samples, policy.sequence};
    return wanted ? model::BuildModel(
                        recipe, ModelOptions(recipe, policy, options.profile, size, dropout, windows, scores))
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

// Of a prompt each rank of cp has two pieces, one from its beginning and one from its end.
absl::Status CheckPrompts(const std::vector<std::int64_t>& prefill_tokens, std::int64_t cp) {
  for (const std::int64_t tokens : prefill_tokens) {
    if (cp == 1 || tokens % (2 * cp) == 0) continue;
    return InvalidArgument(
        "cp = {} cuts prompts into {} equal pieces, and {} tokens are none: a context of {} is", cp, 2 * cp,
        tokens, tokens + 2 * cp - tokens % (2 * cp));
  }
  return absl::OkStatus();
}

absl::Status CheckSlots(std::int64_t slots, std::int64_t ranks) {
  constexpr std::int64_t kMostSlots = 1024;  // of a rank
  if (slots < 1 || slots > kMostSlots * ranks)
    return InvalidArgument("{} sequences at a time: 1 to {} are possible", slots, kMostSlots * ranks);
  if (slots % ranks == 0) return absl::OkStatus();
  return InvalidArgument("{} sequences at a time are no equal parts for the {} ranks of dp · ep: {} are",
                         slots, ranks, slots + ranks - slots % ranks);
}

// What the graphs of all steps of generation are made by.
struct GenerationInputs {
  const recipe::Recipe& recipe;
  const compile::Policy& policy;
  const compile::CompileOptions& options;
  const GenerationShape& shape;
};

// The model's evaluation of so many sequences of so many tokens.
absl::StatusOr<graph::Graph> EvaluationOf(const GenerationInputs& of, const MicrobatchSize& size) {
  model::BuildOptions options =
      ModelOptions(of.recipe, of.policy, of.options.profile, size, /*dropout=*/false,
                   /*windows=*/true, /*scores=*/false);
  options.rank_samples = 0;
  return model::TryBuildModel(of.recipe, options);
}

// The graph of a step of generation. `whole`: that of a sequence as long as the context.
absl::StatusOr<compile::GenerationGraph> GenerationOf(const GenerationInputs& of, const graph::Graph& whole,
                                                      const plan::Form& form) {
  ASSIGN_OR_RETURN(const graph::Graph evaluate, EvaluationOf(of, {form.samples, form.tokens}));
  constexpr std::int64_t kLogitBytes = SizeOf(DType::kF32);
  const std::int64_t samples = form.samples / SlotRanks(of.recipe);
  const std::int64_t rows = of.shape.logits_bytes / (samples * of.policy.vocab_rows * kLogitBytes);
  ASSIGN_OR_RETURN(graph::Graph graph,
                   model::ForGeneration(evaluate, whole,
                                        {.begins = form.kind == plan::ProgramKind::kPrefill,
                                         .slots = of.shape.slots,
                                         .context = of.shape.context,
                                         .wanted = std::clamp<std::int64_t>(rows, 1, form.tokens),
                                         .narrow_cache = of.recipe.generate.cache_dtype == "fp8"}));
  return compile::GenerationGraph{form, std::move(graph)};
}

}  // namespace

std::int64_t SlotRanks(const recipe::Recipe& recipe) { return recipe.parallelism.dp * recipe.parallelism.ep; }

void SetForGeneration(recipe::Recipe* recipe) {
  recipe->parallelism.sequence_parallel = false;
  recipe->parallelism.expert_tp = 0;  // 1 is of sequence parallelism
  recipe->parallelism.zero_stage = 0;
  recipe->training.micro_batch = 1;
  recipe->training.global_batch = SlotRanks(*recipe);
  recipe->training.rampup = {};
  recipe->data.documents = "across";  // a sequence is one document
  recipe->data.packing = "none";
}

absl::StatusOr<plan::Plan> CompileGeneration(const recipe::Recipe& recipe,
                                             const compile::CompileOptions& options,
                                             const GenerationShape& shape) {
  const std::int64_t ranks = SlotRanks(recipe);
  RETURN_IF_ERROR(CheckSlots(shape.slots, ranks));
  RETURN_IF_ERROR(CheckPrompts(shape.prefill_tokens, recipe.parallelism.cp));
  compile::CompileOptions generates = options;
  generates.training = false;
  generates.evaluation = false;
  ASSIGN_OR_RETURN(const compile::Policy policy, compile::ResolvePolicy(recipe, generates));
  const GenerationInputs inputs = {recipe, policy, generates, shape};
  ASSIGN_OR_RETURN(const graph::Graph whole, EvaluationOf(inputs, {1, shape.context}));
  std::vector<compile::GenerationGraph> graphs;
  for (const std::int64_t tokens : shape.prefill_tokens) {
    const plan::Form form = {.kind = plan::ProgramKind::kPrefill, .samples = ranks, .tokens = tokens};
    ASSIGN_OR_RETURN(graphs.emplace_back(), GenerationOf(inputs, whole, form));
  }
  for (const std::int64_t batch : shape.decode_batches) {
    const plan::Form form = {.kind = plan::ProgramKind::kDecode, .samples = batch * ranks, .tokens = 1};
    ASSIGN_OR_RETURN(graphs.emplace_back(), GenerationOf(inputs, whole, form));
  }
  ASSIGN_OR_RETURN(compile::Compiled compiled,
                   compile::Compile(policy, graph::Graph(), graph::Graph(), generates, std::move(graphs)));
  RETURN_IF_ERROR(VerifyAgainst(recipe, compiled.plan));
  return std::move(compiled.plan);
}

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
