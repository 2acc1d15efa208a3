#include "engine/search/search.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/parallel.h"
#include "engine/driver/check_device.h"
#include "engine/driver/check_kernels.h"
#include "engine/driver/compile_recipe.h"
#include "engine/recipe/rules.h"
#include "engine/recipe/validate.h"
#include "engine/search/estimate_layouts.h"
#include "engine/search/neighbour.h"

namespace engine::search {
namespace {

using recipe::Recipe;
using Objective = SearchOptions::Objective;

// Plans that are compiled before the best is looked at again.
constexpr size_t kAtOnce = 8;
// Beyond so many a search ends, although estimates of others are as good.
constexpr std::int64_t kMostCompiled = 2000;

constexpr std::int64_t kUnlimited = std::numeric_limits<std::int64_t>::max();

// Bytes of an arena that leave the device's share free.
std::int64_t ArenaLimit(const recipe::Cluster& cluster, double share) {
  if (cluster.memory_bytes == 0) return kUnlimited;
  return static_cast<std::int64_t>(share * static_cast<double>(cluster.memory_bytes)) -
         cluster.reserved_bytes;
}

Candidate CandidateOf(const Found& found) {
  return {found.layout, found.arena_bytes, 0, found.time.iteration_s};
}

// The recipe with a layout. Error: it is unlawful.
absl::StatusOr<Recipe> WithLayout(const Recipe& base, const compile::CompileOptions& compile,
                                  const Layout& layout) {
  Recipe recipe = base;
  SetLayout(layout, &recipe);
  std::vector<Diagnostic> wrong = recipe::Validate(recipe);
  for (Diagnostic& diagnostic : driver::CheckDevice(recipe, compile.profile))
    wrong.push_back(std::move(diagnostic));
  for (const Diagnostic& diagnostic : wrong) {
    if (diagnostic.severity == Severity::kError) return InvalidArgument("{}", diagnostic.message);
  }
  return recipe;
}

// The plan of a layout. Error: it is unlawful, or does not fit.
absl::StatusOr<Found> CompileLayout(const Recipe& base, const compile::CompileOptions& compile,
                                    const Layout& layout, bool must_fit) {
  ASSIGN_OR_RETURN(const Recipe recipe, WithLayout(base, compile, layout));
  ASSIGN_OR_RETURN(const plan::Plan plan, driver::CompileUnverified(recipe, compile));
  RETURN_IF_ERROR(ErrorOf(driver::CheckKernels(recipe, plan)));
  if (must_fit) RETURN_IF_ERROR(driver::VerifyAgainst(recipe, plan));
  Found found;
  found.layout = layout;
  for (const plan::StagePlan& stage : plan.stages) {
    found.flops += stage.flops / static_cast<double>(plan.stages.size());
    if (stage.arena_bytes <= found.arena_bytes) continue;
    found.arena_bytes = stage.arena_bytes;
    found.memory = stage.memory;
  }
  found.time = predict::Predict(plan, recipe.cluster);
  return found;
}

std::int64_t WorldOf(const Recipe& recipe, const SearchOptions& options) {
  return options.world > 0 ? options.world : recipe.world_size();
}

// Whether there is any layout of so many ranks to look at.
bool HasLayouts(const Recipe& recipe, std::int64_t world, const std::vector<std::string>& fixed) {
  const SearchSpace space(recipe, world, fixed);
  const std::vector<SearchSpace::Group> groups = space.Groups();
  return std::any_of(groups.begin(), groups.end(),
                     [&](const SearchSpace::Group& group) { return !space.Layouts(group).empty(); });
}

// Why there is no layout of so many ranks, and which numbers near it have some.
absl::Status NoLayout(const Recipe& recipe, std::int64_t world, const std::vector<std::string>& fixed) {
  constexpr std::int64_t kFarthest = 64;
  const std::int64_t each = recipe.cluster.devices_per_node;
  const auto suits = [&](std::int64_t ranks) {
    const bool fills_nodes = each == 0 || world <= each || ranks <= each || ranks % each == 0;
    return ranks > 0 && fills_nodes && HasLayouts(recipe, ranks, fixed);
  };
  std::vector<std::int64_t> near;
  for (const std::int64_t step : {-1, 1}) {
    std::int64_t distance = 1;
    while (distance <= kFarthest && !suits(world + step * distance)) ++distance;
    if (distance <= kFarthest) near.push_back(world + step * distance);
  }
  return InvalidArgument(
      "no layout of {} ranks is lawful for this recipe: they cannot be split into data-parallel ranks that "
      "share its {} samples a batch evenly, tensor-parallel ranks that share its widths, context-parallel "
      "ranks that share its {} tokens a sample, and {} at most{}; {}",
      world, recipe.training.global_batch, recipe.data.sequence_length,
      recipe::Counted(recipe.model.layers, "stage"), fixed.empty() ? "" : ", with what --fix keeps",
      near.empty() ? "nor is there one of a number near it"
                   : fmt::format("there are layouts of {} ranks", fmt::join(near, " and of ")));
}

// Searches one recipe.
class Searcher {
 public:
  Searcher(const Recipe& recipe, const compile::CompileOptions& compile, const SearchOptions& options)
      : recipe_(recipe),
        compile_(compile),
        options_(options),
        space_(recipe, WorldOf(recipe, options), options.fixed),
        reporter_(options) {
    compile_.hash = false;
    result_.world = WorldOf(recipe, options);
  }

