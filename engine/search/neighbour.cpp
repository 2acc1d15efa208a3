#include "engine/search/neighbour.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "engine/base/units.h"

namespace engine::search {
namespace {

// Means over the stages; they add up to the iteration.
struct Parts {
  double compute_s = 0, exposed_s = 0, bubble_s = 0, update_s = 0;
};
Parts PartsOf(const predict::Prediction& time) {
  Parts parts;
  const double stages = static_cast<double>(time.stages.size());
  for (const predict::StageTime& stage : time.stages) {
    parts.compute_s += stage.compute_s / stages;
    parts.exposed_s += stage.exposed_s / stages;
    parts.bubble_s += stage.bubble_s / stages;
    parts.update_s += stage.update_s / stages;
  }
  return parts;
}

std::string SignedSeconds(double seconds) {
  return seconds < 1 && seconds > -1 ? fmt::format("{:+.1f} ms", 1e3 * seconds)
                                     : fmt::format("{:+.2f} s", seconds);
}

// What makes up a difference, the largest shares first.
std::string Shares(std::vector<std::pair<double, std::string>> shares, double least) {
  std::sort(shares.begin(), shares.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<std::string> texts;
  for (const auto& [share, text] : shares) {
    if (share >= least) texts.push_back(text);
  }
  return fmt::format("{}", fmt::join(texts, ", "));
}

std::string WhyTooLarge(const Found& best, const Found& found, std::int64_t limit) {
  const auto grew = [&](std::int64_t plan::MemoryBreakdown::*item, const char* name) {
    const std::int64_t more = found.memory.*item - best.memory.*item;
    return std::pair(static_cast<double>(more),
                     fmt::format("{} +{}", name, FormatBytes(std::max<std::int64_t>(0, more))));
  };
  const std::int64_t over = found.arena_bytes - limit;
  const std::string shares = Shares({grew(&plan::MemoryBreakdown::parameters, "parameters"),
                                     grew(&plan::MemoryBreakdown::gradients, "gradients"),
                                     grew(&plan::MemoryBreakdown::optimizer, "optimizer"),
                                     grew(&plan::MemoryBreakdown::activations, "activations"),
                                     grew(&plan::MemoryBreakdown::transients, "transients"),
                                     grew(&plan::MemoryBreakdown::control, "staged inputs")},
                                    0.2 * static_cast<double>(found.arena_bytes - best.arena_bytes));
  return fmt::format("over the memory by {}: {}", FormatBytes(over), shares);
}

std::string WhySlower(const Found& best, const Found& found) {
  const Parts a = PartsOf(best.time);
  const Parts b = PartsOf(found.time);
  const double slower = found.time.iteration_s - best.time.iteration_s;
  // Computation differs by more FLOPs at the best layout's pace, and by another pace.
  const double pace = best.flops > 0 ? a.compute_s / best.flops : 0;
  const double more_s = (found.flops - best.flops) * pace;
  const double pace_s = b.compute_s - a.compute_s - more_s;
  const auto part = [](double seconds, std::string text) {
    return std::pair(seconds, fmt::format("{} {}", text, SignedSeconds(seconds)));
  };
  const bool again = found.layout.RecomputeText() != best.layout.RecomputeText();
  return Shares({part(more_s, fmt::format("{:+.0f} % FLOPs",
                                          best.flops > 0 ? 100 * (found.flops / best.flops - 1) : 0)),
                 part(pace_s, again ? "norms and activations again" : "less efficient kernels"),
                 part(b.exposed_s - a.exposed_s, "exposed exchange"), part(b.bubble_s - a.bubble_s, "bubble"),
                 part(b.update_s - a.update_s, "update")},
                0.2 * slower);
}

}  // namespace

std::string WhyNot(const Found& best, const Found& found, std::int64_t limit,
                   SearchOptions::Objective objective) {
  if (limit > 0 && found.arena_bytes > limit) return WhyTooLarge(best, found, limit);
  if (objective == SearchOptions::Objective::kMemory) {
    const std::int64_t more = found.arena_bytes - best.arena_bytes;
    return more > 0 ? fmt::format("{} more", FormatBytes(more)) : "the same memory, slower";
  }
  const double slower = found.time.iteration_s / best.time.iteration_s - 1;
  if (slower < 5e-4) return "as fast";
  return fmt::format("{:.1f} % slower: {}", 100 * slower, WhySlower(best, found));
}

std::string MoveText(const Layout& from, const Layout& to) {
  std::vector<std::string> changes;
  const auto number = [&](const char* name, std::int64_t Layout::*field) {
    if (from.*field != to.*field) changes.push_back(fmt::format("{} {} to {}", name, from.*field, to.*field));
  };
  number("tp", &Layout::tp);
  number("pp", &Layout::pp);
  number("cp", &Layout::cp);
  number("ep", &Layout::ep);
  number("dp", &Layout::dp);
  number("chunks a stage", &Layout::virtual_stages);
  number("zero_stage", &Layout::zero_stage);
  number("micro_batch", &Layout::micro_batch);
  if (from.sequence_parallel != to.sequence_parallel)
    changes.push_back(to.sequence_parallel ? "with sequence parallelism" : "without sequence parallelism");
  if (from.expert_tp != to.expert_tp)
    changes.push_back(to.expert_tp == 1 ? "whole experts on ranks of tp" : "experts split by tp");
  if (from.layers_per_stage != to.layers_per_stage)
    changes.push_back(to.layers_per_stage.empty() ? "layers balanced" : "layers_per_stage as in the recipe");
  if (from.zero_bubble != to.zero_bubble) changes.push_back(to.zero_bubble ? "zero bubble" : "1f1b");
  if (from.RecomputeText() != to.RecomputeText())
    changes.push_back(fmt::format("recompute {} to {}", from.RecomputeText(), to.RecomputeText()));
  return fmt::format("{}", fmt::join(changes, ", "));
}

bool IsNeighbour(const Layout& from, const Layout& to) {
  constexpr std::array kAxes = {&Layout::dp, &Layout::tp, &Layout::pp, &Layout::cp, &Layout::ep};
  int moved = 0;
  for (std::int64_t Layout::*axis : kAxes) {
    const std::int64_t a = std::min(from.*axis, to.*axis);
    const std::int64_t b = std::max(from.*axis, to.*axis);
    if (a == b) continue;
    if (b % a != 0 || b / a > 3) return false;
    ++moved;
  }
  int others = 0;
  for (std::int64_t Layout::*field : {&Layout::virtual_stages, &Layout::zero_stage, &Layout::micro_batch})
    others += from.*field != to.*field ? 1 : 0;
  others += from.sequence_parallel != to.sequence_parallel ? 1 : 0;
  others += from.expert_tp != to.expert_tp ? 1 : 0;
  others += from.zero_bubble != to.zero_bubble ? 1 : 0;
  others += from.layers_per_stage != to.layers_per_stage ? 1 : 0;
  others += from.RecomputeText() != to.RecomputeText() ? 1 : 0;
  return (moved == 2 && others == 0) || (moved == 0 && others == 1);
}

}  // namespace engine::search
