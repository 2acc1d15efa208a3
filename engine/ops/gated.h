// What ops on a gate and an up projection share: x[…, 2, F] → y[…, F]. The gate is plane 0 and the up projection plane 1,
// so that a split of F keeps both planes on a rank.
#pragma once

#include <vector>

#include "engine/ops/common.h"

namespace engine::ops {

inline Types InferGated(TypeSpan inputs, std::string_view op) {
  RETURN_IF_ERROR(ExpectInputs(inputs, 1, 1, op));
  const Shape& x = inputs[0].shape;
  if (x.rank() < 3 || x[x.rank() - 2] != 2) return Internal("{} of {}", op, x.ToString());
  TensorType y{.shape = {}, .dtype = inputs[0].dtype};
  for (int dim = 0; dim < x.rank(); ++dim) {
    if (dim != x.rank() - 2) y.Append(inputs[0], dim);
  }
  return std::vector<TensorType>{y};
}

// Of x → y, or (backward) of x, dy → dx. The plane dim itself may not be split.
inline std::vector<Signature> GatedSignatures(const Shape& x, bool backward) {
  std::vector<Signature> signatures;
  const auto add = [&](Placement wide, Placement narrow) {
    if (backward) {
      signatures.push_back({{wide, narrow}, {wide}});
    } else {
      signatures.push_back({{wide}, {narrow}});
    }
  };
  add(Placement::R(), Placement::R());
  for (int dim = 0; dim < x.rank() - 2; ++dim) add(Placement::S(dim), Placement::S(dim));
  add(Placement::S(x.rank() - 1), Placement::S(x.rank() - 2));
  return signatures;
}

}  // namespace engine::ops
