// Rows: the tokens that a rank's experts work on, each once for every choice of an expert, sorted by expert.
//
// How many there are follows from the choices of a batch, so buffers have a bound that no choice exceeds. Group e of the
// rows of T tokens begins at a multiple of kRowAlignment, and what is left to the next group are rows of zeros, so that
// kernels work in blocks without masks. Rows behind the last group are neither read nor written.
//
// A tensor of rows has a first dim of meaning Dim::kSlot. It has no order that ranks agree on: its size on a rank follows
// from what the rank holds (`infer` on types of the rank), and it is never converted. Along an axis that splits tokens each
// rank has the rows of its tokens, S(0); along one that splits experts those of its experts, of all tokens, S(0) too;
// along one that splits features all of them, with parts of their elements.
#pragma once

#include <algorithm>
#include <cstdint>

namespace engine::graph {

inline constexpr std::int64_t kRowAlignment = 128;

// The bound: each token is a row of at most min(k, experts) of the experts, and each of them that has rows leaves at most
// kRowAlignment − 1 empty.
inline std::int64_t RowBound(std::int64_t tokens, std::int64_t k, std::int64_t experts) {
  const std::int64_t rows = tokens * std::min(k, experts);
  const std::int64_t most = rows + std::min(experts, rows) * (kRowAlignment - 1);
  return most / kRowAlignment * kRowAlignment;
}

}  // namespace engine::graph
