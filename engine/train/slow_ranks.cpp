#include "engine/train/slow_ranks.h"

#include <algorithm>

namespace engine::train {

std::vector<SlowRanks::Slow> SlowRanks::Add(const std::vector<double>& busy_ms) {
  if (busy_ms.size() < 2) return {};
  std::vector<double> sorted = busy_ms;
  const auto middle =
      sorted.begin() + static_cast<std::ptrdiff_t>((sorted.size() - 1) / 2);  // of two, the faster
  std::nth_element(sorted.begin(), middle, sorted.end());
  const double median = *middle;
  std::vector<bool>& newest = above_.emplace_back();
  for (const double busy : busy_ms) newest.push_back(busy > kFactor * median && busy > median + kLeastMs);
  if (above_.size() > kWindow) above_.pop_front();
  told_.resize(busy_ms.size(), false);
  std::vector<Slow> slow;
  for (std::size_t rank = 0; rank < busy_ms.size(); ++rank) {
    const auto times =
        std::count_if(above_.begin(), above_.end(), [&](const std::vector<bool>& of) { return of[rank]; });
    if (times == 0) told_[rank] = false;
    if (times < kOften || told_[rank]) continue;
    told_[rank] = true;
    slow.push_back({static_cast<std::int64_t>(rank), busy_ms[rank] / median});
  }
  return slow;
}

}  // namespace engine::train
