// What the plan of a layout needs and takes, without the plan itself: some thousand layouts a second.
//
// The blocks of a model are alike, so a chunk of n blocks needs what a chunk of few needs, and for each block
// more what one block adds. Plans of few blocks, microbatches and stages, "probes", are compiled as any other
// plan, once for all layouts that differ in dp, pp, schedule, ZeRO or batch alone, and read:
//
//   bytes that add up (slots, quantised weights)            grow by the same for each block
//   largest values (transients of a segment)                stay, from a few blocks on, which is looked at
//   seconds of a segment's computation and conversions      grow by the same for each block
//
// Models with experts are folded at ZeRO stages 0 and 1; at 2 and 3 their plans are compiled whole.
//
// Parameters, their buckets, ZeRO's shards and the update segment are made for the layout itself, by
// compile/buckets.h and compile/update.h. The schedule is the plan's (plan/schedule.h), played chunk by chunk
// instead of instruction by instruction, and where microbatches are many, continued at the pace that it has
// reached.
//
// Bytes are exactly the plan's. Seconds are about the prediction's (predict/predict.h), which plays instruction
// by instruction: mostly within a percent, worse in iterations of few microbatches, most of which is the
// exchange of gradients behind the last of them.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>

#include "engine/base/status.h"
#include "engine/compile/compile.h"
#include "engine/recipe/recipe.h"
#include "engine/search/estimator.h"

namespace engine::search {

// Of models whose layers are equal (model/layers.h).
class Folder final : public Estimator {
 public:
  explicit Folder(compile::CompileOptions options);
  ~Folder() override;

  absl::StatusOr<Estimate> Fold(const recipe::Recipe& recipe,
                                double slow_s = std::numeric_limits<double>::infinity()) override;
  absl::StatusOr<std::int64_t> LeastBytes(const recipe::Recipe& recipe) override;
  double LeastSeconds(const recipe::Recipe& recipe) override;
  std::int64_t probes() const override;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace engine::search
