#include "engine/launch/stop_agreement.h"

#include <algorithm>
#include <utility>

namespace engine::launch {

bool StopAgreement::Ask() { return !std::exchange(asked_, true); }

std::optional<std::int64_t> StopAgreement::TakeAnswer(std::int64_t rank, std::int64_t begun) {
  answers_[static_cast<std::size_t>(rank)] = begun;
  std::int64_t last = -1;
  for (const std::optional<std::int64_t>& answer : answers_) {
    if (!answer) return std::nullopt;
    last = std::max(last, *answer);
  }
  return last;
}

}  // namespace engine::launch
