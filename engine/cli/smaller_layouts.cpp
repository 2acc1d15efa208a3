#include "engine/cli/smaller_layouts.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <utility>
#include <vector>

#include "engine/recipe/batch_size.h"

namespace engine::cli {

namespace {

std::int64_t SamplesAtOnce(std::int64_t dp, const recipe::Recipe& recipe) {
  return recipe.training.micro_batch * dp * recipe.parallelism.ep;
}

// Whether every size of the global batch is whole microbatches of so many data-parallel ranks.
bool Divides(std::int64_t dp, const recipe::Recipe& recipe) {
  const std::vector<std::int64_t> sizes = recipe::BatchSizes(recipe.training);
  return std::all_of(sizes.begin(), sizes.end(),
                     [&](std::int64_t size) { return size % SamplesAtOnce(dp, recipe) == 0; });
}

// Up to `most` data-parallel ranks, in the order in which they are tried: those with which an iteration has the fewest microbatches, and of these
// first the ones that leave no sample empty, and then the most.
std::vector<std::int64_t> ByTime(std::int64_t most, const recipe::Recipe& recipe) {
  std::vector<std::int64_t> ranks;
  for (std::int64_t dp = most; dp > 0; --dp) ranks.push_back(dp);
  const auto key = [&](std::int64_t dp) {
    const bool pads = !Divides(dp, recipe);
    recipe::Recipe smaller;
    smaller.training = recipe.training;
    smaller.training.pad_batch |= pads;
    smaller.parallelism = recipe.parallelism;
    smaller.parallelism.dp = dp;
    return std::pair(smaller.microbatches(), pads);
  };
  std::stable_sort(ranks.begin(), ranks.end(),
                   [&](std::int64_t a, std::int64_t b) { return key(a) < key(b); });
  return ranks;
}

}  // namespace

std::vector<std::string> SettingsOf(const launch::AttemptSize& size, const recipe::Recipe& recipe) {
  if (size.dp == recipe.parallelism.dp) return {};
  std::vector<std::string> sets = {fmt::format("parallelism.dp={}", size.dp)};
  if (recipe.cluster.nodes > 0) sets.push_back(fmt::format("cluster.nodes={}", size.nodes));
  if (!Divides(size.dp, recipe) && !recipe.training.pad_batch) sets.emplace_back("training.pad_batch=true");
  return sets;
}

std::optional<launch::AttemptSize> SmallerLayouts::For(std::int64_t hosts, std::int64_t least) {
  const std::pair<std::int64_t, std::int64_t> key(hosts, least);
  auto found = found_.find(key);
  if (found == found_.end()) {
    std::shared_future<launch::AttemptSize> search =
        std::async(std::launch::async, [this, hosts, least] { return Search(hosts, least); });
    found = found_.emplace(key, std::move(search)).first;
  }
  if (found->second.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return std::nullopt;
  return found->second.get();
}

launch::AttemptSize SmallerLayouts::Search(std::int64_t hosts, std::int64_t least) const {
  const std::int64_t per_host = recipe_.world_size() / nodes_;
  const std::int64_t per_copy =
      recipe_.world_size() / recipe_.parallelism.dp;  // ranks of one copy of the model
  const std::int64_t most = std::min(hosts * per_host / per_copy, recipe_.parallelism.dp - 1);
  const auto search = [&](std::int64_t unit) -> launch::AttemptSize {
    for (const std::int64_t dp : ByTime(most, recipe_)) {
      const std::int64_t units = dp * per_copy / unit;
      std::int64_t nodes = std::max((dp * per_copy + per_host - 1) / per_host, least);
      while (nodes <= hosts && units % nodes != 0) ++nodes;
      const launch::AttemptSize size{.nodes = nodes, .dp = dp};
      if (nodes <= hosts && works_(SettingsOf(size, recipe_))) return size;
    }
    return {};
  };
  const launch::AttemptSize whole_groups = search(recipe_.parallelism.tp);
  return whole_groups.nodes > 0 ? whole_groups : search(1);
  return {};
}

}  // namespace engine::cli
