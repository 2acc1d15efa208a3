// Entropy of token counts: the loss of a model that knows only how frequent each token is.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <span>

#include "engine/data/indexed_dataset.h"

namespace engine::data {

// -Σ p ln p over the distribution proportional to `weights` (counts or probabilities, at least 0), in nats; 0
// for none.
template <typename T>
double EntropyNats(std::span<const T> weights) {
  double total = 0.0;
  for (T weight : weights) total += static_cast<double>(weight);
  double entropy = 0.0;
  for (T weight : weights) {
    if (weight > 0)
      entropy -= static_cast<double>(weight) / total * std::log(static_cast<double>(weight) / total);
  }
  return entropy;
}

// Nats per token over a whole data set, by its scan; nullopt where token ids are negative or above 2^24 - 1,
// so that a table of counts would be no data set's. Errors: of reading a remote one.
absl::StatusOr<std::optional<double>> UnigramEntropy(const IndexedDataset& dataset, const TokenScan& scan);

}  // namespace engine::data
