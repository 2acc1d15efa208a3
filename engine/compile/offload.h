// Activations that wait in the host's memory: those of some layers leave the device behind the forward pass, and their
// bytes in the microbatch's slot hold what a later layer keeps, until the backward pass is through with that. Copies run
// beside computation, on plan::kHostStream.
#pragma once

#include <absl/container/flat_hash_map.h>

#include <cstdint>
#include <vector>

#include "engine/compile/cut.h"
#include "engine/compile/draft.h"
#include "engine/plan/plan.h"

namespace engine::compile {

// A value that waits in the host's memory, LocalValue of the plan.
struct HostedValue {
  std::int32_t value = -1;
  std::int32_t successor =
      -1;  // the value that takes its place in the slot: of the layer that is `distance` later
  std::int64_t host_offset = 0;  // among what the host keeps of a microbatch
};

struct HostedValues {
  std::vector<HostedValue> values;  // in the order in which they are made
  std::int64_t bytes = 0;           // of a microbatch
};

// Of the chunk's first `layers` layers, what is saved (SavedValues) from the forward pass to the backward pass. A layer's
// successor is the one (layers of the chunk − `layers`) behind it: so many have places in the slot. What has no
// like there, is read outside of its turn (by the layers behind the successor, by a weights pass, by another chunk), or has
// less than a hundredth of the bytes of its layer's largest, stays.
HostedValues FindHosted(const plan::Plan& plan, const CutGraph& graph, std::int32_t chunk,
                        const std::vector<std::int32_t>& saved, std::int64_t layers);

// Puts the copies into the passes: to the host when a value is made, and what writes at its place then waits for that;
// from the host when the backward pass has read its successor for the last time, and its first reader waits for that.
void CopyToHost(const HostedValues& hosted, const plan::Plan& plan, DraftSegment* forward);
void CopyFromHost(const HostedValues& hosted, const plan::Plan& plan, DraftSegment* backward);

}  // namespace engine::compile
