// The part of fusion (compile/fuse.h) that does not depend on the format of products, before they are quantised:
// what is exchanged whole or once, biases of products, attention on packed tensors.
#pragma once

#include "engine/compile/fuse.h"

namespace engine::compile {

void FuseAttention(const FuseOptions& options, LocalGraph* graph);

}  // namespace engine::compile
