#include <vector>

#include "engine/ops/ops.h"

namespace engine::ops {
namespace {

template <typename... Ops>
void Append(std::vector<const graph::OpDef*>* all, const Ops&... ops) {
  (all->push_back(&ops), ...);
}

}  // namespace

std::span<const graph::OpDef* const> AllOps() {
  static const std::vector<const graph::OpDef*> ops = [] {
    std::vector<const graph::OpDef*> all;
#define OPS(...) Append(&all, __VA_ARGS__);
#include "engine/ops/ops.list"
#undef OPS
    return all;
  }();
  return ops;
}

const graph::OpDef* FindOp(std::string_view name) {
  for (const graph::OpDef* op : AllOps()) {
    if (op->name == name) return op;
  }
  return nullptr;
}

bool MixesTokens(const graph::OpDef& op) {
  return &op == &kSelectToken || &op == &kSinkhorn || &op == &kDrop;
}

}  // namespace engine::ops
