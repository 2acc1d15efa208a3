// Pipeline schedules: in which order each stage runs the forward and backward passes of its chunks.
#pragma once

#include <cstdint>
#include <vector>

namespace engine::plan {

struct Turn {
  bool backward = false;
  std::int32_t chunk = 0;  // global index: chunk c is on stage c mod stages
  std::int32_t microbatch = 0;
};

// One-forward-one-backward (PipeDream-flush, Narayanan et al., arXiv:2006.09503) of `stages` stages with one
// chunk each: stage r runs min(stages − r − 1, microbatches) forwards ahead, then alternates, then drains.
std::vector<Turn> OneForwardOneBackward(std::int64_t stages, std::int64_t stage, std::int64_t microbatches);

// Interleaved 1F1B (Narayanan et al., arXiv:2104.04473) with `chunks_per_stage` ≥ 2 chunks a stage;
// microbatches must be a multiple of stages. Forward turns go through groups of `stages` microbatches, chunk
// by chunk; backward turns likewise from the last chunk; 2·(stages − r − 1) + (chunks_per_stage − 1)·stages
// forwards run ahead.
std::vector<Turn> InterleavedOneForwardOneBackward(std::int64_t stages, std::int64_t chunks_per_stage,
                                                   std::int64_t stage, std::int64_t microbatches);

// The turns of microbatches that are cut into `lanes` parts each: turn m becomes those of lanes · m,
// lanes · m + 1, …
std::vector<Turn> InLanes(const std::vector<Turn>& turns, std::int64_t lanes);

// Every microbatch through every chunk of the stage, forward only, in the order in which they arrive.
std::vector<Turn> ForwardOnly(std::int64_t stages, std::int64_t chunks_per_stage, std::int64_t stage,
                              std::int64_t microbatches);

// Cuts items with these costs into `parts` contiguous non-empty parts so that the dearest part is as cheap as
// possible, and among such cuts the sum of squares is least. `last_extra` is added to the last part. Returns
// the number of items of each part. parts ≤ costs.size().
std::vector<std::int64_t> BalancedCut(const std::vector<double>& costs, std::int64_t parts,
                                      double last_extra);

}  // namespace engine::plan