  absl::StatusOr<SearchResult> Run() {
    const std::int64_t limit = ArenaLimit(recipe_.cluster, options_.memory_share);
    result_.limit_bytes = limit == kUnlimited ? 0 : limit;
    const auto confirm = [&](std::vector<Candidate>* candidates) { return CompileBest(candidates); };
    ASSIGN_OR_RETURN(EstimatedLayouts estimated, EstimateLayouts(recipe_, compile_, space_, options_, limit,
                                                                 Wanted(), confirm, &reporter_));
    Count(estimated);
    result_.interrupted = reporter_.stopped();
    if (estimated.candidates.empty()) {
      if (!result_.interrupted) RETURN_IF_ERROR(FindSmallest());
      return std::move(result_);
    }
    RETURN_IF_ERROR(TryRepeating(&estimated.candidates));
    RETURN_IF_ERROR(ShowBest(std::move(estimated.candidates)));
    if (!best_plan_ && !refused_.ok() && !result_.interrupted) return refused_;
    bool moved = !result_.interrupted && !result_.best.empty();
    while (moved) {
      FindNeighbours();
      if (reporter_.stopped()) {
        result_.interrupted = true;
        result_.neighbours.clear();
        break;
      }
      ASSIGN_OR_RETURN(moved, MoveToNeighbour());
    }
    return std::move(result_);
  }

 private:
  void Count(const EstimatedLayouts& estimated) {
    result_.layouts = estimated.layouts;
    result_.looked_at = estimated.looked_at;
    result_.too_large = estimated.too_large;
    result_.slower = estimated.slower;
    result_.estimated = estimated.estimated;
    result_.unlawful = estimated.unlawful;
    result_.probes = estimated.probes;
    result_.seconds = estimated.seconds;
  }

  // None fits: that which needs least.
  absl::Status FindSmallest() {
    SearchOptions options = options_;
    options.objective = Objective::kMemory;
    const auto none = [](std::vector<Candidate>*) -> absl::StatusOr<double> { return 0; };
    ASSIGN_OR_RETURN(const EstimatedLayouts all,
                     EstimateLayouts(recipe_, compile_, space_, options, kUnlimited, 1, none, &reporter_));
    result_.interrupted = reporter_.stopped();
    if (result_.interrupted) return absl::OkStatus();
    if (all.candidates.empty()) return WhyNone(all.layouts == 0);
    ASSIGN_OR_RETURN(result_.smallest,
                     CompileLayout(recipe_, compile_, all.candidates.front().layout, /*must_fit=*/false));
    return absl::OkStatus();
  }

  // Why no layout is lawful: there is none, or the rules or the compiler refuse each.
  absl::Status WhyNone(bool nothing_to_try) const {
    if (nothing_to_try) return NoLayout(recipe_, result_.world, options_.fixed);
    for (const SearchSpace::Group& group : space_.Groups()) {
      for (const Layout& layout : space_.Layouts(group)) {
        const absl::Status refused = WithLayout(recipe_, compile_, layout).status();
        if (refused.ok()) continue;
        return InvalidArgument("no layout of {} ranks is lawful for this recipe; of {}: {}", result_.world,
                               layout.ToString(), Message(refused));
      }
    }
    return InvalidArgument("no layout of {} ranks is lawful for this recipe: none can be compiled",
                           result_.world);
  }

  size_t Wanted() const { return std::max(options_.finalists, options_.shown); }

  bool BetterPlan(const Candidate& a, const Candidate& b) const {
    return Better(options_.objective, a, a.plan_s, b, b.plan_s);
  }

  // Whether the plan of a candidate can be better than the best so far, by its estimate. Bytes are exact.
  bool MayWin(const Candidate& candidate) const {
    if (!best_plan_) return true;
    return options_.objective == Objective::kTime
               ? candidate.iteration_s < best_plan_->plan_s * (1 + MostTooSlow(candidate.layout))
               : candidate.arena_bytes == best_plan_->arena_bytes;
  }

