// Part of VerifyCommunication: the values that go from stage to stage, before any order of steps.
#pragma once

#include <cstdint>

#include "engine/base/status.h"
#include "engine/plan/plan.h"

namespace engine::verify {

// The stages that a transfer goes from and to.
inline std::int32_t SenderOf(const plan::Plan& plan, const plan::Transfer& transfer) {
  return plan.chunk_stage[static_cast<std::size_t>(transfer.from_chunk)];
}
inline std::int32_t ReceiverOf(const plan::Plan& plan, const plan::Transfer& transfer) {
  return plan.chunk_stage[static_cast<std::size_t>(transfer.to_chunk)];
}

// Values go from chunk to neighbouring chunk, and come to a chunk once: those in between relay them.
absl::Status VerifyHops(const plan::Plan& plan);

// One program is well formed on every stage; each of its sends and receives is a step of the stage that the
// transfer names, once for a microbatch, with the bytes of the value; and every send has its receive.
absl::Status VerifySendsAndReceives(const plan::Plan& plan, std::int32_t program);

}  // namespace engine::verify
