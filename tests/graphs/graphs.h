// Graphs of our own for tests, and plans of them: what the passes, the verifier and the executor do with models that no
// recipe's decoder is. A recipe gives the layout and the batch alone.
#pragma once

#include <doctest/doctest.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "engine/compile/compile.h"
#include "engine/graph/graph.h"
#include "tests/plan/plans.h"

namespace engine::plan {

// Sizes that a graph takes from the recipe.
struct GraphSizes {
  std::int64_t samples = 1;  // of a microbatch, over all data-parallel ranks
  std::int64_t sequence = 1;
  std::int64_t global_samples = 1;
};

// A model: its forward graph, and of each input the numbers below which its elements are, 0 where they are the places
// along dim 1.
struct GraphModel {
  std::function<graph::Graph(const GraphSizes&)> build;
  std::map<std::string, std::int64_t> limits;
};

// Blocks x + fc2(gelu(fc1(norm(x)))) with shortcuts: the block in the middle looks the tokens up again in the table,
// which the head uses too, so that three units hold it; the last block adds what the first has made, which goes over all
// chunks in between.
GraphModel Ladder(int blocks);

// An encoder of attention without a mask, and a class head on its first token: the loss is per sample.
GraphModel Encoder(int blocks);

// An encoder and a decoder joined by cross attention. The decoder's sequence is half as long as the encoder's. One table
// has three holders: both embeddings, and the head. Two losses: the decoder's next tokens (weight 1, per token) and the
// encoder's class (weight kClassWeight, per sample).
inline constexpr double kClassWeight = 0.25;
GraphModel EncoderDecoder(int encoder_blocks, int decoder_blocks);

// A decoder whose four blocks have attention of other forms: a soft cap and linear biases; a soft cap, and neighbours of
// half a head turned by YaRN; sinks, within a window; and sinks with a soft cap and dropout, of queries and keys that are
// projected apart and turned by longrope.
GraphModel AttentionForms();

// A decoder whose three blocks have trained biases by distance, each block its own: alone, of all distances of a sequence;
// within a window beside sinks, a soft cap and linear biases; and without a mask, with dropout and grouped heads.
GraphModel DistanceBiases();

// A decoder of scaled embeddings, norms with gain 1 + w, queries and keys that are normalised (normed_dims as in
// tests/graphs/builder.h), gated feed-forward layers, and logits with a bias, scaled and
// capped.
GraphModel NormedDecoder(int blocks, int normed_dims);

// The same model whose parameters are trained as `settings_of` says of their names.
GraphModel WithTraining(const GraphModel& model,
                        const std::function<graph::TrainingSettings(const std::string& name)>& settings_of);

// The same model whose cross entropies have label smoothing and z-loss (ops/cross_entropy.cpp).
GraphModel WithLossTerms(const GraphModel& model, double smoothing, double z_loss);

// `blocks`: of each chunk; empty: balanced. Not verified.
absl::StatusOr<Plan> PlanOfGraph(const recipe::Recipe& recipe, const GraphModel& model,
                                 const DeviceProfile& profile = {},
                                 const std::vector<std::int64_t>& blocks = {});

// With the layout of a tiny recipe (tests/plan/plans.h).
inline Plan TinyPlanOf(const GraphModel& model, const std::vector<std::string>& sets,
                       const std::vector<std::int64_t>& blocks = {}) {
  absl::StatusOr<Plan> plan = PlanOfGraph(TinyRecipe(true, sets), model, {}, blocks);
  if (!plan.ok()) FAIL(Message(plan.status()));
  return *std::move(plan);
}

}  // namespace engine::plan
