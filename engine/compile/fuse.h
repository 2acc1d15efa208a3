// The fusion pass: chains of plain ops in a local graph become the fused ops (ops/fused.h) that the device
// has kernels for. It changes what is read and written, never what is computed: a fused op is its
// composition.
//
// Runs after placement, so a conversion between two ops keeps them apart by itself.
#pragma once

#include <functional>

#include "engine/compile/placements.h"
#include "engine/compile/quantize.h"
#include "engine/plan/plan.h"

namespace engine::compile {

// On every device: an input is converted once in a chunk, not in each layer; queries, keys and values that
// would be exchanged one by one are exchanged whole, before they are cut apart; linear followed by bias_add
// alone becomes one linear with three inputs. The rest as profile.fuses says. Which fused ops there are and in what
// order they are looked for is ops/fusion.h; two rules stay by hand (compile/fuse_norm.h, compile/fuse_attention.h).
struct FuseOptions {
  const plan::DeviceProfile* profile = nullptr;
  std::int64_t logits_bytes = 0;  // budget of one chunk's logits in linear_cross_entropy
  Fp8Options fp8 = {};            // what is quantised on the way
  // That the local graph was placed from: products of its blocks are quantised, and names of its tensors are the states'.
  const graph::Graph* logical = nullptr;
  // Pipeline chunk of a unit: nodes of different chunks stay apart.
  std::function<std::int32_t(std::int32_t unit)> chunk_of = {};
};
void Fuse(const FuseOptions& options, LocalGraph* graph);

}  // namespace engine::compile
