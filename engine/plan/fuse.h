// The fusion pass: chains of plain ops in a local graph become the fused ops (ops/fused.h) that the device
// has kernels for. It changes what is read and written, never what is computed: a fused op is its
// composition.
//
// Runs after placement, so a conversion between two ops keeps them apart by itself.
#pragma once

#include <functional>
#include <string>

#include "engine/plan/placements.h"
#include "engine/plan/plan.h"

namespace engine::plan {

// linear followed by bias_add alone becomes one linear with three inputs, on every device; the rest as
// profile.fuses says.
struct FuseOptions {
  const DeviceProfile* profile = nullptr;
  std::int64_t logits_bytes = 0;  // budget of one chunk's logits in linear_cross_entropy
  // Not empty: the products of `layers` layers are quantised (plan/quantize.h), with gradients in this
  // format.
  std::string fp8_gradients;
  std::int32_t layers = 0;
  // Pipeline chunk of a layer: nodes of different chunks stay apart.
  std::function<std::int32_t(std::int32_t layer)> chunk_of;
};
void Fuse(const FuseOptions& options, LocalGraph* graph);

}  // namespace engine::plan
