// Where a view's elements lie in the whole tensor, for kernels that draw by logical index.
#pragma once

#include <string_view>

#include "engine/backend/backend.h"
#include "engine/backend/cuda/kernels/logical_dims.h"

namespace engine::backend::cuda {

inline absl::StatusOr<LogicalDims> LogicalDimsOf(std::string_view op, const TensorView& x) {
  LogicalDims dims;
  dims.rank = x.shape.rank();
  if (dims.rank < 1 || dims.rank > LogicalDims::kMaxDims) {
    return Unimplemented("{}: no CUDA kernel for rank {}", op, dims.rank);
  }
  for (int d = 0; d < dims.rank; ++d) {
    LogicalDims::Dim& dim = dims.dims[d];
    dim.local = x.shape[d];
    dim.logical = x.logical[d];
    const DimExtent& extent = x.extent.dims[d];
    if (extent.size() > LogicalDims::kMaxPieces) {
      return Unimplemented("{}: dim {} is held in {} pieces, the CUDA kernel takes {}", op, d, extent.size(),
                           LogicalDims::kMaxPieces);
    }
    for (const Interval& interval : extent) dim.piece[dim.pieces++] = {interval.start, interval.length};
  }
  return dims;
}

}  // namespace engine::backend::cuda
