#include "engine/search/estimate_layouts.h"

#include <algorithm>
#include <ctime>
#include <limits>
#include <memory>
#include <utility>

#include "engine/base/parallel.h"
#include "engine/model/layers.h"
#include "engine/search/fold.h"
#include "engine/search/whole_plans.h"

namespace engine::search {
namespace {

using recipe::Recipe;
using Objective = SearchOptions::Objective;

// Seconds of computing time of this thread.
double ThreadSeconds() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// What a layout must not exceed to be worth compiling.
class Bar {
 public:
  Bar(Objective objective, std::int64_t limit, size_t wanted)
      : objective_(objective), limit_(limit), wanted_(std::max<size_t>(1, wanted)) {}

  // Seconds beyond which an estimate is neither one of the `wanted` best nor that of the fastest plan.
  double seconds(const Layout& layout) const {
    if (objective_ == Objective::kMemory || best_.size() < wanted_)
      return std::numeric_limits<double>::infinity();
    const double fastest = std::min(plan_s_, best_.front() / (1 - kTooFast));
    return std::max(best_.back(), fastest * (1 + MostTooSlow(layout)));
  }
  std::int64_t bytes() const {
    if (objective_ == Objective::kTime || best_.size() < wanted_) return limit_;
    return std::min(limit_, static_cast<std::int64_t>(best_.back()));
  }
  void Add(const Candidate& candidate) {
    const double value =
        objective_ == Objective::kTime ? candidate.iteration_s : static_cast<double>(candidate.arena_bytes);
    best_.insert(std::upper_bound(best_.begin(), best_.end(), value), value);
    if (best_.size() > wanted_) best_.pop_back();
  }
  // The least seconds of a plan; 0: none is known.
  void SetPlan(double seconds) { plan_s_ = seconds == 0 ? kUnknown : seconds; }

 private:
  static constexpr double kUnknown = std::numeric_limits<double>::infinity();
  double plan_s_ = kUnknown;
  Objective objective_;
  std::int64_t limit_;
  size_t wanted_;
  std::vector<double> best_;  // seconds or bytes of the best, in order
};

std::unique_ptr<Estimator> EstimatorOf(const Recipe& recipe, const compile::CompileOptions& compile) {
  if (model::HasEqualLayers(recipe)) return std::make_unique<Folder>(compile);
  compile::CompileOptions options = compile;
  options.evaluation = true;  // it counts for the arena
  return std::make_unique<WholePlans>(std::move(options));
}

// Estimates the layouts of one group.
class GroupEstimator {
 public:
  GroupEstimator(const Recipe& recipe, const compile::CompileOptions& compile, const SearchSpace& space,
                 Objective objective, std::int64_t limit, Bar bar, Reporter* reporter)
      : recipe_(recipe),
        estimator_(EstimatorOf(recipe, compile)),
        space_(space),
        objective_(objective),
        limit_(limit),
        bar_(std::move(bar)),
        reporter_(reporter) {}

  EstimatedLayouts Run(const SearchSpace::Group& group) {
    const double begin = ThreadSeconds();
    for (const Layout& layout : space_.Layouts(group)) {
      if (reporter_->stopped()) break;
      LookAt(layout);
    }
    found_.probes = estimator_->probes();
    found_.seconds = ThreadSeconds() - begin;
    return std::move(found_);
  }

 private:
  // A layout with all ways to recompute. Where one is a candidate, or too slow, those that repeat more are
  // slower still.
  void LookAt(Layout layout) {
    const std::vector<Recomputation> ways = space_.Recomputations(layout);
    const std::int64_t count = static_cast<std::int64_t>(ways.size());
    found_.looked_at += count;
    reporter_->LookedAt(count);
    layout.granularity = ways.front().granularity;  // which takes least time
    layout.modules = ways.front().modules;
    SetLayout(layout, &recipe_);
    const absl::StatusOr<std::int64_t> least = estimator_->LeastBytes(recipe_);
    if (least.ok() && *least > bar_.bytes()) {
      (*least > limit_ ? found_.too_large : found_.slower) += count;
      return;
    }
    if (estimator_->LeastSeconds(recipe_) > bar_.seconds(layout)) {
      found_.slower += count;
      return;
    }
    std::vector<unsigned> settled;
    for (const Recomputation& way : ways) {
      const bool slower = std::any_of(settled.begin(), settled.end(),
                                      [&](unsigned repeats) { return (repeats & way.repeats) == repeats; });
      if (slower) {
        ++found_.slower;
        continue;
      }
      layout.granularity = way.granularity;
      layout.modules = way.modules;
      if (Consider(layout) && objective_ == Objective::kTime) settled.push_back(way.repeats);
    }
  }

  // Whether it is a candidate, or too slow to be one.
  bool Consider(const Layout& layout) {
    SetLayout(layout, &recipe_);
    const absl::StatusOr<Estimate> estimate = estimator_->Fold(recipe_, bar_.seconds(layout));
    if (!estimate.ok()) {
      ++found_.unlawful;
      return false;
    }
    ++found_.estimated;
    if (estimate->iteration_s > bar_.seconds(layout)) {
      ++found_.slower;
      return true;
    }
    if (estimate->arena_bytes > bar_.bytes()) {
      ++(estimate->arena_bytes > limit_ ? found_.too_large : found_.slower);
      return false;
    }
    found_.candidates.push_back({layout, estimate->arena_bytes, estimate->iteration_s});
    bar_.Add(found_.candidates.back());
    reporter_->Saw(found_.candidates.back());
    return true;
  }