  // Compiles candidates, which are in the order of their estimates, until none that is left can win, and as
  // many as are wanted. Returns the least seconds of a plan so far.
  absl::StatusOr<double> CompileBest(std::vector<Candidate>* candidates) {
    for (size_t i = 0; i < candidates->size();) {
      std::vector<Candidate*> next;
      for (; i < candidates->size() && next.size() < kAtOnce; ++i) {
        Candidate& candidate = (*candidates)[i];
        if (candidate.plan_s == 0 && (i < Wanted() || MayWin(candidate))) next.push_back(&candidate);
      }
      if (next.empty()) break;
      result_.all_compared = result_.compiled < kMostCompiled;
      if (!result_.all_compared || (best_plan_ && reporter_.stopped())) break;
      RETURN_IF_ERROR(PredictAll(next));
    }
    std::erase_if(*candidates, [](const Candidate& candidate) { return candidate.plan_s < 0; });
    return best_plan_ ? best_plan_->plan_s : 0;
  }

  // Compiles the candidates without evaluation, which training time does not depend on, and sets plan_s of
  // each; −1 where the recipe's rules or the compiler refuse the layout.
  absl::Status PredictAll(const std::vector<Candidate*>& candidates) {
    compile::CompileOptions compile = compile_;
    compile.evaluation = false;
    std::vector<absl::StatusOr<Found>> found(candidates.size(), absl::UnknownError(""));
    ParallelPieces(options_.threads, candidates.size(), 1, [&](size_t first, size_t) {
      found[first] = CompileLayout(recipe_, compile, candidates[first]->layout, /*must_fit=*/false);
    });
    for (size_t i = 0; i < candidates.size(); ++i) {
      Candidate& candidate = *candidates[i];
      candidate.plan_s = found[i].ok() ? found[i]->time.iteration_s : -1;
      if (absl::IsInvalidArgument(found[i].status())) {
        if (refused_.ok()) refused_ = found[i].status();
        continue;
      }
      if (!found[i].ok()) return WithContext(found[i].status(), candidate.layout.ToString());
      if (!best_plan_ || BetterPlan(candidate, *best_plan_)) best_plan_ = candidate;
    }
    result_.compiled += static_cast<std::int64_t>(candidates.size());
    if (best_plan_) reporter_.Compiled(result_.compiled, *best_plan_);
    return absl::OkStatus();
  }

  // What repeats more needs no less time, but for exchange that repeated work may hide: of layouts that are
  // about as good as the best, those that repeat one kind of work more are compiled, too.
  absl::Status TryRepeating(std::vector<Candidate>* candidates) {
    constexpr double kHidden = 0.005;
    if (options_.objective != Objective::kTime) return absl::OkStatus();
    for (size_t i = 0; i < candidates->size() && !reporter_.stopped(); ++i) {
      const Candidate known = (*candidates)[i];
      if (known.plan_s == 0 || known.plan_s > best_plan_->plan_s * (1 + kHidden)) continue;
      std::vector<Candidate> more = RepeatingMore(known, *candidates);
      std::vector<Candidate*> next;
      next.reserve(more.size());
      for (Candidate& candidate : more) next.push_back(&candidate);
      RETURN_IF_ERROR(PredictAll(next));
      std::erase_if(more, [](const Candidate& c) { return c.plan_s < 0; });
      candidates->insert(candidates->end(), more.begin(), more.end());
    }
    return absl::OkStatus();
  }

  // The same layout with one kind of work more, where that is not among what is known.
  std::vector<Candidate> RepeatingMore(const Candidate& candidate,
                                       const std::vector<Candidate>& known) const {
    const std::vector<Recomputation> ways = space_.Recomputations(candidate.layout);
    const auto own = std::find_if(ways.begin(), ways.end(), [&](const Recomputation& way) {
      return way.granularity == candidate.layout.granularity && way.modules == candidate.layout.modules;
    });
    std::vector<Candidate> more;
    for (const Recomputation& way : ways) {
      if (own == ways.end() || (way.repeats & own->repeats) != own->repeats) continue;
      if (std::popcount(way.repeats) != std::popcount(own->repeats) + 1) continue;
      Candidate next = candidate;
      next.layout.granularity = way.granularity;
      next.layout.modules = way.modules;
      next.plan_s = 0;
      const bool is_known = std::any_of(known.begin(), known.end(),
                                        [&](const Candidate& one) { return one.layout == next.layout; });
      if (!is_known) more.push_back(std::move(next));
    }
    return more;
  }

