#include "engine/data/entropy.h"

#include <vector>

#include "engine/base/status.h"

namespace engine::data {

absl::StatusOr<std::optional<double>> UnigramEntropy(const IndexedDataset& dataset, const TokenScan& scan) {
  constexpr std::int64_t kMaxTokens = std::int64_t{1} << 24;
  if (scan.min < 0 || scan.max >= kMaxTokens) return std::optional<double>();
  std::vector<std::int64_t> counts(static_cast<std::size_t>(scan.max) + 1, 0);
  RETURN_IF_ERROR(dataset.CountTokens(0, dataset.sequences(), counts));
  return std::optional(EntropyNats<std::int64_t>(counts));
}

}  // namespace engine::data
