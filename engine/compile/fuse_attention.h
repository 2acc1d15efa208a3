// The rules of fusion for what attention reads, before products are quantised: positions are converted once in a chunk,
// queries, keys and values are exchanged whole, and attention works on packed tensors. They are written by hand, as they
// find more than a composition: all or nothing of what shares one cut, forward and backward, is packed.
#pragma once

#include "engine/compile/fuse.h"
#include "engine/compile/rewriter.h"

namespace engine::compile {

void FuseAttention(const FuseOptions& options, Rewriter* graph);

}  // namespace engine::compile
