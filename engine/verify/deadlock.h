// Part of VerifyCommunication: why stages that are walked together cannot go on.
#pragma once

#include "engine/base/status.h"
#include "engine/verify/positions.h"

namespace engine::verify {

// Of stages of which some are not done and none can go on: an error that names the shortest cycle of stages
// that wait for each other, or else the shortest way to one that has ended.
absl::Status DeadlockAt(const Positions& at);

}  // namespace engine::verify
