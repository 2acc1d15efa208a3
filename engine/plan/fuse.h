// The fusion pass: chains of plain ops in a local graph become the fused ops (ops/fused.h) that the device
// has kernels for. It changes what is read and written, never what is computed: a fused op is its
// composition.
//
// Runs after placement, so a conversion between two ops keeps them apart by itself.
#pragma once

#include "engine/plan/placements.h"
#include "engine/plan/plan.h"

namespace engine::plan {

// linear followed by bias_add alone becomes one linear with three inputs, on every device; the rest as
// profile.fuses says. `logits_bytes`: budget of one chunk's logits in linear_cross_entropy.
void Fuse(const DeviceProfile& profile, std::int64_t logits_bytes, LocalGraph* graph);

}  // namespace engine::plan
