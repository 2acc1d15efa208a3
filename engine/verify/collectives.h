// Part of VerifyCommunication: the collectives of each stage by themselves.
#pragma once

#include "engine/base/status.h"
#include "engine/plan/plan.h"

namespace engine::verify {

// Every collective has a group that there is, with this stage in it, and the bytes that it makes of its
// input; those of NCCL are all on one stream of the stage, and so are those of buckets behind the passes.
absl::Status VerifyCollectives(const plan::Plan& plan);

}  // namespace engine::verify
