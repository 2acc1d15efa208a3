// The first half of a search: the layouts of a space that are worth compiling, by estimates (search/fold.h).
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <vector>

#include "engine/base/status.h"
#include "engine/compile/compile.h"
#include "engine/recipe/recipe.h"
#include "engine/search/search.h"

namespace engine::search {

struct Candidate {
  Layout layout;
  std::int64_t arena_bytes = 0;
  double iteration_s = 0;  // by the estimate
  double plan_s = 0;       // by the plan; 0: not compiled
};

// Whether a is better than b, both with these seconds.
bool Better(SearchOptions::Objective objective, const Candidate& a, double a_s, const Candidate& b,
            double b_s);

// By which share of its plan's seconds a layout's estimate is too slow at most; mostly it is right within
// half a percent. In a zero-bubble pipeline exchange of halves that ends a backward pass is partly hidden
// behind the weights pass that follows, which the times of single passes do not tell.
double MostTooSlow(const Layout& layout);
// And too fast.
inline constexpr double kTooFast = 0.15;

// Tells the user how far a search is. For all of its threads.
class Reporter {
 public:
  explicit Reporter(const SearchOptions& options) : options_(options) {}
  bool stopped() const { return options_.stopped && options_.stopped(); }
  void SetLayouts(std::int64_t layouts);  // that are looked at from now on
  void LookedAt(std::int64_t layouts);
  // `best`: of what is compiled, however it compares with estimates.
  void Compiled(std::int64_t plans, const Candidate& best);
  void Saw(const Candidate& candidate);

 private:
  void Report();  // with mutex_ held

  const SearchOptions& options_;
  std::mutex mutex_;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
  std::int64_t layouts_ = 0, looked_at_ = 0, compiled_ = 0;
  std::optional<Candidate> best_;
};

struct EstimatedLayouts {
  // Layouts that fit, best first: every one whose whole plan may turn out to be the best, and `wanted` at
  // least.
  std::vector<Candidate> candidates;
  std::int64_t layouts = 0, looked_at = 0, too_large = 0, slower = 0, estimated = 0, unlawful = 0, probes = 0;
  double seconds = 0;  // of all threads
};

// Compiles those candidates of a list, which is in the order of its estimates, that may be the best, and sets
// their plan_s; removes those that the compiler refuses. Returns the least seconds of a plan so far; 0: there
// is none.
using Confirm = std::function<absl::StatusOr<double>(std::vector<Candidate>* candidates)>;

// `limit`: bytes of an arena. `wanted`: as many of the best are needed, at least. `confirm`: called now and
// then with all candidates so far, and at the end; what it returns tells which estimates are too slow. What
// is found is the same for any number of threads.
absl::StatusOr<EstimatedLayouts> EstimateLayouts(const recipe::Recipe& recipe,
                                                 const compile::CompileOptions& compile,
                                                 const SearchSpace& space, const SearchOptions& options,
                                                 std::int64_t limit, size_t wanted, const Confirm& confirm,
                                                 Reporter* reporter);

}  // namespace engine::search
