#include "engine/search/space.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "engine/model/check.h"
#include "engine/recipe/batch_size.h"

namespace engine::search {
namespace {

using recipe::Recipe;

constexpr std::int64_t kMostMicroBatch = 64;

// Bits of Recomputation::repeats.
constexpr unsigned kAttention = 1, kNorm = 2, kActivation = 4, kRest = 8;

const std::vector<Recomputation>& AllRecomputations() {
  static const std::vector<Recomputation> all = {
      {"none", {}, 0, true},
      {"selective", {"activation"}, kActivation, true},
      {"selective", {"norm"}, kNorm},
      {"selective", {"norm", "activation"}, kNorm | kActivation},
      {"selective", {"attention"}, kAttention},
      {"selective", {"attention", "activation"}, kAttention | kActivation},
      {"selective", {"attention", "norm"}, kAttention | kNorm},
      {"selective", {"attention", "norm", "activation"}, kAttention | kNorm | kActivation},
      {"full", {}, kAttention | kNorm | kActivation | kRest, true},
  };
  return all;
}

// Recomputation::repeats of what a recipe says, in whichever of several ways.
unsigned RepeatsOf(const recipe::Recompute& recompute) {
  if (recompute.granularity == "full") return AllRecomputations().back().repeats;
  if (recompute.granularity == "cheap") return kNorm | kActivation;
  if (recompute.granularity != "selective") return 0;
  unsigned repeats = 0;
  for (const std::string& module : recompute.modules)
    repeats |= module == "attention" ? kAttention : module == "norm" ? kNorm : kActivation;
  return repeats;
}

std::vector<std::int64_t> Divisors(std::int64_t n) {
  std::vector<std::int64_t> divisors;
  for (std::int64_t d = 1; d <= n; ++d) {
    if (n % d == 0) divisors.push_back(d);
  }
  return divisors;
}

// With the recipe's own, from the largest down.
std::vector<std::int64_t> MicroBatches(std::int64_t own) {
  std::set<std::int64_t> samples = {own};
  for (std::int64_t n = 1; n <= kMostMicroBatch; n *= 2) samples.insert(n);
  return {samples.rbegin(), samples.rend()};
}

}  // namespace

const std::vector<std::string>& SearchedKeys() {
  static const std::vector<std::string> keys = {
      "parallelism.dp",         "parallelism.tp",        "parallelism.pp",
      "parallelism.cp",         "parallelism.schedule",  "parallelism.sequence_parallel",
      "parallelism.zero_stage", "training.micro_batch",  "parallelism.virtual_stages",
      "recompute.granularity",  "recompute.modules",     "parallelism.layers_per_stage",
      "parallelism.ep",         "parallelism.expert_tp",
  };
  return keys;
}

// The schedule's name in a recipe, if there is a pipeline.
static const char* ScheduleWord(const Layout& layout) {
  if (layout.zero_bubble) return "zero_bubble";
  return layout.virtual_stages > 1 ? "interleaved" : "1f1b";
}

std::string Layout::ScheduleText() const { return pp == 1 ? "-" : ScheduleWord(*this); }

std::string Layout::RecomputeText() const {
  return granularity == "selective" ? fmt::format("{}", fmt::join(modules, "+")) : granularity;
}

std::string Layout::ToString() const {
  std::string text = fmt::format("dp {} tp {} pp {}", dp, tp, pp);
  if (cp > 1) text += fmt::format(" cp {}", cp);
  if (ep > 1) text += fmt::format(" ep {}", ep);
  if (virtual_stages > 1) text += fmt::format(", interleaved, {} chunks a stage", virtual_stages);
  if (sequence_parallel) text += ", sequence parallel";
  if (expert_tp == 1) text += ", whole experts";
  if (zero_bubble) text += ", zero bubble";
  if (!layers_per_stage.empty()) text += fmt::format(", layers {}", fmt::join(layers_per_stage, "+"));
  if (zero_stage > 0) text += fmt::format(", ZeRO-{}", zero_stage);
  return text + fmt::format(", micro-batch {}, recompute {}", micro_batch, RecomputeText());
}

void SetLayout(const Layout& layout, Recipe* recipe) {
  recipe::Parallelism& p = recipe->parallelism;
  p.dp = layout.dp;
  p.tp = layout.tp;
  p.pp = layout.pp;
  p.cp = layout.cp;
  p.ep = layout.ep;
  p.expert_tp = layout.expert_tp;
  p.virtual_stages = layout.virtual_stages;
  p.zero_stage = layout.zero_stage;
  p.sequence_parallel = layout.sequence_parallel;
  const bool named = layout.zero_bubble || layout.virtual_stages > 1;
  p.schedule = !layout.schedule.empty() ? layout.schedule : named ? layout.ScheduleText() : "auto";
  p.layers_per_stage = layout.layers_per_stage;
  recipe->training.micro_batch = layout.micro_batch;
  recipe->recompute.granularity = layout.granularity;
  if (layout.granularity == "selective") recipe->recompute.modules = layout.modules;
}

SearchSpace::SearchSpace(const Recipe& recipe, std::int64_t world, const std::vector<std::string>& fixed)
    : recipe_(recipe), fixed_(fixed.begin(), fixed.end()), world_(world) {}

std::vector<SearchSpace::Group> SearchSpace::Groups() const {
  std::vector<Group> groups;
  for (std::int64_t tp : Values("parallelism.tp", recipe_.parallelism.tp, Divisors(world_))) {
    if (!model::SplitsOver(recipe_, tp)) continue;
    if (recipe_.precision.fp8_head && tp > 1) continue;
    for (std::int64_t cp : Values("parallelism.cp", recipe_.parallelism.cp, Divisors(world_ / tp))) {
      const std::int64_t length = recipe_.data.sequence_length;
      if (world_ % (tp * cp) != 0 || (cp > 1 && length % (2 * cp) != 0)) continue;
      for (bool split : {false, true}) {
        if (Fixed("parallelism.sequence_parallel") && split != recipe_.parallelism.sequence_parallel)
          continue;
        if (split && (tp == 1 || length / cp % tp != 0)) continue;
        for (const std::int64_t ep : ExpertRanks(world_ / (tp * cp))) {
          for (const std::int64_t expert_tp : ExpertTps(tp, split))
            groups.push_back(
                {.tp = tp, .cp = cp, .ep = ep, .expert_tp = expert_tp, .sequence_parallel = split});
        }
      }
    }
  }
  std::stable_sort(groups.begin(), groups.end(),
                   [](const Group& a, const Group& b) { return a.split() < b.split(); });
  return groups;
}

std::vector<Layout> SearchSpace::Layouts(const Group& group) const {
  std::vector<Layout> layouts;
  Layout layout;
  layout.tp = group.tp;
  layout.cp = group.cp;
  layout.ep = group.ep;
  layout.expert_tp = group.expert_tp;
  layout.sequence_parallel = group.sequence_parallel;
  if (Fixed("parallelism.schedule")) layout.schedule = recipe_.parallelism.schedule;
  const recipe::Parallelism& p = recipe_.parallelism;
  const std::int64_t rest = world_ / (group.tp * group.cp * group.ep);
  for (std::int64_t pp : Values("parallelism.pp", p.pp, Divisors(rest))) {
    layout.pp = pp;
    layout.dp = rest / pp;
    if (rest % pp != 0 || pp > recipe_.model.layers || (Fixed("parallelism.dp") && layout.dp != p.dp))
      continue;
    for (std::int64_t chunks : Values("parallelism.virtual_stages", p.virtual_stages, ChunkCounts(pp))) {
      layout.virtual_stages = chunks;
      for (bool zero_bubble : {false, true}) {
        layout.zero_bubble = zero_bubble;
        if (SuitsSchedule(layout)) AddCuts(layout, &layouts);
      }
    }
  }
  return layouts;
}

std::vector<Recomputation> SearchSpace::Recomputations(const Layout& layout) const {
  if (Fixed("recompute.granularity") || Fixed("recompute.modules"))
    return {{recipe_.recompute.granularity, recipe_.recompute.modules}};
  std::vector<Recomputation> ways;
  const recipe::Recompute& own = recipe_.recompute;
  for (const Recomputation& way : AllRecomputations()) {
    if (!layout.zero_bubble || way.zero_bubble || way.repeats == RepeatsOf(own)) ways.push_back(way);
  }
  return ways;
}

std::vector<std::int64_t> SearchSpace::ExpertRanks(std::int64_t ranks) const {
  const std::int64_t experts = std::max<std::int64_t>(1, recipe_.model.experts);
  std::vector<std::int64_t> lawful;
  for (const std::int64_t ep :
       Values("parallelism.ep", recipe_.parallelism.ep, Divisors(std::gcd(experts, ranks)))) {
    if (experts % ep == 0 && ranks % ep == 0) lawful.push_back(ep);
  }
  return lawful;
}

std::vector<std::int64_t> SearchSpace::ExpertTps(std::int64_t tp, bool sequence_parallel) const {
  const recipe::Parallelism& p = recipe_.parallelism;
  const bool whole = recipe_.model.experts > 0 && sequence_parallel;
  if (!Fixed("parallelism.expert_tp"))
    return whole ? std::vector<std::int64_t>{0, 1} : std::vector<std::int64_t>{0};
  if (p.expert_tp == 1 && !whole && tp > 1) return {};
  if (p.expert_tp > 1 && p.expert_tp != tp) return {};
  return {p.expert_tp};
}

// Chunks a stage that cut the layers evenly, one, and as many as the recipe has.
std::vector<std::int64_t> SearchSpace::ChunkCounts(std::int64_t pp) const {
  std::vector<std::int64_t> counts = {1};
  for (std::int64_t v = 2; pp > 1 && pp * v <= recipe_.model.layers; ++v) {
    const bool own = v == recipe_.parallelism.virtual_stages;
    if (own || recipe_.model.layers % (pp * v) == 0) counts.push_back(v);
  }
  return counts;
}

bool SearchSpace::SuitsSchedule(const Layout& layout) const {
  const std::string& fixed = layout.schedule;
  const std::int64_t chunks = layout.pp * layout.virtual_stages;
  if (chunks > recipe_.model.layers || (layout.virtual_stages > 1 && layout.pp == 1)) return false;
  if (layout.zero_bubble && (layout.pp == 1 || layout.virtual_stages > 1)) return false;
  if (fixed.empty() || fixed == "auto") return fixed.empty() || !layout.zero_bubble;
  return fixed == ScheduleWord(layout);
}

// With the layers balanced, and as the recipe cuts them, where it does into as many chunks.
void SearchSpace::AddCuts(Layout layout, std::vector<Layout>* layouts) const {
  const std::vector<std::int64_t>& own = recipe_.parallelism.layers_per_stage;
  const bool fixed = Fixed("parallelism.layers_per_stage") && !own.empty();
  if (!fixed) AddStates(layout, layouts);
  if (own.empty() || static_cast<std::int64_t>(own.size()) != layout.pp * layout.virtual_stages) return;
  layout.layers_per_stage = own;
  AddStates(layout, layouts);
}

// As recipe/rules_precision.cpp has it: products in fp8 take multiples of 16 tokens, also of half a
// microbatch.
bool SearchSpace::HeadHasFp8Sizes(const Layout& layout) const {
  constexpr std::int64_t kMultiple = 16;
  const bool halves = layout.cp > 1 && recipe_.parallelism.overlap != "off" && layout.micro_batch % 2 == 0;
  const std::int64_t parts = halves ? 2 * layout.cp : layout.cp;
  return layout.micro_batch * recipe_.data.sequence_length / parts % kMultiple == 0;
}

// With experts ZeRO-2 and 3 have no estimates (search/fold.h): only that which the recipe has is compiled.
std::vector<std::int64_t> SearchSpace::ZeroStages() const {
  const std::int64_t own = recipe_.parallelism.zero_stage;
  std::vector<std::int64_t> all = {0, 1, 2, 3};
  if (recipe_.model.experts > 0)
    std::erase_if(all, [&](std::int64_t zero) { return zero > 1 && zero != own; });
  return Values("parallelism.zero_stage", own, std::move(all));
}

// With each ZeRO stage and micro-batch.
void SearchSpace::AddStates(Layout layout, std::vector<Layout>* layouts) const {
  const std::vector<std::int64_t> batches = recipe::BatchSizes(recipe_.training);
  const std::int64_t own_samples = recipe_.training.micro_batch;
  for (std::int64_t zero : ZeroStages()) {
    layout.zero_stage = zero;
    const std::int64_t replicas = layout.dp * layout.cp * layout.ep;
    if (zero > 0 && replicas == 1 && !Fixed("parallelism.zero_stage")) continue;  // shards nothing
    if (zero > 1 && layout.zero_bubble && replicas > 1) continue;
    if (zero > 2 && recipe_.precision.compute == "fp8") continue;
    for (std::int64_t samples : Values("training.micro_batch", own_samples, MicroBatches(own_samples))) {
      if (samples % recipe_.model.sample_group != 0) continue;  // recipe/rules_training.cpp
      layout.micro_batch = samples;
      const std::int64_t group =
          samples * layout.dp * layout.ep * (layout.virtual_stages > 1 ? layout.pp : 1);
      std::int64_t microbatches = 0;  // of all sizes of the batch, which have a program each
      bool whole = true;
      for (const std::int64_t batch : batches) {
        whole = whole && batch % group == 0;
        microbatches += batch / (samples * layout.dp * layout.ep);
      }
      if (!whole || microbatches * layout.pp * layout.virtual_stages > recipe::kMostTurns) continue;
      if (recipe_.precision.fp8_head && !HeadHasFp8Sizes(layout)) continue;
      layouts->push_back(layout);
    }
  }
}

}  // namespace engine::search
