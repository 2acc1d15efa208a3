// Search for the layout of a recipe: every lawful one is estimated (search/fold.h) or shown to be larger than
// the device or slower than others; the best are compiled, verified and predicted as any other plan.
//
// Varied are dp, tp, pp, cp, sequence parallelism, chunks a stage, the schedule, the ZeRO stage, micro-batch
// and recomputation. Model, data, global batch and precision stay. No rule says which axis belongs where:
// links, shapes and memory decide.
//
// Estimates rank, full plans decide: plans are compiled in the order of the estimates, until no estimate that
// is left can belong to a plan that is faster than the best so far.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/base/status.h"
#include "engine/compile/compile.h"
#include "engine/predict/predict.h"
#include "engine/recipe/recipe.h"
#include "engine/search/space.h"

namespace engine::search {

// A layout, compiled.
struct Found {
  Layout layout;
  std::int64_t arena_bytes = 0;  // of the stage with the largest
  plan::MemoryBreakdown memory;  // its
  double flops = 0;              // of an iteration, mean rank
  predict::Prediction time;
};

struct SearchProgress {
  std::int64_t looked_at = 0, layouts = 0;  // so many of so many
  std::int64_t compiled = 0;                // plans, behind the estimates
  // The best so far: estimated, or once plans are compiled, predicted. Null: none fits yet.
  const Layout* best = nullptr;
  double best_s = 0;
  std::int64_t best_bytes = 0;
};

struct SearchOptions {
  enum class Objective : std::uint8_t { kTime, kMemory } objective = Objective::kTime;
  std::int64_t world = 0;          // ranks; 0: the recipe's
  std::vector<std::string> fixed;  // of SearchedKeys(): these keep the recipe's values
  // The share of a device's memory that may be taken, what lies outside of the arena included. Above 0.95
  // `engine check` warns (W202).
  double memory_share = 0.95;
  int threads = 1;
  size_t finalists = 12;  // that are compiled at least
  size_t shown = 8;
  // Called about each second, by one thread at a time. Null: nothing is reported.
  std::function<void(const SearchProgress&)> progress = {};
  // Asked often, by all threads: whether to end with what has been found. Null: never.
  std::function<bool()> stopped = {};
};

// What differs from the best in one choice.
struct Neighbour {
  std::string change;  // "tp 8 to 4, dp 4 to 8"
  Found found;
  std::string why;  // it is not the best
};

struct SearchResult {
  std::int64_t world = 0;
  std::int64_t limit_bytes = 0;  // of an arena; 0: not limited
  // Layouts of the space, of which `looked_at` were looked at: less than all where the search was stopped.
  // Each of these is too large, too slow, unlawful or a candidate.
  std::int64_t layouts = 0, looked_at = 0;
  std::int64_t too_large = 0;
  // Fit, or may fit, but others are faster: by the estimate, by one of the same layout that repeats more, or
  // by one that repeats less and fits.
  std::int64_t slower = 0;
  std::int64_t estimated = 0;  // of all, folded: the others follow from these
  std::int64_t unlawful = 0;   // refused by the compiler
  std::int64_t probes = 0;     // plans of a few blocks that estimates took
  std::int64_t compiled = 0;   // whole plans that were compared
  bool all_compared = true;    // no estimate that is left could win; false: there are too many like the best
  bool interrupted = false;
  double seconds = 0;       // of computing time that estimates took, all threads together
  std::vector<Found> best;  // best first; empty: none fits, or none was found before the search was stopped
  std::vector<Neighbour> neighbours;
  Found smallest;  // where none fits: the layout that needs least
};

// The recipe must be valid but for the size of its world.
absl::StatusOr<SearchResult> Search(const recipe::Recipe& recipe, const compile::CompileOptions& compile,
                                    const SearchOptions& options);

}  // namespace engine::search
