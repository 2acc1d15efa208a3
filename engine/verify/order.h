// A check of VerifySegments (verify/verify.h): the turns of two microbatches that run a segment at once.
#pragma once

#include <cstdint>

#include "engine/base/status.h"
#include "engine/plan/plan.h"

namespace engine::verify {

// Each of the two runs every instruction that is not joint, the second never ahead of the first, whose sums
// it adds to; the joint ones run once, when both have passed them. None writes where values of both lie side
// by side that another has still to read, nor adds to a sum out of turn. lanes: whether two run the segment.
absl::Status VerifyOrder(const plan::Plan& plan, std::int32_t stage, const plan::Segment& segment,
                         bool lanes);

}  // namespace engine::verify
