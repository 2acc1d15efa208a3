// Linear
//
//   linear(x, w, b?):   y[l…, o…] = Σ_i x[l…, i…] · w[o…, i…] (+ b[o…])
//   linear_dgrad:       dx[l…, i…] = Σ_o dy[l…, o…] · w[o…, i…]
//   linear_wgrad:       dw[o…, i…] += Σ_l dy[l…, o…] · x[l…, i…]     (in the dtype of its buffer)
//
// l are leading dims (batch, sequence), i contracted dims, o output dims; attribute in_dims = number of
// contracted dims. Weights are stored [out…, in…], row-major, so that a product is one GEMM over collapsed
// dims. Attributes out_split and in_split name the one output dim and the one contracted dim that a
// weight-splitting axis may split (heads, ffn, vocabulary); they default to 0.
//
// Attribute router, where it is 1: the logits of a router (route.cpp). y is at least float32, and so is dy; the weight is
// small, and whole on every rank.
//
// Attribute adapter, where it is 1: the weight is one of the two of a low-rank adapter. It is small, so that work on it may
// be repeated on every rank, and it may be split along a dim that has a meaning, or be whole where tokens are split:
// whatever moves the fewest bytes.
//
// Attribute invariant, where it is 1: linear adds up the terms of an element in an order that does not depend on how many rows
// x has, so that a row of y has the same bits beside any others. Its gradients need not.
//
// Placement is the algebra of a contraction: a split leading dim stays split; a split output dim splits y; a
// split contracted dim makes y partial (Megatron-LM's column- and row-parallel linear, arXiv:1909.08053 §3).
// A bias cannot be added to a partial sum: it would be added once per rank.
//
// Backward saves x and w.
#include <array>
#include <tuple>

#include "engine/ops/common.h"
#include "engine/ops/ops.h"

namespace engine::ops {
namespace {

struct Counts {
  int lead, in, out;
};

Counts DimsOf(const TensorType& w, int x_or_y_rank, bool is_y, const Attributes& attributes) {
  const int in = static_cast<int>(attributes.Int("in_dims"));
  const int out = w.shape.rank() - in;
  return {x_or_y_rank - (is_y ? out : in), in, out};
}

bool IsRouter(const Attributes& attributes) { return attributes.Int("router", 0) != 0; }

Types InferLinear(TypeSpan inputs, const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectInputs(inputs, 2, 3, "linear"));
  const auto& [x, w] = std::tie(inputs[0], inputs[1]);
  const Counts dims = DimsOf(w, x.shape.rank(), false, attributes);
  if (dims.lead < 1 || dims.out < 1)
    return Internal("x {} with w {}", x.shape.ToString(), w.shape.ToString());
  for (int i = 0; i < dims.in; ++i) {
    if (x.shape[dims.lead + i] != w.shape[dims.out + i]) {
      return Internal("x {} does not contract with w {}", x.shape.ToString(), w.shape.ToString());
    }
  }
  TensorType y = Leading(x, dims.lead, IsRouter(attributes) ? StatisticsDType(x.dtype) : x.dtype);
  for (int o = 0; o < dims.out; ++o) {
    y.Append(w, o);
    if (inputs.size() == 3 && inputs[2].shape[o] != w.shape[o])
      return Internal("bias {}", inputs[2].shape.ToString());
  }
  return std::vector<TensorType>{y};
}

Types InferDgrad(TypeSpan inputs, const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectInputs(inputs, 2, 2, "linear_dgrad"));
  const auto& [dy, w] = std::tie(inputs[0], inputs[1]);
  const Counts dims = DimsOf(w, dy.shape.rank(), true, attributes);
  TensorType dx = Leading(dy, dims.lead, IsRouter(attributes) ? w.dtype : dy.dtype);
  for (int o = 0; o < dims.out; ++o) {
    if (dy.shape[dims.lead + o] != w.shape[o])
      return Internal("dy {}, w {}", dy.shape.ToString(), w.shape.ToString());
  }
  for (int i = 0; i < dims.in; ++i) dx.Append(w, dims.out + i);
  return std::vector<TensorType>{dx};
}

