// Which data set the i-th sample of a weighted mixture comes from, bit for bit Megatron's blended data sets
// (megatron/core/datasets/blended_megatron_dataset_builder.py, blended_dataset.py, helpers.cpp). No
// randomness.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

namespace engine::data {

// weights / sum(weights) with numpy's pairwise sum. Each weight must be finite and above 0.
absl::StatusOr<std::vector<double>> NormalizeWeights(std::span<const double> weights);

// Samples that a mixture of `size` samples plans to take from a data set of normalised weight `weight`, and
// the number that its index is built for: 0.5 % more (Megatron's --mid-level-dataset-surplus).
std::int64_t BlendTarget(std::int64_t size, double weight);
std::int64_t BlendBuiltSize(std::int64_t target);

// Greedy: sample i comes from the data set that lags most behind its share, the first of equals. Which one that is follows from all
// samples before it. They are dealt out as far as somebody has asked, so that no run waits for those that it will take hours
// later: the first of 1,000 data sets cost nothing, and sample 10^8 asked for at once some seconds.
class Blend {
 public:
  // `weights` are normalised once more here, as Megatron does. At most 32767 data sets, and 2^32 samples.
  static absl::StatusOr<std::unique_ptr<Blend>> Make(std::span<const double> weights, std::int64_t size);
  ~Blend();

  struct Place {
    std::int16_t dataset = 0;
    std::int64_t sample = 0;  // of that data set
  };
  // Where sample i of [0, size()) comes from. Safe to call from many threads; fast where samples are asked for near each other.
  Place At(std::int64_t i) const;
  std::int64_t size() const { return size_; }

 private:
  class Dealer;
  struct Block;
  Blend(std::vector<double> shares, std::int64_t size);
  std::shared_ptr<const Block> Deal(std::int64_t number) const;

  std::vector<double> shares_;
  std::int64_t size_;
  std::int64_t block_;  // samples that are dealt out at a time
  mutable std::mutex mutex_;
  mutable std::unique_ptr<Dealer> dealer_;  // at the end of the last block that was asked for
  // counts_[n][d]: how many samples of data set d come before block n, for each block that the dealer has come to.
  mutable std::vector<std::vector<std::uint32_t>> counts_;
  mutable std::vector<std::shared_ptr<const Block>> recent_;
};

}  // namespace engine::data
