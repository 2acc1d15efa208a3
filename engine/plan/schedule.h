// Pipeline schedules: in which order each stage runs the passes of its chunks.
#pragma once

#include <cstdint>
#include <vector>

namespace engine::plan {

// The passes of a microbatch through a chunk, in order. Where a schedule has no weights turns, the backward
// pass makes all gradients; else those of weights that nothing before the update needs are left to kWeights.
enum class Pass : std::uint8_t { kForward, kBackward, kWeights };

struct Turn {
  Pass pass = Pass::kForward;
  std::int32_t chunk = 0;  // global index: chunk c is on stage c mod stages
  std::int32_t microbatch = 0;
};

// One-forward-one-backward (PipeDream-flush, Narayanan et al., arXiv:2006.09503) of `stages` stages with one
// chunk each: stage r runs min(stages − r − 1, microbatches) forwards ahead, then alternates, then drains.
std::vector<Turn> OneForwardOneBackward(std::int64_t stages, std::int64_t stage, std::int64_t microbatches);

// ZB-H1 of "Zero Bubble Pipeline Parallelism" (Qi et al., arXiv:2401.10241): 1F1B in which stage r runs the
// weights pass of microbatch i behind the backward pass of microbatch i + r, the last ones at the end.
//
// Let the passes take F, B ≥ W and W, and microbatches m ≥ stages p. The last stage gets its first microbatch
// after (p − 1)·F and never waits again; it puts p weights passes off behind its last backward pass, which
// ends at (p − 1)·F + m·(F + B) + (m − p)·W. That reaches stage r after (p − 1 − r)·B, and r + 1 weights
// passes are left there: stage r ends at m·(F + B + W) + (p − 1)·(F + B − W) − r·(B − W). So the bubble of
// the whole is (p − 1)·(F + B − W), against (p − 1)·(F + B + W) of 1F1B, and where B = W no stage ends before
// another.
//
// Slots: when stage r has run its k-th forward pass, backward passes are done up to k − (p − r), and weights
// passes r behind them, up to k − p: it holds p microbatches, as stage 0 of 1F1B does.
std::vector<Turn> ZeroBubble(std::int64_t stages, std::int64_t stage, std::int64_t microbatches);

// Interleaved 1F1B (Narayanan et al., arXiv:2104.04473) with `chunks_per_stage` ≥ 2 chunks a stage;
// microbatches must be a multiple of stages. Forward turns go through groups of `stages` microbatches, chunk
// by chunk; backward turns likewise from the last chunk; 2·(stages − r − 1) + (chunks_per_stage − 1)·stages
// forwards run ahead.
std::vector<Turn> InterleavedOneForwardOneBackward(std::int64_t stages, std::int64_t chunks_per_stage,
                                                   std::int64_t stage, std::int64_t microbatches);

// Every microbatch through every chunk of the stage, forward only, in the order in which they arrive.
std::vector<Turn> ForwardOnly(std::int64_t stages, std::int64_t chunks_per_stage, std::int64_t stage,
                              std::int64_t microbatches);

// Cuts items with these costs into `parts` contiguous non-empty parts so that the dearest part is as cheap as
// possible, and among such cuts the sum of squares is least. `last_extra` is added to the last part. Returns
// the number of items of each part. parts ≤ costs.size().
std::vector<std::int64_t> BalancedCut(const std::vector<double>& costs, std::int64_t parts,
                                      double last_extra);

}  // namespace engine::plan
