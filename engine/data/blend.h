// Which data set the i-th sample of a weighted mixture comes from, bit for bit Megatron's blended data sets
// (megatron/core/datasets/blended_megatron_dataset_builder.py, blended_dataset.py, helpers.cpp). No
// randomness.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <span>
#include <vector>

namespace engine::data {

// weights / sum(weights) with numpy's pairwise sum. Each weight must be finite and above 0.
absl::StatusOr<std::vector<double>> NormalizeWeights(std::span<const double> weights);

// Samples that a mixture of `size` samples plans to take from a data set of normalised weight `weight`, and
// the number that its index is built for: 0.5 % more (Megatron's --mid-level-dataset-surplus).
std::int64_t BlendTarget(std::int64_t size, double weight);
std::int64_t BlendBuiltSize(std::int64_t target);

struct BlendIndex {  // sample i is sample `samples[i]` of data set `datasets[i]`
  std::vector<std::int16_t> datasets;
  std::vector<std::int64_t> samples;
  std::int64_t size() const { return static_cast<std::int64_t>(datasets.size()); }
};

// Greedy: sample i comes from the data set that lags most behind its share, the first of equals. `weights`
// are normalised once more here, as Megatron does. At most 32767 data sets.
absl::StatusOr<BlendIndex> BuildBlendIndex(std::span<const double> weights, std::int64_t size);

}  // namespace engine::data
