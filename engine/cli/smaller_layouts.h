// The layouts of a run for fewer hosts than it has begun with: fewer data-parallel ranks, and all else as before.
#pragma once

#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/launch/host_table.h"
#include "engine/recipe/recipe.h"

namespace engine::cli {

// The --set options that make the recipe one for an attempt of that size; none where that is the recipe's own size.
std::vector<std::string> SettingsOf(const launch::AttemptSize& size, const recipe::Recipe& recipe);

// The largest attempts that hosts have room for, each found once.
class SmallerLayouts {
 public:
  // Whether the recipe with these settings is right, and can be compiled for its devices. It is asked in another thread.
  using Works = std::function<bool(const std::vector<std::string>& sets)>;

  // `nodes`: hosts that the recipe's own layout is for; each has room for as many ranks as it has there.
  SmallerLayouts(const recipe::Recipe& recipe, std::int64_t nodes, Works works)
      : recipe_(recipe), nodes_(nodes), works_(std::move(works)) {}

  // As HostTable::Options::fit has it. Of the layouts that work one whose iterations have the fewest microbatches, and of these
  // one that leaves no sample of the last ones empty (training.pad_batch), else the one with the most data-parallel ranks; on as few hosts as have room
  // for it and share its ranks equally, but on `least` or more. Layouts that split no tensor-parallel group between hosts come first.
  std::optional<launch::AttemptSize> For(std::int64_t hosts, std::int64_t least);

 private:
  launch::AttemptSize Search(std::int64_t hosts, std::int64_t least) const;

  const recipe::Recipe& recipe_;
  const std::int64_t nodes_;
  const Works works_;
  std::map<std::pair<std::int64_t, std::int64_t>, std::shared_future<launch::AttemptSize>>
      found_;  // by hosts, and the least of them
};

}  // namespace engine::cli
