#include "engine/train/rerun.h"

#include <bit>
#include <cmath>
#include <utility>

#include "engine/train/outcome.h"

namespace engine::train {
namespace {

// Of numbers that are none, the bits say nothing.
bool IsSame(double a, double b) {
  return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b) ||
         (std::isnan(a) && std::isnan(b));
}

}  // namespace

absl::Status Rerun::Take(const IterationReport& report) {
  Numbers& numbers = trained_[report.iteration];
  if (numbers.times == 0) {
    numbers = {.loss = report.loss, .grad_norm = report.grad_norm};
  } else if (!IsSame(numbers.loss, report.loss) || !IsSame(numbers.grad_norm, report.grad_norm)) {
    const std::string text = fmt::format(
        "iteration {} gave loss {} and gradient norm {}, and when it was trained once more from the same "
        "checkpoint, loss {} and gradient norm {}: a machine computes or stores something wrong now and "
        "then{}",
        report.iteration, numbers.loss, numbers.grad_norm, report.loss, report.grad_norm,
        exchanges_.empty() ? "\n    hint: guard.hash_interval compares ranks' copies of weights as training "
                             "goes on, and guard.trace what they exchange: both name the rank"
                           : "");
    return WithVerdict(absl::InternalError(text), Verdict::kMachine);
  }
  ++numbers.times;
  while (static_cast<std::int64_t>(trained_.size()) > most_) trained_.erase(trained_.begin());
  return absl::OkStatus();
}

void Rerun::TakeTraces(std::int64_t iteration, std::vector<executor::IterationResult>* results) {
  exchanges_.resize(results->size(), ExchangeRecords(most_));
  for (std::size_t rank = 0; rank < results->size(); ++rank)
    exchanges_[rank].Take(iteration, std::exchange((*results)[rank].traced, {}));
}

bool Rerun::Confirms(std::int64_t iteration) const {
  const auto found = trained_.find(iteration);
  return found != trained_.end() && found->second.times > 1;
}

}  // namespace engine::train
