// Where embedding_grad keeps what in its scratch: the scratch rule and the launcher read the same.
#pragma once

#include <cstdint>

namespace engine::backend::cuda {

// The sorted tokens are cut into pieces of this length; a row of the table that more tokens hit than one
// piece holds is summed in a second pass. 32: each position of GPT-2's table is hit once by each of 32
// sequences.
inline constexpr int kEmbeddingPiece = 32;

// Offsets in bytes, all multiples of 256. T tokens, D columns, P = ⌈T / kEmbeddingPiece⌉ pieces.
struct EmbeddingGradLayout {
  std::int64_t rows = 0;    // [T] u32: the token's row of the table, or the number of rows if it has none
  std::int64_t tokens = 0;  // [T] u32: 0, 1, 2, …
  std::int64_t sorted_rows = 0;    // [T] u32, ascending
  std::int64_t sorted_tokens = 0;  // [T] u32, ascending within a row
  std::int64_t partial = 0;  // [P, 2, D] fp32: of the runs that begin before a piece, and that end after it
  std::int64_t sort = 0;     // what cub::DeviceRadixSort asks for
  std::int64_t sort_bytes = 0;
  std::int64_t bytes = 0;
};
EmbeddingGradLayout LayoutOfEmbeddingGrad(std::int64_t tokens, std::int64_t columns);

}  // namespace engine::backend::cuda
