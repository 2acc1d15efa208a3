// Which input of an attention op is what: some may be missing, and those behind them then stand earlier.
#pragma once

#include <cstddef>

#include "engine/base/dtype.h"

namespace engine::graph {

// The inputs of attention, attention_grad (ops/attention.cpp), attention_packed and attention_packed_grad (ops/fused.h), in
// the order in which they stand, behind q, k and v or the packed tensor.
struct AttentionInputs {
  static constexpr std::size_t kNone = ~std::size_t{0};

  std::size_t positions = kNone;  // i32 [B, S], of the queries
  std::size_t spans = kNone;      // i32 [B, S, 2], of the queries: their documents' keys
  // Of the gradient alone.
  std::size_t o = kNone, lse = kNone, d_o = kNone;
  std::size_t sinks = kNone;   // [H]; a packed tensor has none
  std::size_t biases = kNone;  // [H, 2M + 1], of distances, or [H, P, P], of pairs; likewise

  bool has_positions() const { return positions != kNone; }
  bool has_spans() const { return spans != kNone; }
  bool has_sinks() const { return sinks != kNone; }
  bool has_biases() const { return biases != kNone; }
};

struct AttentionForm {
  bool backward = false;
  bool packed = false;
};

// `inputs` is a range of types or of views, which have a dtype and a shape. All but positions and spans are of reals.
template <typename Inputs>
AttentionInputs InputsOfAttention(const Inputs& inputs, const AttentionForm& form) {
  AttentionInputs found;
  const std::size_t count = inputs.size();
  std::size_t at = form.packed ? 1 : 3;
  const auto is_int = [&](int rank) {
    return at < count && inputs[at].dtype == DType::kI32 && inputs[at].shape.rank() == rank;
  };
  if (is_int(2)) found.positions = at++;
  if (is_int(3)) found.spans = at++;
  if (form.backward) {
    found.o = at++;
    found.lse = at++;
    found.d_o = at++;
  }
  if (form.packed) return found;
  if (at < count && inputs[at].shape.rank() == 1) found.sinks = at++;
  if (at < count && (inputs[at].shape.rank() == 2 || inputs[at].shape.rank() == 3)) found.biases = at++;
  return found;
}

}  // namespace engine::graph
