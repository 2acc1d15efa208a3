#include "engine/verify/verify.h"

namespace engine::verify {

absl::Status Verify(const plan::Plan& plan, const VerifyOptions& options) {
  RETURN_IF_ERROR(VerifyPrograms(plan));
  RETURN_IF_ERROR(VerifyCoverage(plan));
  RETURN_IF_ERROR(VerifyStates(plan));
  RETURN_IF_ERROR(VerifyPlacements(plan));
  RETURN_IF_ERROR(VerifyGradients(plan));
  RETURN_IF_ERROR(VerifyShards(plan));
  RETURN_IF_ERROR(VerifySegments(plan));
  RETURN_IF_ERROR(VerifySteps(plan));
  RETURN_IF_ERROR(VerifyCommunication(plan));
  return VerifyMemory(plan, options);
}

}  // namespace engine::verify
