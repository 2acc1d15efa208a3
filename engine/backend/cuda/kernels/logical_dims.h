// Where the elements of a local tensor lie in the logical one (base/extent.h), in fixed arrays, as kernels take them.
#pragma once

#include <cstdint>

namespace engine::backend::cuda {

struct LogicalDims {
  static constexpr int kMaxDims = 5;
  static constexpr int kMaxPieces = 4;
  struct Piece {
    std::int64_t start = 0;
    std::int64_t length = 0;
  };
  struct Dim {
    std::int64_t local = 1;
    std::int64_t logical = 1;
    int pieces = 0;
    Piece piece[kMaxPieces];
  };
  int rank = 0;
  Dim dims[kMaxDims];
};

}  // namespace engine::backend::cuda
