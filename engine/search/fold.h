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

namespace engine::search {

struct Estimate {
  plan::MemoryBreakdown memory;  // of the stage with the largest arena
  std::int64_t arena_bytes = 0;  // its
  std::int32_t stage = 0;
  double iteration_s = 0;
  double held_up_s = 0;  // of it: what reductions hold up the passes of halves that run in turns
  // Such halves would wait for each other, so that the layout has no plan with them; nothing else is set. Fold
  // estimates whole microbatches then.
  bool halves_refused = false;
};

// Estimates recipes that differ in layout, batch and recomputation alone: one model, precision, optimizer and
// cluster, one world where the device is a CPU. Not for several threads at once.
class Folder {
 public:
  explicit Folder(compile::CompileOptions options);
  ~Folder();

  // The recipe must be valid. Error: a layout that the model does not allow. Of a layout that takes longer
  // than `slow_s` the seconds may be fewer than its own, but are more than `slow_s`: its passes need not be
  // played for that.
  absl::StatusOr<Estimate> Fold(const recipe::Recipe& recipe,
                                double slow_s = std::numeric_limits<double>::infinity());

  // Bytes of parameters, gradients and optimizer, and of the blocks' inputs that every microbatch under way
  // keeps, of the stage that has most: no way to recompute needs less.
  absl::StatusOr<std::int64_t> LeastBytes(const recipe::Recipe& recipe);

  // Seconds that no plan of this layout takes less than, whichever way it recomputes, as far as is known from
  // layouts of larger micro-batches that were folded before: a sample takes longer in a smaller one. 0:
  // nothing is known.
  double LeastSeconds(const recipe::Recipe& recipe);

  std::int64_t probes() const;  // plans compiled so far

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace engine::search
