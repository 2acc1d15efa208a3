// The state of a training run on its ranks: initial weights, and weights and optimizer state from checkpoints (to them: save.h).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/checkpoint/piece_reader.h"
#include "engine/plan/plan.h"
#include "engine/recipe/recipe.h"
#include "engine/state/ranks.h"

namespace engine::state {

// Initial weights: element i of tensor `name` is its initializer's value, for a normal std ·
// PhiloxNormal(key(seed, name), i), i the row-major index in the unpadded logical tensor: the same bits in
// every layout. Padding is zero. And the optimizer's states as they begin (plan/optimizer.h).
absl::Status InitializeParameters(const plan::Plan& plan, std::uint64_t seed,
                                  executor::RankExecutor& executor);

// Fills this rank's part. Error: a tensor that is missing or has another shape, or states of another optimizer.
// `with_optimizer` false: weights only.
absl::Status LoadCheckpoint(const plan::Plan& plan, const checkpoint::PieceReader& reader,
                            bool with_optimizer, executor::RankExecutor& executor);

// Where in a checkpoint the first values of a parameter are.
struct WeightSource {
  std::string tensor;  // empty: nowhere, and it keeps the values that it has
  bool each_expert =
      false;  // the tensor is of one expert's shape, without dim 0, and every expert gets its values
  bool fewer_rows = false;  // the tensor has fewer rows, and the further ones get the mean of its rows
};

// Fills this rank's part of the weights from tensors that fit (f32, of the parameters' logical shapes). Means are sums in
// float64 in the order of rows, so that every layout gets the same bits.
// `sources`: of each of the plan's parameters. Nothing else is read: what the optimizer keeps stays as it is.
absl::Status LoadWeights(const plan::Plan& plan, const checkpoint::TensorSource& weights,
                         std::span<const WeightSource> sources, executor::RankExecutor& executor);

// A whole logical weight, or its gradient as the last iteration's update reduced it, gathered on the host:
// for tests and tools.
absl::Status GatherParameter(const plan::Plan& plan, Ranks& ranks, std::int32_t parameter,
                             std::vector<float>* out);
absl::Status GatherGradient(const plan::Plan& plan, Ranks& ranks, std::int32_t parameter,
                            std::vector<float>* out);

}  // namespace engine::state
