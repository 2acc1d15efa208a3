// Search for the layout of a recipe: every lawful one is folded (train/fold.h), those that do not fit the
// device are left out, the best are compiled, verified and predicted as any other plan.
//
// Varied are dp, tp, pp, cp, sequence parallelism, chunks a stage, the schedule, the ZeRO stage, micro-batch
// and recomputation. Model, data, global batch and precision stay. No rule says which axis belongs where:
// links, shapes and memory decide.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/status.h"
#include "engine/plan/compile.h"
#include "engine/plan/predict.h"
#include "engine/recipe/recipe.h"

namespace engine::train {

// The keys that a search may change.
const std::vector<std::string>& SearchedKeys();

struct Layout {
  std::int64_t dp = 1, tp = 1, pp = 1, cp = 1;
  std::int64_t virtual_stages = 1;
  std::int64_t zero_stage = 0;
  std::int64_t micro_batch = 1;
  bool sequence_parallel = false;
  bool zero_bubble = false;
  std::string granularity = "none";
  std::vector<std::string> modules;  // of selective
  std::string schedule;              // as the recipe writes it, where it is fixed; empty: as zero_bubble says

  bool operator==(const Layout&) const = default;
  std::string ToString() const;  // "dp 4 tp 8 pp 2, sequence parallel, ZeRO-1, micro-batch 1, recompute full"
};

void SetLayout(const Layout& layout, recipe::Recipe* recipe);

struct SearchOptions {
  enum class Objective : std::uint8_t { kTime, kMemory } objective = Objective::kTime;
  std::int64_t world = 0;          // ranks; 0: the recipe's
  std::vector<std::string> fixed;  // of SearchedKeys(): these keep the recipe's values
  int threads = 1;
  size_t finalists = 12;  // that are compiled
  size_t shown = 8;
};

// A layout, compiled.
struct Found {
  Layout layout;
  std::int64_t arena_bytes = 0;  // of the stage with the largest
  plan::MemoryBreakdown memory;  // its
  double flops = 0;              // of an iteration, mean rank
  plan::Prediction time;
};

// What differs from the best in one choice.
struct Neighbour {
  std::string change;  // "tp 8 to 4, dp 4 to 8"
  Found found;
  std::string why;  // it loses
};

struct SearchResult {
  std::int64_t world = 0;
  std::int64_t layouts = 0;    // lawful ones, folded
  std::int64_t too_large = 0;  // of these, beyond the device's memory
  std::int64_t bounded = 0;    // more, beyond it by what all that differ in recomputation alone need
  std::int64_t unlawful = 0;   // the compiler knows no placement for them
  std::int64_t probes = 0;     // plans that folding took
  double seconds = 0;          // of computing time that folding took, all threads together
  std::vector<Found> best;     // best first; empty: none fits
  std::vector<Neighbour> neighbours;
  Found smallest;  // where none fits: the layout that needs least
};

// The recipe must be valid but for the size of its world.
absl::StatusOr<SearchResult> Search(const recipe::Recipe& recipe, const plan::CompileOptions& compile,
                                    const SearchOptions& options);

// As `engine search` prints it.
std::string ToText(const SearchResult& result, const recipe::Recipe& recipe);

// A recipe that extends `base` by what differs between `recipe`, which `base` alone resolves to, and
// `changed`.
std::string FoundRecipe(const recipe::Recipe& recipe, const recipe::Recipe& changed, const std::string& base);

}  // namespace engine::train
