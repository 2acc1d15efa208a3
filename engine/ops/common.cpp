#include "engine/ops/common.h"

namespace engine::ops {

std::vector<Signature> ElementwiseSignatures(int rank, size_t inputs, size_t outputs) {
  std::vector<Signature> signatures;
  const auto add = [&](Placement placement) {
    signatures.push_back(
        {std::vector<Placement>(inputs, placement), std::vector<Placement>(outputs, placement)});
  };
  add(Placement::R());
  for (int dim = 0; dim < rank; ++dim) add(Placement::S(dim));
  return signatures;
}

absl::Status ExpectInputs(TypeSpan inputs, size_t least, size_t most, std::string_view op) {
  if (inputs.size() < least || inputs.size() > most) {
    return Internal("{} takes {} to {} inputs, not {}", op, least, most, inputs.size());
  }
  return absl::OkStatus();
}

}  // namespace engine::ops
