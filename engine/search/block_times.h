// Seconds of one block for one sample, as plans of few blocks have shown, and what they say of layouts that no plan
// has been made for.
#pragma once

#include <absl/container/flat_hash_map.h>

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "engine/recipe/recipe.h"
#include "engine/search/chunk_facts.h"
#include "engine/search/fold_keys.h"

namespace engine::search {

// Remembers what a block's passes take, and bounds by that the layouts of smaller micro-batches: a sample takes longer
// in a smaller one.
class BlockTimes {
 public:
  // Seconds of a block's passes of a microbatch that is cut into `halves`. Says nothing of schedules that make the
  // gradients of weights in passes of their own.
  void Remember(const recipe::Recipe& recipe, std::int64_t halves, const PassTime& forward,
                const PassTime& backward);

  // Seconds that an iteration takes at least, of chunks of so many blocks; 0: nothing is known.
  double LeastSeconds(const recipe::Recipe& recipe, std::int64_t halves,
                      const std::vector<std::int64_t>& blocks) const;

 private:
  struct OfSample {
    double forward_s = 0, backward_s = 0;  // the backward pass makes the gradients of weights
  };
  // By samples of a micro-batch and halves of it.
  using Known = std::map<std::pair<std::int64_t, std::int64_t>, OfSample>;
  absl::flat_hash_map<BlockKey, Known> known_;
};

}  // namespace engine::search