  Recipe recipe_;
  std::unique_ptr<Estimator> estimator_;
  const SearchSpace& space_;
  const Objective objective_;
  const std::int64_t limit_;  // bytes of an arena
  Bar bar_;
  Reporter* reporter_;
  EstimatedLayouts found_;
};

void Append(EstimatedLayouts part, EstimatedLayouts* all) {
  for (std::int64_t EstimatedLayouts::*count :
       {&EstimatedLayouts::looked_at, &EstimatedLayouts::too_large, &EstimatedLayouts::slower,
        &EstimatedLayouts::estimated, &EstimatedLayouts::unlawful, &EstimatedLayouts::probes}) {
    all->*count += part.*count;
  }
  all->seconds += part.seconds;
  std::move(part.candidates.begin(), part.candidates.end(), std::back_inserter(all->candidates));
}

// Candidates that were good enough when they were found, but are not beside all others.
void DropBeaten(const Bar& bar, EstimatedLayouts* all) {
  const size_t before = all->candidates.size();
  std::erase_if(all->candidates, [&](const Candidate& candidate) {
    return candidate.iteration_s > bar.seconds(candidate.layout) || candidate.arena_bytes > bar.bytes();
  });
  all->slower += static_cast<std::int64_t>(before - all->candidates.size());
}

}  // namespace

double MostTooSlow(const Layout& layout) {
  return layout.zero_bubble && layout.tp * layout.cp > 1 ? 0.13 : 0.03;
}

bool Better(Objective objective, const Candidate& a, double a_s, const Candidate& b, double b_s) {
  const auto key = [&](const Candidate& c, double seconds) {
    const double bytes = static_cast<double>(c.arena_bytes);
    return objective == Objective::kTime ? std::pair(seconds, bytes) : std::pair(bytes, seconds);
  };
  return key(a, a_s) < key(b, b_s);
}

void Reporter::SetLayouts(std::int64_t layouts) {
  const std::lock_guard lock(mutex_);
  layouts_ = layouts;
  looked_at_ = 0;
}

void Reporter::LookedAt(std::int64_t layouts) {
  const std::lock_guard lock(mutex_);
  looked_at_ += layouts;
  Report();
}

void Reporter::Compiled(std::int64_t plans, const Candidate& best) {
  const std::lock_guard lock(mutex_);
  compiled_ = plans;
  best_ = best;
  Report();
}

void Reporter::Saw(const Candidate& candidate) {
  const std::lock_guard lock(mutex_);
  if (best_ && best_->plan_s > 0) return;
  if (!best_ || Better(options_.objective, candidate, candidate.iteration_s, *best_, best_->iteration_s))
    best_ = candidate;
}

void Reporter::Report() {
  constexpr std::chrono::seconds kEach(1);
  const auto now = std::chrono::steady_clock::now();
  if (!options_.progress || now - last_ < kEach) return;
  last_ = now;
  SearchProgress progress{.looked_at = looked_at_, .layouts = layouts_, .compiled = compiled_};
  if (best_) {
    progress.best = &best_->layout;
    progress.best_s = best_->plan_s > 0 ? best_->plan_s : best_->iteration_s;
    progress.best_bytes = best_->arena_bytes;
  }
  options_.progress(progress);
}

absl::StatusOr<EstimatedLayouts> EstimateLayouts(const Recipe& recipe, const compile::CompileOptions& compile,
                                                 const SearchSpace& space, const SearchOptions& options,
                                                 std::int64_t limit, size_t wanted, const Confirm& confirm,
                                                 Reporter* reporter) {
  const std::vector<SearchSpace::Group> groups = space.Groups();
  EstimatedLayouts all;
  for (const SearchSpace::Group& group : groups) {
    for (const Layout& layout : space.Layouts(group))
      all.layouts += static_cast<std::int64_t>(space.Recomputations(layout).size());
  }
  reporter->SetLayouts(all.layouts);
  Bar bar(options.objective, limit, wanted);
  // Groups that split a microbatch alike run side by side, and know what those before them have found: what
  // is left out does not depend on which thread is faster.
  for (size_t first = 0; first < groups.size();) {
    size_t end = first;
    while (end < groups.size() && groups[end].split() == groups[first].split()) ++end;
    std::vector<EstimatedLayouts> parts(end - first);
    ParallelPieces(options.threads, parts.size(), 1, [&](size_t begin, size_t stop) {
      for (size_t g = begin; g < stop; ++g) {
        parts[g] = GroupEstimator(recipe, compile, space, options.objective, limit, bar, reporter)
                       .Run(groups[first + g]);
      }
    });
    for (EstimatedLayouts& part : parts) {
      for (const Candidate& candidate : part.candidates) bar.Add(candidate);
      Append(std::move(part), &all);
    }
    std::stable_sort(all.candidates.begin(), all.candidates.end(),
                     [&](const Candidate& a, const Candidate& b) {
                       return Better(options.objective, a, a.iteration_s, b, b.iteration_s);
                     });
    const size_t before = all.candidates.size();
    ASSIGN_OR_RETURN(const double plan_s, confirm(&all.candidates));
    all.unlawful += static_cast<std::int64_t>(before - all.candidates.size());
    bar = Bar(options.objective, limit, wanted);  // without those that the compiler has refused
    for (const Candidate& candidate : all.candidates) bar.Add(candidate);
    bar.SetPlan(plan_s);
    DropBeaten(bar, &all);
    first = end;
  }
  return all;
}

}  // namespace engine::search
