// The ops, by family. Letters: B batch, S sequence, D model, H heads, K kv heads, E head dim, F ffn, V
// vocabulary. What a dim means to placement travels with the types (graph/dims.h).
#pragma once

#include <span>
#include <string_view>

#include "engine/graph/op.h"

namespace engine::ops {

#define OPS(...) extern const graph::OpDef __VA_ARGS__;
#include "engine/ops/ops.list"
#undef OPS

// Every op of ops.list, in that order.
std::span<const graph::OpDef* const> AllOps();

// Null if there is none of that name.
const graph::OpDef* FindOp(std::string_view name);

// Whether what the op gives of a token depends on the other tokens, though it is no attention: Sinkhorn's balance, an expert's
// capacity, the one token that stands for its sequence.
bool MixesTokens(const graph::OpDef& op);

}  // namespace engine::ops
