// Scale rows: a factor for each row, as of an expert that all tokens share (Qwen1.5-MoE's sigmoid gate)
//
//   scale_rows(x[l…, F], s[l…, 1]):  y[l…, f] = s[l…] · x[l…, f]
//   row_dot(a[l…, F], b[l…, F]):     y[l…, 1] = Σ_f a[l…, f] · b[l…, f]
//
//   dx = scale_rows(dy, s),   ds = row_dot(dy, x)
//
// Placement: scale_rows along any dim, replicated, or of a partial x: a factor times a sum is the sum of the factor times its
// terms. row_dot along any dim of rows; along the last one its sums are partial, and so they are where one of both is.
//
// Backward saves x and s.
#include "engine/ops/common.h"
#include "engine/ops/ops.h"

namespace engine::ops {
namespace {

// Whether b is a but for its last dim, which is `last`.
bool IsRowsOf(const Shape& a, const Shape& b, std::int64_t last) {
  if (a.rank() == 0 || a.rank() != b.rank() || b[b.rank() - 1] != last) return false;
  for (int dim = 0; dim + 1 < a.rank(); ++dim) {
    if (a[dim] != b[dim]) return false;
  }
  return true;
}

Types InferScaleRows(TypeSpan inputs, const Attributes&) {
  RETURN_IF_ERROR(ExpectInputs(inputs, 2, 2, "scale_rows"));
  if (!IsRowsOf(inputs[0].shape, inputs[1].shape, 1)) {
    return Internal("rows {} times {}", inputs[0].shape.ToString(), inputs[1].shape.ToString());
  }
  return std::vector<TensorType>{inputs[0]};
}

Types InferRowDot(TypeSpan inputs, const Attributes&) {
  RETURN_IF_ERROR(ExpectInputs(inputs, 2, 2, "row_dot"));
  const Shape& a = inputs[0].shape;
  if (a.rank() == 0 || a != inputs[1].shape) {
    return Internal("rows {} with {}", a.ToString(), inputs[1].shape.ToString());
  }
  TensorType sums = Leading(inputs[0], a.rank() - 1, inputs[0].dtype);
  sums.Append({.shape = {1}, .dtype = sums.dtype}, 0);
  return std::vector<TensorType>{sums};
}

Work ScaleRowsWork(TypeSpan inputs, TypeSpan outputs, const Attributes&) {
  return {Elements(outputs[0]), Bytes(inputs) + Bytes(outputs)};
}
Work RowDotWork(TypeSpan inputs, TypeSpan outputs, const Attributes&) {
  return {2 * Elements(inputs[0]), Bytes(inputs) + Bytes(outputs)};
}

ValueIds ScaleRowsGradient(GradientContext& context) {
  const graph::Node& node = context.node;
  const ValueId dy = context.d_outputs[0];
  const ValueId dx = context.graph->Emit1(kScaleRows, "d_" + node.name + ".x", {dy, node.inputs[1]});
  return {dx, context.graph->Emit1(kRowDot, "d_" + node.name + ".s", {dy, node.inputs[0]})};
}

std::vector<Signature> ScaleRowsSignatures(TypeSpan inputs, const Attributes&, const AxisRule&) {
  const int last = inputs[0].shape.rank() - 1;
  std::vector<Signature> signatures = ElementwiseSignatures(last, 2, 1);
  signatures.push_back({{Placement::S(last), Placement::R()}, {Placement::S(last)}});
  signatures.push_back({{Placement::P(), Placement::R()}, {Placement::P()}});
  return signatures;
}

std::vector<Signature> RowDotSignatures(TypeSpan inputs, const Attributes&, const AxisRule&) {
  const int last = inputs[0].shape.rank() - 1;
  std::vector<Signature> signatures = ElementwiseSignatures(last, 2, 1);
  signatures.push_back({{Placement::S(last), Placement::S(last)}, {Placement::P()}});
  signatures.push_back({{Placement::P(), Placement::R()}, {Placement::P()}});
  signatures.push_back({{Placement::R(), Placement::P()}, {Placement::P()}});
  return signatures;
}

}  // namespace

const OpDef kScaleRows{.name = "scale_rows",
                       .infer = InferScaleRows,
                       .work = ScaleRowsWork,
                       .gradient = ScaleRowsGradient,
                       .signatures = ScaleRowsSignatures,
                       .in_place_input = 0};

const OpDef kRowDot{.name = "row_dot",
                    .infer = InferRowDot,
                    .work = RowDotWork,
                    .signatures = RowDotSignatures,
                    .commutes = true};

}  // namespace engine::ops
