// Tensors side by side along their last dim
//
//   join(x_0[l…, H, n_0], …, x_m[l…, H, n_m]) → y[l…, H, Σ n_i]
//     Attribute shared: bit i says that x_i is [l…, 1, n_i], one head that all H heads of y have. So the rotated part of a key
//     is one for all heads in multi-head latent attention (DeepSeek-V2, arXiv:2405.04434).
//   join_grad(dy[l…, H, N]) → d[l…, H, n]: elements first … first + n − 1 of each row, the gradient of one part; attributes
//     first and count = n. With attribute shared = 1 it is their sum over H, [l…, 1, n].
//
// Placement: split leading dims stay split. Where heads are split, a shared part is whole, and its gradient, of which each rank
// has its own heads' share, is partial. The last dim is never split.
//
// Backward saves nothing.
#include "engine/ops/common.h"
#include "engine/ops/ops.h"

namespace engine::ops {
namespace {

bool IsShared(const Attributes& attributes, size_t part) {
  return (static_cast<std::uint64_t>(attributes.Int("shared", 0)) >> part & 1U) != 0;
}

Types InferJoin(TypeSpan inputs, const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectInputs(inputs, 1, 63, "join"));
  size_t own = 0;
  while (own < inputs.size() && IsShared(attributes, own)) ++own;
  if (own == inputs.size()) return Internal("join: all {} parts are shared by heads", own);
  const int rank = inputs[own].shape.rank();
  if (rank < 2) return Internal("join of {}", inputs[own].shape.ToString());
  std::int64_t width = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Shape& part = inputs[i].shape;
    bool fits = part.rank() == rank && inputs[i].dtype == inputs[own].dtype;
    for (int dim = 0; fits && dim + 1 < rank; ++dim) {
      const bool one_head = dim == rank - 2 && IsShared(attributes, i);
      fits = part[dim] == (one_head ? 1 : inputs[own].shape[dim]);
    }
    if (!fits) return Internal("join of {} with {}", inputs[own].shape.ToString(), part.ToString());
    width += part[rank - 1];
  }
  TensorType y = Leading(inputs[own], rank - 1, inputs[own].dtype);
  y.shape.push_back(width);
  return std::vector<TensorType>{y};
}

Types InferJoinGrad(TypeSpan inputs, const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectInputs(inputs, 1, 1, "join_grad"));
  const int rank = inputs[0].shape.rank();
  const std::int64_t first = attributes.Int("first");
  const std::int64_t count = attributes.Int("count");
  if (rank < 2 || first < 0 || count < 1 || first + count > inputs[0].shape[rank - 1])
    return Internal("join_grad of {} elements from {} on of {}", count, first, inputs[0].shape.ToString());
  const bool shared = attributes.Int("shared", 0) != 0;
  TensorType part = Leading(inputs[0], shared ? rank - 2 : rank - 1, inputs[0].dtype);
  if (shared) part.shape.push_back(1);
  part.shape.push_back(count);
  return std::vector<TensorType>{part};
}

Work JoinWork(TypeSpan inputs, TypeSpan outputs, const Attributes&) {
  return {.flops = 0, .bytes = Bytes(inputs) + Bytes(outputs)};
}
// It reads its part of the rows alone.
Work JoinGradWork(TypeSpan inputs, TypeSpan outputs, const Attributes& attributes) {
  const Shape& dy = inputs[0].shape;
  const double share = static_cast<double>(attributes.Int("count")) / static_cast<double>(dy[dy.rank() - 1]);
  const bool shared = attributes.Int("shared", 0) != 0;
  return {.flops = shared ? share * Elements(inputs[0]) : 0.0,
          .bytes = share * Bytes(inputs) + Bytes(outputs)};
}

ValueIds JoinGradient(GradientContext& context) {
  const graph::Node& node = context.node;
  ValueIds gradients;
  std::int64_t first = 0;
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    const Shape& part = context.graph->value(node.inputs[i]).type.shape;
    const std::int64_t count = part[part.rank() - 1];
    Attributes attributes = {{"first", first}, {"count", count}};
    if (IsShared(node.attributes, i)) attributes.Set("shared", std::int64_t{1});
    gradients.push_back(context.graph->Emit1(kJoinGrad, fmt::format("d_{}.{}", node.name, i),
                                             {context.d_outputs[0]}, attributes));
    first += count;
  }
  return gradients;
}

std::vector<Signature> JoinSignatures(TypeSpan inputs, const Attributes& attributes, const AxisRule&) {
  const int heads = inputs[0].shape.rank() - 2;
  std::vector<Signature> signatures;
  for (int dim = heads; dim >= 0; --dim) {
    Signature signature = {{}, {Placement::S(dim)}};
    for (size_t i = 0; i < inputs.size(); ++i) {
      const bool whole = dim == heads && IsShared(attributes, i);
      signature.inputs.push_back(whole ? Placement::R() : Placement::S(dim));
    }
    signatures.push_back(std::move(signature));
  }
  signatures.push_back({std::vector<Placement>(inputs.size(), Placement::R()), {Placement::R()}});
  return signatures;
}

std::vector<Signature> JoinGradSignatures(TypeSpan inputs, const Attributes& attributes, const AxisRule&) {
  const int heads = inputs[0].shape.rank() - 2;
  std::vector<Signature> signatures;
  for (int dim = heads; dim >= 0; --dim) {
    const bool sums = dim == heads && attributes.Int("shared", 0) != 0;
    signatures.push_back({{Placement::S(dim)}, {sums ? Placement::P() : Placement::S(dim)}});
  }
  signatures.push_back({{Placement::R()}, {Placement::R()}});
  return signatures;
}

}  // namespace

const OpDef kJoin{.name = "join",
                  .infer = InferJoin,
                  .work = JoinWork,
                  .gradient = JoinGradient,
                  .signatures = JoinSignatures};
const OpDef kJoinGrad{
    .name = "join_grad", .infer = InferJoinGrad, .work = JoinGradWork, .signatures = JoinGradSignatures};

}  // namespace engine::ops
