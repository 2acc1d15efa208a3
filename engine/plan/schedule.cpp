#include "engine/plan/schedule.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "engine/base/status.h"

namespace engine::plan {
namespace {

// `warmup` forwards, then forward and backward in turns, then the backwards that are left.
std::vector<Turn> Alternate(const std::vector<Turn>& forwards, const std::vector<Turn>& backwards,
                            std::int64_t warmup) {
  std::vector<Turn> turns;
  const size_t total = forwards.size();
  size_t f = 0;
  size_t b = 0;
  while (f < std::min(total, static_cast<size_t>(warmup))) turns.push_back(forwards[f++]);
  while (f < total) {
    turns.push_back(forwards[f++]);
    turns.push_back(backwards[b++]);
  }
  while (b < total) turns.push_back(backwards[b++]);
  return turns;
}

// Groups of `stages` microbatches, each group chunk by chunk: the arrival order of a ring of stages.
std::vector<Turn> GroupOrder(std::int64_t stages, std::int64_t chunks_per_stage, std::int64_t stage,
                             std::int64_t microbatches, Pass pass) {
  std::vector<Turn> turns;
  for (std::int64_t first = 0; first < microbatches; first += stages) {
    for (std::int64_t v = 0; v < chunks_per_stage; ++v) {
      const std::int64_t local = pass == Pass::kBackward ? chunks_per_stage - 1 - v : v;
      for (std::int64_t m = first; m < std::min(first + stages, microbatches); ++m) {
        turns.push_back(
            {pass, static_cast<std::int32_t>(local * stages + stage), static_cast<std::int32_t>(m)});
      }
    }
  }
  return turns;
}

// Whether parts of at most `most` each are enough.
bool Suffices(double most, const std::vector<double>& costs, std::int64_t parts, double last_extra) {
  std::int64_t used = 1;  // the last part, filled from the end
  double filled = last_extra;
  for (size_t i = costs.size(); i-- > 0;) {
    if (filled + costs[i] > most) {
      const bool last_is_empty = used == 1 && i + 1 == costs.size();
      if (last_is_empty || costs[i] > most || ++used > parts) return false;
      filled = 0;
    }
    filled += costs[i];
  }
  return true;
}

// The cost of the dearest part of the best cut, from above, within a relative 1e-9.
double CheapestMost(const std::vector<double>& costs, std::int64_t parts, double last_extra) {
  double low = 0;
  double high = last_extra;
  for (double cost : costs) high += cost;
  while (high - low > 1e-10 * high) {
    const double middle = 0.5 * (low + high);
    (Suffices(middle, costs, parts, last_extra) ? high : low) = middle;
  }
  return high * (1 + 1e-9);
}

}  // namespace

std::vector<Turn> OneForwardOneBackward(std::int64_t stages, std::int64_t stage, std::int64_t microbatches) {
  std::vector<Turn> forwards;
  std::vector<Turn> backwards;
  for (std::int64_t m = 0; m < microbatches; ++m) {
    forwards.push_back({Pass::kForward, static_cast<std::int32_t>(stage), static_cast<std::int32_t>(m)});
    backwards.push_back({Pass::kBackward, static_cast<std::int32_t>(stage), static_cast<std::int32_t>(m)});
  }
  return Alternate(forwards, backwards, std::min(stages - stage - 1, microbatches));
}

std::vector<Turn> ZeroBubble(std::int64_t stages, std::int64_t stage, std::int64_t microbatches) {
  std::vector<Turn> turns;
  std::int64_t weights = 0;
  const auto add_weights = [&] {
    turns.push_back({Pass::kWeights, static_cast<std::int32_t>(stage), static_cast<std::int32_t>(weights++)});
  };
  for (const Turn& turn : OneForwardOneBackward(stages, stage, microbatches)) {
    turns.push_back(turn);
    if (turn.pass == Pass::kBackward && turn.microbatch >= stage) add_weights();
  }
  while (weights < microbatches) add_weights();
  return turns;
}

std::vector<Turn> InterleavedOneForwardOneBackward(std::int64_t stages, std::int64_t chunks_per_stage,
                                                   std::int64_t stage, std::int64_t microbatches) {
  ENGINE_CHECK(microbatches % stages == 0, "{} microbatches over {} stages", microbatches, stages);
  const std::int64_t warmup = 2 * (stages - stage - 1) + (chunks_per_stage - 1) * stages;
  return Alternate(GroupOrder(stages, chunks_per_stage, stage, microbatches, Pass::kForward),
                   GroupOrder(stages, chunks_per_stage, stage, microbatches, Pass::kBackward),
                   std::min(warmup, microbatches * chunks_per_stage));
}

std::vector<Turn> ForwardOnly(std::int64_t stages, std::int64_t chunks_per_stage, std::int64_t stage,
                              std::int64_t microbatches) {
  return GroupOrder(stages, chunks_per_stage, stage, microbatches, Pass::kForward);
}

std::vector<std::int64_t> BalancedCut(const std::vector<double>& costs, std::int64_t parts,
                                      double last_extra) {
  const std::int64_t n = static_cast<std::int64_t>(costs.size());
  ENGINE_CHECK(parts >= 1 && parts <= n, "{} items into {} parts", n, parts);
  std::vector<double> prefix(costs.size() + 1, 0.0);
  for (size_t i = 0; i < costs.size(); ++i) prefix[i + 1] = prefix[i] + costs[i];
  using Quality = std::pair<double, double>;  // dearest part, sum of squares
  const Quality worst = {std::numeric_limits<double>::infinity(), 0.0};
  const double limit = CheapestMost(costs, parts, last_extra);
  // best[i]: the first i items in p parts; cut[p][i]: how many of them are in the p − 1 parts before.
  std::vector<Quality> best(costs.size() + 1, worst);
  std::vector<std::vector<std::int32_t>> cut(static_cast<size_t>(parts) + 1,
                                             std::vector<std::int32_t>(costs.size() + 1, 0));
  best[0] = {0.0, 0.0};
  for (std::int64_t p = 1; p <= parts; ++p) {
    std::vector<Quality> next(costs.size() + 1, worst);
    for (std::int64_t i = p; i <= n - (parts - p); ++i) {
      for (std::int64_t j = i - 1; j >= p - 1; --j) {
        const double cost =
            prefix[static_cast<size_t>(i)] - prefix[static_cast<size_t>(j)] + (p == parts ? last_extra : 0.0);
        if (cost > limit) break;
        const Quality& before = best[static_cast<size_t>(j)];
        const Quality quality = {std::max(before.first, cost), before.second + cost * cost};
        if (quality < next[static_cast<size_t>(i)]) {
          next[static_cast<size_t>(i)] = quality;
          cut[static_cast<size_t>(p)][static_cast<size_t>(i)] = static_cast<std::int32_t>(j);
        }
      }
    }
    best = std::move(next);
  }
  std::vector<std::int64_t> counts(static_cast<size_t>(parts));
  std::int64_t end = n;
  for (std::int64_t p = parts; p >= 1; --p) {
    const std::int64_t begin = cut[static_cast<size_t>(p)][static_cast<size_t>(end)];
    counts[static_cast<size_t>(p - 1)] = end - begin;
    end = begin;
  }
  return counts;
}

}  // namespace engine::plan
