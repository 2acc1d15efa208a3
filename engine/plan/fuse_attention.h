// The part of fusion (plan/fuse.h) that does not depend on the format of products, before they are quantised:
// what is exchanged whole or once, biases of products, attention on packed tensors.
#pragma once

#include "engine/plan/fuse.h"

namespace engine::plan {

void FuseAttention(const FuseOptions& options, LocalGraph* graph);

}  // namespace engine::plan
