#include "engine/train/search.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "engine/base/parallel.h"
#include "engine/base/units.h"
#include "engine/plan/check_device.h"
#include "engine/recipe/fields.h"
#include "engine/recipe/print.h"
#include "engine/recipe/validate.h"
#include "engine/train/compile_recipe.h"
#include "engine/train/fold.h"

namespace engine::train {
namespace {

using recipe::Recipe;

struct Recomputation {
  const char* granularity;
  std::vector<std::string> modules;
  // Tried with a zero bubble too: there the others keep about as much, for the weights pass.
  bool zero_bubble = false;
};
// That which needs least memory first.
const std::vector<Recomputation>& Recomputations() {
  static const std::vector<Recomputation> all = {
      {"full", {}, true},
      {"none", {}, true},
      {"selective", {"attention"}},
      {"selective", {"norm"}},
      {"selective", {"activation"}, true},
      {"selective", {"attention", "norm"}},
      {"selective", {"attention", "activation"}},
      {"selective", {"norm", "activation"}},
      {"selective", {"attention", "norm", "activation"}},
  };
  return all;
}

constexpr std::int64_t kMostMicroBatch = 64;
constexpr std::int64_t kMostTurns = 2'000'000;  // as recipe/rules_training.cpp allows

std::vector<std::int64_t> Divisors(std::int64_t n) {
  std::vector<std::int64_t> divisors;
  for (std::int64_t d = 1; d <= n; ++d) {
    if (n % d == 0) divisors.push_back(d);
  }
  return divisors;
}

// A layout and what folding gave.
struct Candidate {
  Layout layout;
  std::int64_t arena_bytes = 0;
  double iteration_s = 0;
};

// The layouts of one recipe, by the choices that probes depend on.
class Space {
 public:
  Space(const Recipe& recipe, std::int64_t world, const std::vector<std::string>& fixed)
      : recipe_(recipe), fixed_(fixed.begin(), fixed.end()), world_(world) {}

  // Those of one group share probes with no other group.
  struct Group {
    std::int64_t tp = 1, cp = 1;
    bool sequence_parallel = false;
  };
  std::vector<Group> Groups() const {
    std::vector<Group> groups;
    for (std::int64_t tp : Values("parallelism.tp", recipe_.parallelism.tp, Divisors(world_))) {
      if (recipe_.kv_heads() % tp != 0 || recipe_.ffn_hidden() % tp != 0) continue;
      for (std::int64_t cp : Values("parallelism.cp", recipe_.parallelism.cp, Divisors(world_ / tp))) {
        const std::int64_t length = recipe_.data.sequence_length;
        if (world_ % (tp * cp) != 0 || (cp > 1 && length % (2 * cp) != 0)) continue;
        for (bool split : {false, true}) {
          if (Fixed("parallelism.sequence_parallel") && split != recipe_.parallelism.sequence_parallel)
            continue;
          if (split && (tp == 1 || length / cp % tp != 0)) continue;
          groups.push_back({tp, cp, split});
        }
      }
    }
    return groups;
  }

  // Calls visit(layout, first) for each; `first`: of those that differ in recomputation alone.
  template <typename Visit>
  void ForEach(const Group& group, const Visit& visit) const {
    Layout layout;
    layout.tp = group.tp;
    layout.cp = group.cp;
    layout.sequence_parallel = group.sequence_parallel;
    if (Fixed("parallelism.schedule")) layout.schedule = recipe_.parallelism.schedule;
    const recipe::Parallelism& p = recipe_.parallelism;
    const std::int64_t rest = world_ / (group.tp * group.cp);
    for (std::int64_t pp : Values("parallelism.pp", p.pp, Divisors(rest))) {
      layout.pp = pp;
      layout.dp = rest / pp;
      if (rest % pp != 0 || pp > recipe_.model.layers || (Fixed("parallelism.dp") && layout.dp != p.dp))
        continue;
      for (std::int64_t chunks : Values("parallelism.virtual_stages", p.virtual_stages, ChunkCounts(pp))) {
        layout.virtual_stages = chunks;
        for (bool zero_bubble : {false, true}) {
          layout.zero_bubble = zero_bubble;
          if (SuitsSchedule(layout)) ForEachState(layout, visit);
        }
      }
    }
  }

