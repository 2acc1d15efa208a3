#include "engine/train/guard.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace engine::train {
namespace {

double MeanOf(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// Of the whole window, not of a sample of something larger.
double DeviationOf(const std::vector<double>& values, double mean) {
  double squares = 0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  return std::sqrt(squares / static_cast<double>(values.size()));
}

// Of an even number of values, the mean of the middle two.
double MedianOf(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

// Why the iteration is a spike; empty where it is none.
std::string SpikeOf(const recipe::Guard& guard, const IterationReport& report,
                    const checkpoint::GuardState& state) {
  if (static_cast<std::int64_t>(state.losses.size()) < guard.spike_window) return "";
  if (guard.spike_loss > 0) {
    const double mean = MeanOf(state.losses);
    const double deviation = DeviationOf(state.losses, mean);
    if (report.loss > mean + guard.spike_loss * deviation) {
      return fmt::format(
          "loss {:.6} is more than {} standard deviations of {:.6} above {:.6}, the mean of {} iterations",
          report.loss, guard.spike_loss, deviation, mean, state.losses.size());
    }
  }
  if (guard.spike_grad_norm > 0) {
    const double median = MedianOf(state.grad_norms);
    if (report.grad_norm > guard.spike_grad_norm * median) {
      return fmt::format("gradient norm {:.6} is more than {} times {:.6}, the median of {} iterations",
                         report.grad_norm, guard.spike_grad_norm, median, state.grad_norms.size());
    }
  }
  return "";
}

void Remember(std::int64_t window, const IterationReport& report, checkpoint::GuardState* state) {
  const auto add = [&](std::vector<double>& values, double value) {
    values.push_back(value);
    const auto too_many = static_cast<std::ptrdiff_t>(values.size()) - static_cast<std::ptrdiff_t>(window);
    if (too_many > 0) values.erase(values.begin(), values.begin() + too_many);
  };
  add(state->losses, report.loss);
  add(state->grad_norms, report.grad_norm);
}

BadIteration::Act ActOf(const std::string& policy) {
  if (policy == "stop") return BadIteration::Act::kStop;
  return policy == "skip" ? BadIteration::Act::kSkip : BadIteration::Act::kRewind;
}

}  // namespace

std::int64_t BadIteration::LatestCheckpoint(const recipe::Guard& guard) const {
  const std::int64_t before = act == Act::kRewind ? std::max<std::int64_t>(1, guard.rewind_iterations) : 1;
  return std::max<std::int64_t>(0, iteration - before);
}

recipe::IterationRange BadIteration::LeftOut(const recipe::Guard& guard, std::int64_t checkpoint) const {
  if (act == Act::kSkip) return {iteration, iteration};
  return {checkpoint + 1, iteration + guard.skip_batches};
}

std::optional<BadIteration> Judge(const recipe::Guard& guard, const IterationReport& report,
                                  checkpoint::GuardState* state) {
  state->skips = report.skipped ? state->skips + 1 : 0;
  const bool nan = report.nan && !report.harmless;
  if (nan && (guard.on_nonfinite != "stop" || guard.rerun))
    return BadIteration{report.iteration, ActOf(guard.on_nonfinite), NumbersText(report)};
  if (report.nan || report.skipped || !guard.judges_spikes()) return std::nullopt;
  if (const std::string why = SpikeOf(guard, report, *state); !why.empty()) {
    return BadIteration{report.iteration, ActOf(guard.on_spike),
                        fmt::format("iteration {}: {}", report.iteration, why)};
  }
  Remember(guard.spike_window, report, state);
  return std::nullopt;
}

absl::Status EndOf(const recipe::Guard& guard, const IterationReport& report,
                   const checkpoint::GuardState& state) {
  if (report.nan && !report.harmless) return DataLoss("{}, {}", NumbersText(report), kSpoilt);
  if (guard.max_skips == 0 || state.skips < guard.max_skips) return absl::OkStatus();
  return DataLoss(
      "iteration {}: its update was skipped, and so were those of all of the last {} iterations, as "
      "gradients "
      "were not "
      "finite; guard.max_skips allows no more, for nothing is trained\n"
      "    hint: `engine run --check` names the first instruction that makes a number that is not finite",
      report.iteration, state.skips);
}

std::string NumbersText(const IterationReport& report) {
  return fmt::format("iteration {}: loss {} and gradient norm {}", report.iteration, report.loss,
                     report.grad_norm);
}

std::vector<recipe::IterationRange> LeftOutBy(const recipe::Guard& guard) {
  std::vector<recipe::IterationRange> ranges;
  for (const std::string& text : guard.skip_iterations) {
    // The recipe's rules have refused what is no range.
    if (const auto range = recipe::ParseIterationRange(text)) ranges.push_back(*range);
  }
  return ranges;
}

}  // namespace engine::train
