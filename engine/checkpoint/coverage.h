// Proof that a tensor's pieces cover it exactly once.
#pragma once

#include <absl/status/status.h>

#include <string>
#include <vector>

#include "engine/checkpoint/box.h"

namespace engine::checkpoint {

// Every box must lie inside the shape, no two may share an element, and together they must fill it. The error
// names the tensor and a box: the one outside, the two that overlap, or a part that nobody writes. Cost: n
// log n for cuts along any mix of dims (grids, flat ranges), n² only where no plane separates the boxes.
absl::Status CheckCoverage(const std::string& tensor, const Shape& shape, const std::vector<Box>& boxes);

}  // namespace engine::checkpoint