Types InferWgrad(TypeSpan inputs, const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectInputs(inputs, 2, 2, "linear_wgrad"));
  const auto& [dy, x] = std::tie(inputs[0], inputs[1]);
  const int in = static_cast<int>(attributes.Int("in_dims"));
  const int lead = x.shape.rank() - in;
  TensorType dw{.shape = {}, .dtype = StatisticsDType(dy.dtype)};
  for (int l = 0; l < lead; ++l) {
    if (dy.shape[l] != x.shape[l]) return Internal("dy {}, x {}", dy.shape.ToString(), x.shape.ToString());
  }
  for (int o = lead; o < dy.shape.rank(); ++o) dw.Append(dy, o);
  for (int i = lead; i < x.shape.rank(); ++i) dw.Append(x, i);
  return std::vector<TensorType>{dw};
}

// 2·M·N·K: the product of x's elements with the output dims.
Work LinearCost(TypeSpan inputs, TypeSpan outputs, const Attributes& attributes) {
  const int in = static_cast<int>(attributes.Int("in_dims"));
  const Shape& w = inputs[1].shape;
  const double out = static_cast<double>(w.elements(0, w.rank() - in));
  return ProductWork(2.0 * Elements(inputs[0]) * out, inputs, outputs);
}
Work DgradCost(TypeSpan inputs, TypeSpan outputs, const Attributes& attributes) {
  const int in = static_cast<int>(attributes.Int("in_dims"));
  const Shape& w = inputs[1].shape;
  const double contracted = static_cast<double>(w.elements(w.rank() - in, w.rank()));
  return ProductWork(2.0 * Elements(inputs[0]) * contracted, inputs, outputs);
}
Work WgradCost(TypeSpan inputs, TypeSpan outputs, const Attributes& attributes) {
  const int in = static_cast<int>(attributes.Int("in_dims"));
  const Shape& x = inputs[1].shape;
  const double contracted = static_cast<double>(x.elements(x.rank() - in, x.rank()));
  return ProductWork(2.0 * Elements(inputs[0]) * contracted, inputs, outputs);
}

ValueIds LinearGradient(GradientContext& context) {
  const graph::Node& node = context.node;
  const ValueId dy = context.d_outputs[0];
  ValueIds gradients(node.inputs.size(), kNoValue);
  gradients[0] =
      context.graph->Emit1(kLinearDgrad, "d_" + node.name + ".x", {dy, node.inputs[1]}, node.attributes);
  const std::array<ValueId, 1> into = {context.accumulators[1]};
  const ValueIds dw =
      context.graph->Emit(kLinearWgrad, "d_" + node.name + ".w", {dy, node.inputs[0]}, node.attributes, into);
  if (into[0] == kNoValue) gradients[1] = dw[0];
  if (node.inputs.size() == 3) {
    const std::array<ValueId, 1> into_bias = {context.accumulators[2]};
    const std::int64_t bias_dims = context.graph->value(node.inputs[2]).type.shape.rank();
    const ValueIds db =
        context.graph->Emit(kBiasGrad, "d_" + node.name + ".b", {dy}, {{"dims", bias_dims}}, into_bias);
    if (into_bias[0] == kNoValue) gradients[2] = db[0];
  }
  return gradients;
}

bool IsAdapter(const Attributes& attributes) { return attributes.Int("adapter", 0) != 0; }
// Whether it costs nothing worth counting that every rank does the same.
bool IsSmall(const Attributes& attributes) { return IsRouter(attributes) || IsAdapter(attributes); }

// Whether the axis splits weights with such an output dim, or such a contracted one.
bool Splits(const Attributes& attributes, const AxisRule& rule, Dim out, Dim in) {
  return !IsRouter(attributes) && (rule.parameters.Has(out) || rule.parameters.Has(in));
}

