#include "engine/cli/restarts.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "engine/checkpoint/store.h"

namespace engine::cli {

Restarts::Restarts(std::string checkpoints, std::int64_t most)
    : checkpoints_(std::move(checkpoints)), most_(most), newest_(Newest()) {}

std::optional<std::chrono::milliseconds> Restarts::Next() {
  if (most_ == 0) return std::nullopt;
  const std::int64_t newest = Newest();
  in_vain_ = newest > newest_ ? 1 : in_vain_ + 1;
  newest_ = newest;
  if (in_vain_ >= kMostInVain) {
    why_ = fmt::format("{} failures without a checkpoint between them", in_vain_);
  } else if (count_ == most_) {
    why_ = fmt::format("all {} restarts are used up", most_);
  }
  if (!why_.empty()) return std::nullopt;
  ++count_;
  constexpr std::chrono::milliseconds kFirst = std::chrono::seconds(1);
  constexpr std::chrono::milliseconds kLongest = std::chrono::minutes(1);
  return std::min(kLongest, kFirst * (1 << (in_vain_ - 1)));
}

std::int64_t Restarts::Newest() const {
  const absl::StatusOr<std::vector<std::int64_t>> iterations = checkpoint::ListIterations(checkpoints_);
  return iterations.ok() && !iterations->empty() ? iterations->back() : -1;
}

}  // namespace engine::cli