 private:
  bool Fixed(const std::string& key) const { return fixed_.contains(key); }

  std::vector<std::int64_t> Values(const std::string& key, std::int64_t own,
                                   std::vector<std::int64_t> all) const {
    return Fixed(key) ? std::vector<std::int64_t>{own} : std::move(all);
  }

  // Chunks a stage that cut the layers evenly, and one.
  std::vector<std::int64_t> ChunkCounts(std::int64_t pp) const {
    std::vector<std::int64_t> counts = {1};
    for (std::int64_t v = 2; pp > 1 && pp * v <= recipe_.model.layers; ++v) {
      if (recipe_.model.layers % (pp * v) == 0) counts.push_back(v);
    }
    return counts;
  }

  bool SuitsSchedule(const Layout& layout) const {
    const std::string& fixed = layout.schedule;
    const std::vector<std::int64_t>& list = recipe_.parallelism.layers_per_stage;
    const std::int64_t chunks = layout.pp * layout.virtual_stages;
    if (chunks > recipe_.model.layers || (layout.virtual_stages > 1 && layout.pp == 1)) return false;
    if (!list.empty() && Fixed("parallelism.layers_per_stage") &&
        static_cast<std::int64_t>(list.size()) != chunks)
      return false;
    if (layout.zero_bubble && (layout.pp == 1 || layout.virtual_stages > 1)) return false;
    if (fixed.empty() || fixed == "auto") return fixed.empty() || !layout.zero_bubble;
    const char* own = layout.zero_bubble ? "zero_bubble" : layout.virtual_stages > 1 ? "interleaved" : "1f1b";
    return fixed == own;
  }

  template <typename Visit>
  void ForEachState(Layout layout, const Visit& visit) const {
    const std::int64_t global_batch = recipe_.training.global_batch;
    for (std::int64_t zero : Values("parallelism.zero_stage", recipe_.parallelism.zero_stage, {0, 1, 2, 3})) {
      layout.zero_stage = zero;
      if (zero > 0 && layout.dp * layout.cp == 1 && !Fixed("parallelism.zero_stage"))
        continue;  // shards nothing
      if (zero > 1 && layout.zero_bubble) continue;
      if (zero > 2 && recipe_.precision.compute == "fp8") continue;
      for (std::int64_t samples :
           Values("training.micro_batch", recipe_.training.micro_batch, MicroBatches())) {
        layout.micro_batch = samples;
        if (global_batch % (samples * layout.dp) != 0) continue;
        const std::int64_t microbatches = global_batch / (samples * layout.dp);
        if (layout.virtual_stages > 1 && microbatches % layout.pp != 0) continue;
        if (microbatches * layout.pp * layout.virtual_stages > kMostTurns) continue;
        bool first = true;
        for (const Recomputation& again : Recomputations()) {
          const bool own = Fixed("recompute.granularity") || Fixed("recompute.modules");
          if (own && !first) break;
          if (layout.zero_bubble && !again.zero_bubble && !own) continue;
          layout.granularity = own ? recipe_.recompute.granularity : again.granularity;
          layout.modules = own ? recipe_.recompute.modules : again.modules;
          visit(layout, first);
          first = false;
        }
      }
    }
  }

  static std::vector<std::int64_t> MicroBatches() {
    std::vector<std::int64_t> samples;
    for (std::int64_t n = 1; n <= kMostMicroBatch; n *= 2) samples.push_back(n);
    return samples;
  }

