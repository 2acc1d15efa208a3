#include "engine/train/rerun.h"

#include <bit>
#include <cmath>

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
        "then\n"
        "    hint: guard.hash_interval compares ranks' copies of weights as training goes on, and names the "
        "rank",
        report.iteration, numbers.loss, numbers.grad_norm, report.loss, report.grad_norm);
    return WithVerdict(absl::InternalError(text), Verdict::kMachine);
  }
  ++numbers.times;
  while (static_cast<std::int64_t>(trained_.size()) > most_) trained_.erase(trained_.begin());
  return absl::OkStatus();
}

bool Rerun::Confirms(std::int64_t iteration) const {
  const auto found = trained_.find(iteration);
  return found != trained_.end() && found->second.times > 1;
}

}  // namespace engine::train