  // The best of those that are compiled, with all that a plan has.
  absl::Status ShowBest(std::vector<Candidate> candidates) {
    std::erase_if(candidates, [](const Candidate& candidate) { return candidate.plan_s == 0; });
    std::stable_sort(candidates.begin(), candidates.end(),
                     [&](const Candidate& a, const Candidate& b) { return BetterPlan(a, b); });
    const size_t shown = std::min(candidates.size(), result_.interrupted ? 1 : options_.shown);
    std::vector<absl::StatusOr<Found>> found(shown, absl::UnknownError(""));
    ParallelPieces(options_.threads, shown, 1, [&](size_t first, size_t) {
      found[first] = CompileLayout(recipe_, compile_, candidates[first].layout, /*must_fit=*/true);
    });
    for (absl::StatusOr<Found>& one : found) {
      if (absl::IsResourceExhausted(one.status())) continue;  // TryRepeating knows no bytes of its candidates
      if (!one.ok()) return one.status();
      const bool fits = result_.limit_bytes == 0 || one->arena_bytes <= result_.limit_bytes;
      if (fits) result_.best.push_back(*std::move(one));
    }
    return absl::OkStatus();
  }

  void FindNeighbours() {
    result_.neighbours.clear();
    const Found& best = result_.best.front();
    const std::vector<Layout> layouts = NeighbouringLayouts(best.layout);
    std::vector<absl::StatusOr<Found>> found(layouts.size(), absl::UnknownError(""));
    ParallelPieces(options_.threads, layouts.size(), 1, [&](size_t first, size_t) {
      if (!reporter_.stopped())
        found[first] = CompileLayout(recipe_, compile_, layouts[first], /*must_fit=*/false);
    });
    for (absl::StatusOr<Found>& one : found) {
      if (!one.ok()) continue;
      const std::string change = MoveText(best.layout, one->layout);
      std::string why = WhyNot(best, *one, result_.limit_bytes, options_.objective);
      result_.neighbours.push_back({change, *std::move(one), std::move(why)});
    }
    // Layouts that fit come first.
    const auto too_large = [&](const Neighbour& n) {
      return result_.limit_bytes > 0 && n.found.arena_bytes > result_.limit_bytes;
    };
    std::sort(result_.neighbours.begin(), result_.neighbours.end(),
              [&](const Neighbour& a, const Neighbour& b) {
                if (too_large(a) != too_large(b)) return too_large(b);
                if (too_large(a)) return a.found.arena_bytes < b.found.arena_bytes;
                return BetterPlan(CandidateOf(a.found), CandidateOf(b.found));
              });
  }

  // Where the plan of a neighbour is better than the best, which no estimate told, it is the best.
  absl::StatusOr<bool> MoveToNeighbour() {
    if (result_.neighbours.empty()) return false;
    const Found& first = result_.neighbours.front().found;
    const bool fits = result_.limit_bytes == 0 || first.arena_bytes <= result_.limit_bytes;
    const Found& best = result_.best.front();
    if (!fits || !BetterPlan(CandidateOf(first), CandidateOf(best))) return false;
    ASSIGN_OR_RETURN(Found found, CompileLayout(recipe_, compile_, first.layout, /*must_fit=*/true));
    result_.compiled += static_cast<std::int64_t>(result_.neighbours.size());
    std::erase_if(result_.best, [&](const Found& known) { return known.layout == found.layout; });
    result_.best.insert(result_.best.begin(), std::move(found));
    result_.best.resize(std::min(result_.best.size(), options_.shown));
    return true;
  }

  std::vector<Layout> NeighbouringLayouts(const Layout& best) const {
    std::vector<Layout> layouts;
    for (const SearchSpace::Group& group : space_.Groups()) {
      for (Layout layout : space_.Layouts(group)) {
        for (const Recomputation& way : space_.Recomputations(layout)) {
          layout.granularity = way.granularity;
          layout.modules = way.modules;
          if (IsNeighbour(best, layout)) layouts.push_back(layout);
        }
      }
    }
    return layouts;
  }

  const Recipe& recipe_;
  compile::CompileOptions compile_;
  const SearchOptions& options_;
  const SearchSpace space_;
  Reporter reporter_;
  std::optional<Candidate> best_plan_;  // of all that were compiled
  absl::Status refused_;                // why the first of those was that was
  SearchResult result_;
};

}  // namespace

absl::StatusOr<SearchResult> Search(const Recipe& recipe, const compile::CompileOptions& compile,
                                    const SearchOptions& options) {
  if (recipe.offload.activation_layers > 0) {
    return InvalidArgument(
        "offload.activation_layers {}: layouts are compared by models of a few layers, which have no others "
        "whose places "
        "theirs could take; search with --set offload.activation_layers=0, and set it in the layout that is "
        "found",
        recipe.offload.activation_layers);
  }
  return Searcher(recipe, compile, options).Run();
}

}  // namespace engine::search
