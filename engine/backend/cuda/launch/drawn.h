// What kernels draw for the elements of a view.
#pragma once

#include <string>
#include <string_view>

#include "engine/backend/backend.h"
#include "engine/backend/cuda/kernels/drawn.h"
#include "engine/backend/cuda/launch/logical_dims.h"
#include "engine/base/dropout_draws.h"
#include "engine/plan/control.h"

namespace engine::backend::cuda {

inline absl::StatusOr<Drawn> DrawnOf(std::string_view op, const TensorView& x) {
  Drawn drawn;
  ASSIGN_OR_RETURN(drawn.index, LogicalDimsOf(op, x));
  const auto& dims = drawn.index.dims;
  const auto in_one_piece = [&](int d) {
    return dims[d].pieces == 1 && dims[d].piece[0].length == dims[d].local;
  };
  const int rows = drawn.index.rank - 1;  // dims
  drawn.rows_follow = true;
  if (rows == 0) return drawn;
  drawn.rows_of_sample = 1;
  for (int d = 1; d < rows; ++d) {
    drawn.rows_follow = drawn.rows_follow && in_one_piece(d) && dims[d].local == dims[d].logical;
    drawn.rows_of_sample *= dims[d].logical;
  }
  drawn.rows_follow = drawn.rows_follow && in_one_piece(0);
  if (drawn.rows_follow) drawn.first_row = dims[0].piece[0].start * drawn.rows_of_sample;
  return drawn;
}

// Of dropout of probability p; DrawNow makes it that of a stream.
inline absl::StatusOr<DropoutMask> DropoutMaskOf(std::string_view op, const TensorView& x, double p) {
  const Dropping dropping = Dropping::Of(p);
  DropoutMask mask;
  ASSIGN_OR_RETURN(mask.drawn, DrawnOf(op, x));
  mask.below = dropping.below;
  mask.scale = static_cast<float>(dropping.scale);
  return mask;
}

// As it is drawn in the iteration and microbatch of the context.
inline void DrawNow(const std::string& stream, const KernelContext& context, Drawn* drawn) {
  drawn->key = MakePhiloxKey(context.seed, stream);
  drawn->first_sample = context.first_sample;
  drawn->iteration = context.control + plan::kIteration;
}

}  // namespace engine::backend::cuda
