#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/shown.h"
#include "engine/recipe/iteration_range.h"
#include "engine/recipe/rules.h"

namespace engine::recipe {
namespace {

void GoingBackHasCheckpoints(const RuleContext& c) {
  if (!c.recipe.guard.rewinds() || c.recipe.checkpoint.interval > 0) return;
  c.Error({"guard.on_spike", "guard.on_nonfinite", "guard.rerun", "checkpoint.interval"},
          "the run is to go back to a checkpoint, and none is written before its end",
          "checkpoint.interval = some hundreds of iterations");
}

// The oldest checkpoint that is kept is at least (keep − 1) · interval iterations old when the next one is due.
void KeptCheckpointsReachBack(const RuleContext& c) {
  const Checkpoint& checkpoint = c.recipe.checkpoint;
  const std::int64_t back = c.recipe.guard.rewind_iterations;
  if (!c.recipe.guard.rewinds() || back == 0 || checkpoint.keep == 0 || checkpoint.interval == 0) return;
  const std::int64_t needed = 1 + (back + checkpoint.interval - 1) / checkpoint.interval;
  if (checkpoint.keep >= needed) return;
  c.Error({"guard.rewind_iterations", "checkpoint.keep", "checkpoint.interval"},
          fmt::format("rewind_iterations {} is further back than the {} of every {} iterations that are kept",
                      back, Counted(checkpoint.keep, "checkpoint"), checkpoint.interval),
          fmt::format("checkpoint.keep = {}", needed));
}

// What is remembered is written beside each copy of the state in memory, and told to every rank.
void WindowsBesideCopiesAreShort(const RuleContext& c) {
  constexpr std::int64_t kMost = 10'000;
  const Guard& guard = c.recipe.guard;
  if (!c.recipe.checkpoint.memory || !guard.judges_spikes() || guard.spike_window <= kMost) return;
  c.Error({"guard.spike_window", "checkpoint.memory", "guard.on_spike"},
          fmt::format("spike_window {} is too long to be kept beside copies of the state in memory",
                      guard.spike_window),
          fmt::format("guard.spike_window = {}; or checkpoint.memory = false", kMost));
}

void SpikesAreJudgedBySomething(const RuleContext& c) {
  const Guard& guard = c.recipe.guard;
  if (!guard.judges_spikes() || guard.spike_loss > 0 || guard.spike_grad_norm > 0) return;
  c.Error({"guard.on_spike", "guard.spike_loss", "guard.spike_grad_norm"},
          "on_spike is to act on spikes, and neither losses nor norms of gradients are judged",
          "guard.spike_loss = 6, or guard.spike_grad_norm = 10");
}

void SkippedIterationsAreRanges(const RuleContext& c) {
  for (const std::string& text : c.recipe.guard.skip_iterations) {
    if (ParseIterationRange(text)) continue;
    c.Error({"guard.skip_iterations"}, fmt::format("\"{}\" names no iterations", Shown(text)),
            "\"350\" for one, \"101-120\" for those from one to another; the first is 1");
  }
}

void SomeIterationIsTrained(const RuleContext& c) {
  std::vector<IterationRange> ranges;
  for (const std::string& text : c.recipe.guard.skip_iterations) {
    if (const auto range = ParseIterationRange(text)) ranges.push_back(*range);
  }
  std::sort(ranges.begin(), ranges.end(),
            [](const IterationRange& a, const IterationRange& b) { return a.first < b.first; });
  std::int64_t last = 0;  // up to that one all are left out
  for (const IterationRange& range : ranges) {
    if (range.first <= last + 1) last = std::max(last, std::min(range.last, c.recipe.iterations()));
  }
  if (ranges.empty() || last < c.recipe.iterations()) return;
  c.Error({"guard.skip_iterations", "training.iterations"},
          fmt::format("all {} iterations are left out, so nothing is trained", c.recipe.iterations()));
}

// Other bits would be nobody's fault.
void RerunsRepeatTheirBits(const RuleContext& c) {
  if (!c.recipe.guard.rerun || c.recipe.precision.deterministic || c.recipe.cluster.device == "cpu") return;
  c.Error({"guard.rerun", "precision.deterministic"},
          "rerun compares the bits of two runs of an iteration, which kernels of GPUs repeat only where they "
          "are asked to",
          "precision.deterministic = true");
}

void TracesAreCompared(const RuleContext& c) {
  if (!c.recipe.guard.trace) return;
  if (!c.recipe.guard.rerun) {
    c.Error({"guard.trace", "guard.rerun"},
            "hashes of what ranks exchange are compared where an iteration is trained once more",
            "guard.rerun = true");
  }
}

}  // namespace

std::vector<Rule> GuardRules() {
  return {
      {{"guard.on_nonfinite", "guard.on_spike", "guard.rerun", "checkpoint.interval"},
       GoingBackHasCheckpoints},
      {{"guard.rerun", "precision.deterministic", "cluster.device"}, RerunsRepeatTheirBits},
      {{"guard.trace", "guard.rerun"}, TracesAreCompared},
      {{"guard.on_nonfinite", "guard.on_spike", "guard.rerun", "guard.rewind_iterations", "checkpoint"},
       KeptCheckpointsReachBack},
      {{"guard.on_spike", "guard.spike_window", "checkpoint.memory"}, WindowsBesideCopiesAreShort},
      {{"guard.on_spike", "guard.spike_loss", "guard.spike_grad_norm"}, SpikesAreJudgedBySomething},
      {{"guard.skip_iterations"}, SkippedIterationsAreRanges},
      {{"guard.skip_iterations", "training"}, SomeIterationIsTrained},
  };
}

}  // namespace engine::recipe
