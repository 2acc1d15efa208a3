// The rule of fusion for norms that run again in the backward phase. It is written by hand: what it finds is no
// composition, as it also takes the statistics of the forward pass in place of those that are made again.
#pragma once

#include "engine/compile/fuse.h"
#include "engine/compile/rewriter.h"

namespace engine::compile {

// A norm that is run again for weight gradients alone: its own gradient reads the same x, and makes the norm's output on
// the way. The weight gradients, which nothing waits for, follow it. What is quantised by the last iteration's scale is
// made by itself, of x and the statistics that are there.
void FuseRepeatedNorms(const FuseOptions& options, Rewriter* graph);

}  // namespace engine::compile
