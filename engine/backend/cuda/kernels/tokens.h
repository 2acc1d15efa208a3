// Launchers of tokens.cu: tables of tokens and positions, and the packed projection of attention. B·S tokens
// T.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "engine/backend/cuda/profile/scratch_tokens.h"
#include "engine/base/dtype.h"

namespace engine::backend::cuda {

// Rows [first_row, first_row + rows) of a table [V, columns] are here.
struct TableRows {
  std::int64_t first_row = 0;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
};

// y[tokens, columns] = table[ids[token] − first_row, :], zeros where that row is not here. dtype: of table
// and y.
void Embedding(const std::int32_t* ids, std::int64_t tokens, const void* table, const TableRows& rows,
               DType dtype, void* y, cudaStream_t stream);

// d_table[rows, columns] += Σ over tokens with that id of dy[token, :], in order of the tokens (in pieces of
// kEmbeddingPiece of them). Other ids are ignored. dy [tokens, columns]. The sum is fp32; table_dtype: kF32,
// or kBF16, to which sum and table together are rounded once. scratch: layout.bytes.
void EmbeddingGrad(const std::int32_t* ids, std::int64_t tokens, const void* dy, DType dtype,
                   const TableRows& rows, void* d_table, DType table_dtype, std::byte* scratch,
                   const EmbeddingGradLayout& layout, cudaStream_t stream);

// Bytes that the sort of EmbeddingGrad asks for; may be more than layout.sort_bytes only by a mistake of
// ours.
cudaError_t EmbeddingSortBytes(std::int64_t tokens, std::int64_t rows, std::int64_t* bytes);

// Rotary embedding of the first R elements of heads [E]: the elements of pair i are turned by position · 2π · turns[i], and
// multiplied by a factor. Pairs are elements i and i + R/2, or neighbours 2i and 2i + 1.
struct Rotation {
  static constexpr int kMaxHalf = 256;
  int half = 0;              // R/2; 0: nothing is turned
  bool inverse = false;      // turned back, as gradients are
  bool interleaved = false;  // pairs are neighbours
  float factor = 1;
  double turns[kMaxHalf] = {};  // a position, in whole turns
};

// A packed projection [tokens, groups, per_group, head]: of each group its query heads, its key, its value.
// The parts are q [tokens, groups · (per_group − 2), head], k and v [tokens, groups, head].
struct QkvShape {
  std::int64_t tokens = 0;
  int groups = 0;     // K
  int per_group = 0;  // J, at least 3
  int head = 0;       // E, even where heads are turned
  int turned = 0;     // of a group, its first heads: the query heads and the key, where heads are turned
};
struct QkvParts {
  void* q = nullptr;
  void* k = nullptr;
  void* v = nullptr;
};
// positions int32 [tokens]; not read if nothing is turned.
void QkvSplit(const void* packed, const QkvShape& shape, DType dtype, const std::int32_t* positions,
              const Rotation& rotation, const QkvParts& parts, cudaStream_t stream);
void QkvMerge(const QkvParts& parts, const QkvShape& shape, DType dtype, const std::int32_t* positions,
              const Rotation& rotation, void* packed, cudaStream_t stream);
// q and k in place.
void Rotary(void* packed, const QkvShape& shape, DType dtype, const std::int32_t* positions,
            const Rotation& rotation, cudaStream_t stream);
// x, y [tokens, heads, head]; y may be x.
void Rotate(const void* x, std::int64_t tokens, int heads, int head, DType dtype,
            const std::int32_t* positions, const Rotation& rotation, void* y, cudaStream_t stream);

}  // namespace engine::backend::cuda