std::vector<Signature> LinearSignatures(TypeSpan inputs, const Attributes& attributes, const AxisRule& rule) {
  const Counts dims = DimsOf(inputs[1], inputs[0].shape.rank(), false, attributes);
  const bool bias = inputs.size() == 3;
  const int o = OutSplit(attributes);
  const int i = InSplit(attributes);
  const bool splits = Splits(attributes, rule, inputs[1].meaning(o), inputs[1].meaning(dims.out + i));
  const auto with_bias = [&](Signature signature, Placement placement) {
    if (bias) signature.inputs.push_back(placement);
    return signature;
  };
  std::vector<Signature> signatures;
  if (splits) {
    signatures.push_back(
        with_bias({{Placement::R(), Placement::S(o)}, {Placement::S(dims.lead + o)}}, Placement::S(o)));
    if (!bias) {
      signatures.push_back({{Placement::S(dims.lead + i), Placement::S(dims.out + i)}, {Placement::P()}});
    }
  }
  if (!splits || IsAdapter(attributes)) {
    for (int l = 0; l < dims.lead; ++l) {
      signatures.push_back(with_bias({{Placement::S(l), Placement::R()}, {Placement::S(l)}}, Placement::R()));
    }
  }
  signatures.push_back(
      with_bias({{Placement::R(), Placement::R()}, {Placement::R()}, !IsSmall(attributes)}, Placement::R()));
  return signatures;
}

std::vector<Signature> DgradSignatures(TypeSpan inputs, const Attributes& attributes, const AxisRule& rule) {
  const Counts dims = DimsOf(inputs[1], inputs[0].shape.rank(), true, attributes);
  const int o = OutSplit(attributes);
  const int i = InSplit(attributes);
  const bool splits = Splits(attributes, rule, inputs[1].meaning(o), inputs[1].meaning(dims.out + i));
  std::vector<Signature> signatures;
  if (splits) {
    signatures.push_back({{Placement::S(dims.lead + o), Placement::S(o)}, {Placement::P()}});
    signatures.push_back({{Placement::R(), Placement::S(dims.out + i)}, {Placement::S(dims.lead + i)}});
  }
  if (!splits || IsAdapter(attributes)) {
    for (int l = 0; l < dims.lead; ++l)
      signatures.push_back({{Placement::S(l), Placement::R()}, {Placement::S(l)}});
  }
  signatures.push_back({{Placement::R(), Placement::R()}, {Placement::R()}, !IsSmall(attributes)});
  return signatures;
}

std::vector<Signature> WgradSignatures(TypeSpan inputs, const Attributes& attributes, const AxisRule& rule) {
  const int lead = inputs[1].shape.rank() - static_cast<int>(attributes.Int("in_dims"));
  const int out = inputs[0].shape.rank() - lead;
  const int o = OutSplit(attributes);
  const int i = InSplit(attributes);
  const bool splits = Splits(attributes, rule, inputs[0].meaning(lead + o), inputs[1].meaning(lead + i));
  std::vector<Signature> signatures;
  if (splits) {
    signatures.push_back({{Placement::S(lead + o), Placement::R()}, {Placement::S(o)}});
    signatures.push_back({{Placement::R(), Placement::S(lead + i)}, {Placement::S(out + i)}});
  }
  // Of a weight that is whole all the same, or an adapter's.
  for (int l = 0; l < lead; ++l) signatures.push_back({{Placement::S(l), Placement::S(l)}, {Placement::P()}});
  signatures.push_back({{Placement::R(), Placement::R()}, {Placement::R()}, !IsSmall(attributes)});
  return signatures;
}

}  // namespace

const OpDef kLinear{.name = "linear",
                    .infer = InferLinear,
                    .family = Family::kProduct,
                    .work = LinearCost,
                    .gradient = LinearGradient,
                    .signatures = LinearSignatures};
const OpDef kLinearDgrad{.name = "linear_dgrad",
                         .infer = InferDgrad,
                         .family = Family::kProduct,
                         .work = DgradCost,
                         .signatures = DgradSignatures};
const OpDef kLinearWgrad{.name = "linear_wgrad",
                         .infer = InferWgrad,
                         .family = Family::kProduct,
                         .work = WgradCost,
                         .signatures = WgradSignatures,
                         .accumulates = 1,
                         .sums_rows = true};

}  // namespace engine::ops
