// The layouts that a search looks at: which there are, which share what, and which cannot win over which.
// What the recipe itself says of a key is always among them, so that fixing a key leaves a part of the same
// space.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/recipe/recipe.h"

namespace engine::search {

// The keys that a search may change.
const std::vector<std::string>& SearchedKeys();

struct Layout {
  std::int64_t dp = 1, tp = 1, pp = 1, cp = 1, ep = 1;
  std::int64_t expert_tp = 0;  // 0: tp splits experts; 1: each of its ranks has whole ones
  std::int64_t virtual_stages = 1;
  std::int64_t zero_stage = 0;
  std::int64_t micro_batch = 1;
  bool sequence_parallel = false;
  bool zero_bubble = false;
  std::string granularity = "none";
  std::vector<std::string> modules;  // of selective
  std::string schedule;              // as the recipe writes it, where it is fixed; empty: as zero_bubble says
  std::vector<std::int64_t> layers_per_stage;  // the recipe's own; empty: balanced by cost

  bool operator==(const Layout&) const = default;
  std::string ToString() const;  // "dp 4 tp 8 pp 2, sequence parallel, ZeRO-1, micro-batch 1, recompute full"
  std::string ScheduleText() const;   // as a plan names it; "-" without a pipeline
  std::string RecomputeText() const;  // "none", "full", "norm+activation"
};

void SetLayout(const Layout& layout, recipe::Recipe* recipe);

// A way to recompute.
struct Recomputation {
  std::string granularity;
  std::vector<std::string> modules;
  // Kinds of work that it repeats, as bits. What repeats all that another one does, and more, needs less
  // memory than that, and never less time.
  unsigned repeats = 0;
  bool zero_bubble = false;  // tried with a zero bubble too: there the others keep about as much
};

class SearchSpace {
 public:
  // `recipe` must outlive it. `fixed`, of SearchedKeys(): these keep the recipe's values.
  SearchSpace(const recipe::Recipe& recipe, std::int64_t world, const std::vector<std::string>& fixed);

  // Layouts of different groups share no probes (search/fold.h), so that groups can be estimated side by side.
  // Those that split a microbatch least come first.
  struct Group {
    std::int64_t tp = 1, cp = 1, ep = 1;
    std::int64_t expert_tp = 0;
    bool sequence_parallel = false;
    std::int64_t split() const { return tp * cp; }
  };
  std::vector<Group> Groups() const;

  // The layouts of a group, without a way to recompute; micro-batches from the largest down.
  std::vector<Layout> Layouts(const Group& group) const;

  // The ways to recompute that are tried with such a layout, those that repeat least first.
  std::vector<Recomputation> Recomputations(const Layout& layout) const;

 private:
  bool Fixed(const std::string& key) const { return fixed_.contains(key); }
  std::vector<std::int64_t> Values(const std::string& key, std::int64_t own,
                                   std::vector<std::int64_t> all) const {
    return Fixed(key) ? std::vector<std::int64_t>{own} : std::move(all);
  }
  // Of ranks of ep, with the recipe's own; 1 without experts.
  std::vector<std::int64_t> ExpertRanks(std::int64_t ranks) const;
  // What tp may do with experts.
  std::vector<std::int64_t> ExpertTps(std::int64_t tp, bool sequence_parallel) const;
  std::vector<std::int64_t> ChunkCounts(std::int64_t pp) const;
  std::vector<std::int64_t> ZeroStages() const;
  bool SuitsSchedule(const Layout& layout) const;
  bool HeadHasFp8Sizes(const Layout& layout) const;
  void AddCuts(Layout layout, std::vector<Layout>* layouts) const;
  void AddStates(Layout layout, std::vector<Layout>* layouts) const;

  const recipe::Recipe& recipe_;
  const std::set<std::string> fixed_;
  const std::int64_t world_;
};

}  // namespace engine::search