  const Recipe& recipe_;
  const std::set<std::string> fixed_;
  const std::int64_t world_;
};

std::int64_t MemoryLimit(const Recipe& recipe) {
  return recipe.cluster.memory_bytes == 0 ? 0 : recipe.cluster.memory_bytes - recipe.cluster.reserved_bytes;
}

// Of computing time of this thread.
double ThreadSeconds() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// What one thread has folded.
struct Folded {
  std::vector<Candidate> candidates;  // that fit
  std::optional<Candidate> smallest;
  std::int64_t layouts = 0, too_large = 0, bounded = 0, unlawful = 0, probes = 0;
};

Folded FoldGroup(const Recipe& base, const plan::CompileOptions& compile, const Space& space,
                 const Space::Group& group) {
  Folded folded;
  Folder folder(compile);
  Recipe recipe = base;
  const std::int64_t limit = MemoryLimit(base);
  bool fits = true;  // what all that differ in recomputation alone need at least
  space.ForEach(group, [&](const Layout& layout, bool first) {
    SetLayout(layout, &recipe);
    if (first) {
      const absl::StatusOr<std::int64_t> states = folder.StateBytes(recipe);
      fits = limit == 0 || !states.ok() || *states <= limit;
    }
    if (!fits && folded.smallest) {
      ++folded.bounded;
      return;
    }
    const absl::StatusOr<Estimate> estimate = folder.Fold(recipe);
    if (!estimate.ok()) {
      ++folded.unlawful;
      return;
    }
    ++folded.layouts;
    Candidate candidate{layout, estimate->arena_bytes, estimate->iteration_s};
    if (!folded.smallest || candidate.arena_bytes < folded.smallest->arena_bytes) folded.smallest = candidate;
    if (limit == 0 || candidate.arena_bytes <= limit) {
      folded.candidates.push_back(std::move(candidate));
      return;
    }
    ++folded.too_large;
    // Whatever is recomputed less is kept more.
    const std::int64_t kept =
        estimate->arena_bytes - estimate->memory.transients - estimate->memory.evaluation;
    if (layout.granularity == "full" && !layout.zero_bubble) fits = kept <= limit;
  });
  folded.probes = folder.probes();
  return folded;
}

bool Better(SearchOptions::Objective objective, const Candidate& a, const Candidate& b) {
  const auto key = [&](const Candidate& c) {
    const double bytes = static_cast<double>(c.arena_bytes);
    return objective == SearchOptions::Objective::kTime ? std::pair(c.iteration_s, bytes)
                                                        : std::pair(bytes, c.iteration_s);
  };
  return key(a) < key(b);
}

Candidate CandidateOf(const Found& found) {
  return {found.layout, found.arena_bytes, found.time.iteration_s};
}

// The plan of a layout. Error: it is unlawful, or does not fit.
absl::StatusOr<Found> CompileLayout(const Recipe& base, const plan::CompileOptions& compile,
                                    const Layout& layout, bool must_fit) {
  Recipe recipe = base;
  SetLayout(layout, &recipe);
  std::vector<Diagnostic> wrong = recipe::Validate(recipe);
  for (Diagnostic& diagnostic : plan::CheckDevice(recipe, compile.profile))
    wrong.push_back(std::move(diagnostic));
  for (const Diagnostic& diagnostic : wrong) {
    if (diagnostic.severity == Severity::kError) return InvalidArgument("{}", diagnostic.message);
  }
  ASSIGN_OR_RETURN(const plan::Plan plan, CompileUnverified(recipe, compile));
  if (must_fit) RETURN_IF_ERROR(VerifyAgainst(recipe, plan));
  Found found;
  found.layout = layout;
  for (const plan::StagePlan& stage : plan.stages) {
    found.flops += stage.flops / static_cast<double>(plan.stages.size());
    if (stage.arena_bytes <= found.arena_bytes) continue;
    found.arena_bytes = stage.arena_bytes;
    found.memory = stage.memory;
  }
  found.time = plan::Predict(plan, recipe.cluster);
  return found;
}

std::string RecomputeText(const Layout& layout) {
  if (layout.granularity != "selective") return layout.granularity;
  return fmt::format("{}", fmt::join(layout.modules, "+"));
}

// Means over the stages; they add up to the iteration.
struct Parts {
  double compute_s = 0, exposed_s = 0, bubble_s = 0, update_s = 0;
};
Parts PartsOf(const plan::Prediction& time) {
  Parts parts;
  const double stages = static_cast<double>(time.stages.size());
  for (const plan::StageTime& stage : time.stages) {
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
  // Of computation: more FLOPs at the best's pace, and another pace.
  const double pace = best.flops > 0 ? a.compute_s / best.flops : 0;
  const double more_s = (found.flops - best.flops) * pace;
  const double pace_s = b.compute_s - a.compute_s - more_s;
  const auto part = [](double seconds, std::string text) {
    return std::pair(seconds, fmt::format("{} {}", text, SignedSeconds(seconds)));
  };
  const bool again = RecomputeText(found.layout) != RecomputeText(best.layout);
  return Shares({part(more_s, fmt::format("{:+.0f} % FLOPs",
                                          best.flops > 0 ? 100 * (found.flops / best.flops - 1) : 0)),
                 part(pace_s, again ? "norms and activations again" : "less efficient kernels"),
                 part(b.exposed_s - a.exposed_s, "exposed exchange"), part(b.bubble_s - a.bubble_s, "bubble"),
                 part(b.update_s - a.update_s, "update")},
                0.2 * slower);
}

std::string Why(const Found& best, const Found& found, const Recipe& recipe,
                SearchOptions::Objective objective) {
  const std::int64_t limit = MemoryLimit(recipe);
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
  number("dp", &Layout::dp);
  number("chunks a stage", &Layout::virtual_stages);
  number("zero_stage", &Layout::zero_stage);
  number("micro_batch", &Layout::micro_batch);
  if (from.sequence_parallel != to.sequence_parallel)
    changes.push_back(to.sequence_parallel ? "with sequence parallelism" : "without sequence parallelism");
  if (from.zero_bubble != to.zero_bubble) changes.push_back(to.zero_bubble ? "zero bubble" : "1f1b");
  if (RecomputeText(from) != RecomputeText(to))
    changes.push_back(fmt::format("recompute {} to {}", RecomputeText(from), RecomputeText(to)));
  return fmt::format("{}", fmt::join(changes, ", "));
}

// Whether `to` differs from `from` in one choice: a factor moved from one axis to another, or one other key.
bool IsNeighbour(const Layout& from, const Layout& to) {
  constexpr std::array kAxes = {&Layout::dp, &Layout::tp, &Layout::pp, &Layout::cp};
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
  others += from.zero_bubble != to.zero_bubble ? 1 : 0;
  others += RecomputeText(from) != RecomputeText(to) ? 1 : 0;
  return (moved == 2 && others == 0) || (moved == 0 && others == 1);
}

std::vector<Neighbour> NeighboursOf(const Found& best, const Recipe& recipe,
                                    const plan::CompileOptions& compile, const Space& space,
                                    SearchOptions::Objective objective) {
  std::vector<Neighbour> neighbours;
  for (const Space::Group& group : space.Groups()) {
    space.ForEach(group, [&](const Layout& layout, bool) {
      if (!IsNeighbour(best.layout, layout)) return;
      absl::StatusOr<Found> found = CompileLayout(recipe, compile, layout, /*must_fit=*/false);
      if (!found.ok()) return;
      const std::string change = MoveText(best.layout, layout);
      std::string why = Why(best, *found, recipe, objective);
      neighbours.push_back({change, *std::move(found), std::move(why)});
    });
  }
  // Those that fit first.
  const std::int64_t limit = MemoryLimit(recipe);
  const auto too_large = [&](const Neighbour& n) { return limit > 0 && n.found.arena_bytes > limit; };
  std::sort(neighbours.begin(), neighbours.end(), [&](const Neighbour& a, const Neighbour& b) {
    if (too_large(a) != too_large(b)) return too_large(b);
    if (too_large(a)) return a.found.arena_bytes < b.found.arena_bytes;
    return Better(objective, CandidateOf(a.found), CandidateOf(b.found));
  });
  return neighbours;
}

std::string LayoutRow(const Found& found, std::int64_t world) {
  const Layout& l = found.layout;
  const double tokens = found.time.tokens_per_s / static_cast<double>(world);
  return fmt::format(
      "{:>4} {:>4} {:>4} {:>4}  {:>3} {:>6}  {:<5} {:>4} {:>5}  {:<25} {:>10}  {:>9}  {:>8.0f}  {:>5.1f} "
      "{:>6.1f} {:>7.1f}\n",
      l.dp, l.tp, l.pp, l.cp, l.sequence_parallel ? "yes" : "no", l.virtual_stages,
      l.zero_bubble ? "zb"
      : l.pp > 1    ? "1f1b"
                    : "-",
      l.zero_stage, l.micro_batch, RecomputeText(l), FormatBytes(found.arena_bytes),
      fmt::format("{:.3f} s", found.time.iteration_s), tokens, 100 * found.time.mfu, 100 * found.time.bubble,
      100 * found.time.exposed);
}

}  // namespace

const std::vector<std::string>& SearchedKeys() {
  static const std::vector<std::string> keys = {
      "parallelism.dp",         "parallelism.tp",       "parallelism.pp",
      "parallelism.cp",         "parallelism.schedule", "parallelism.sequence_parallel",
      "parallelism.zero_stage", "training.micro_batch", "parallelism.virtual_stages",
      "recompute.granularity",  "recompute.modules",    "parallelism.layers_per_stage",
  };
  return keys;
}

std::string Layout::ToString() const {
  std::string text = fmt::format("dp {} tp {} pp {}", dp, tp, pp);
  if (cp > 1) text += fmt::format(" cp {}", cp);
  if (virtual_stages > 1) text += fmt::format(", {} chunks a stage", virtual_stages);
  if (sequence_parallel) text += ", sequence parallel";
  if (zero_bubble) text += ", zero bubble";
  if (zero_stage > 0) text += fmt::format(", ZeRO-{}", zero_stage);
  return text + fmt::format(", micro-batch {}, recompute {}", micro_batch, RecomputeText(*this));
}

void SetLayout(const Layout& layout, Recipe* recipe) {
  recipe::Parallelism& p = recipe->parallelism;
  p.dp = layout.dp;
  p.tp = layout.tp;
  p.pp = layout.pp;
  p.cp = layout.cp;
  p.virtual_stages = layout.virtual_stages;
  p.zero_stage = layout.zero_stage;
  p.sequence_parallel = layout.sequence_parallel;
  p.schedule = !layout.schedule.empty() ? layout.schedule : layout.zero_bubble ? "zero_bubble" : "auto";
  recipe->training.micro_batch = layout.micro_batch;
  recipe->recompute.granularity = layout.granularity;
  if (layout.granularity == "selective") recipe->recompute.modules = layout.modules;
}

absl::StatusOr<SearchResult> Search(const Recipe& given, const plan::CompileOptions& compile,
                                    const SearchOptions& options) {
  const auto fixed = [&](const char* key) {
    return std::find(options.fixed.begin(), options.fixed.end(), key) != options.fixed.end();
  };
  Recipe recipe = given;
  if (!fixed("parallelism.layers_per_stage")) recipe.parallelism.layers_per_stage.clear();
  const std::int64_t world = options.world > 0 ? options.world : recipe.world_size();
  const Space space(recipe, world, options.fixed);
  const std::vector<Space::Group> groups = space.Groups();
  std::vector<Folded> folded(groups.size());
  std::vector<double> seconds(groups.size(), 0);
  ParallelPieces(options.threads, groups.size(), 1, [&](size_t first, size_t last) {
    for (size_t g = first; g < last; ++g) {
      const double begin = ThreadSeconds();
      folded[g] = FoldGroup(recipe, compile, space, groups[g]);
      seconds[g] = ThreadSeconds() - begin;
    }
  });
  SearchResult result;
  result.world = world;
  std::vector<Candidate> candidates;
  std::optional<Candidate> smallest;
  for (size_t g = 0; g < groups.size(); ++g) {
    Folded& part = folded[g];
    result.layouts += part.layouts;
    result.too_large += part.too_large;
    result.bounded += part.bounded;
    result.unlawful += part.unlawful;
    result.probes += part.probes;
    result.seconds += seconds[g];
    if (part.smallest && (!smallest || part.smallest->arena_bytes < smallest->arena_bytes))
      smallest = part.smallest;
    candidates.insert(candidates.end(), part.candidates.begin(), part.candidates.end());
  }
  if (!smallest) return InvalidArgument("no layout of {} ranks is lawful for this recipe", world);
  const auto better = [&](const Candidate& a, const Candidate& b) { return Better(options.objective, a, b); };
  const size_t finalists = std::min(options.finalists, candidates.size());
  std::partial_sort(candidates.begin(), candidates.begin() + static_cast<std::ptrdiff_t>(finalists),
                    candidates.end(), better);
  for (size_t i = 0; i < finalists; ++i) {
    absl::StatusOr<Found> found = CompileLayout(recipe, compile, candidates[i].layout, /*must_fit=*/true);
    if (absl::IsResourceExhausted(found.status())) continue;
    if (!found.ok()) return WithContext(found.status(), candidates[i].layout.ToString());
    result.best.push_back(*std::move(found));
  }
  std::sort(result.best.begin(), result.best.end(),
            [&](const Found& a, const Found& b) { return better(CandidateOf(a), CandidateOf(b)); });
  if (result.best.empty()) {
    ASSIGN_OR_RETURN(result.smallest, CompileLayout(recipe, compile, smallest->layout, /*must_fit=*/false));
    return result;
  }
  result.neighbours = NeighboursOf(result.best.front(), recipe, compile, space, options.objective);
  result.best.resize(std::min(result.best.size(), options.shown));
  return result;
}

std::string ToText(const SearchResult& result, const Recipe& recipe) {
  const std::int64_t limit = MemoryLimit(recipe);
  const double folds = static_cast<double>(result.layouts) / std::max(1e-9, result.seconds);
  const std::int64_t layouts = result.layouts + result.bounded;
  std::string text = fmt::format("{} lawful layouts of {} ranks", WithThousands(layouts), result.world);
  if (limit > 0) {
    text += fmt::format("; {} need more than the {} of a device",
                        WithThousands(result.too_large + result.bounded), FormatBytes(limit));
  }
  text += fmt::format(
      "\n{} folded, {} a second and core; {} need too much without activations or with all recomputed\n",
      WithThousands(result.layouts), WithThousands(static_cast<std::int64_t>(folds)),
      WithThousands(result.bounded));
  if (result.best.empty()) {
    return text + fmt::format("\nnone fits. {} needs least: {}\n", result.smallest.layout.ToString(),
                              FormatBytes(result.smallest.arena_bytes));
  }
  for (const std::string& key : result.best.front().time.missing)
    text += fmt::format("cluster.{} is not given: times are of another machine\n", key);
  text +=
      "\n  dp   tp   pp   cp   sp chunks  sched zero micro  recompute                     memory  iteration  "
      "tok/s/dev   MFU% bubble exposed\n";
  for (const Found& found : result.best) text += LayoutRow(found, result.world);
  text += fmt::format("\nbest: {}\n", result.best.front().layout.ToString());
  if (result.neighbours.empty()) return text;
  text += "\nits neighbours\n";
  size_t width = 0;
  for (const Neighbour& neighbour : result.neighbours) width = std::max(width, neighbour.change.size());
  for (const Neighbour& neighbour : result.neighbours)
    text += fmt::format("  {:<{}}  {}\n", neighbour.change, width, neighbour.why);
  return text;
}

std::string FoundRecipe(const Recipe& recipe, const Recipe& changed, const std::string& base) {
  std::map<std::string, std::string> tables;  // text of each
  for (const recipe::Change& change : recipe::Diff(recipe, changed)) {
    const size_t dot = change.key.rfind('.');
    tables[change.key.substr(0, dot)] += fmt::format("{} = {}\n", change.key.substr(dot + 1), change.after);
  }
  std::string text = fmt::format("extends = [{}]\n", recipe::QuoteToml(base));
  for (const auto& [table, lines] : tables) text += fmt::format("\n[{}]\n{}", table, lines);
  return text;
}

}  // namespace engine::train
