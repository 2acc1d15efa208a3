// Grouped linear: a product for each expert, of its own rows (grouped GEMM)
//
//   grouped_linear(x[R, i…], w[E, o…, i…], groups[E, 2]):  y[r, o…] = Σ_i x[r, i…] · w[e(r), o…, i…]
//   grouped_linear_dgrad(dy[R, o…], w, groups):            dx[r, i…] = Σ_o dy[r, o…] · w[e(r), o…, i…]
//   grouped_linear_wgrad(dy, x, groups):                   dw[e, o…, i…] += Σ_{r of e} dy[r, o…] · x[r, i…]
//
// Rows are those of graph/rows.h: e(r) is the group in which row r lies; rows of zeros give zeros. An expert
// without rows has a gradient of zeros. Attribute in_dims: the number of contracted dims; out_split and in_split as in
// linear: the one output dim and the one contracted dim that an axis that splits features may split, where attribute
// features says that they are there to be split (expert_rows.h). Attributes experts
// and k, of the whole model, say how many rows there are on the average, for `work`.
//
// Attribute invariant, where it is 1: as in linear, the bits of a row of y do not depend on the other rows.
//
// Placement: along an axis that splits experts each rank has its own; along one that splits features as linear; along one
// that splits tokens each rank has other rows, and a weight's gradient is partial.
//
// Backward saves x, w and groups.
#include <array>

#include "engine/ops/expert_rows.h"
#include "engine/ops/ops.h"

namespace engine::ops {
namespace {

int InDims(const Attributes& attributes) { return static_cast<int>(attributes.Int("in_dims")); }

TensorType RowsLike(const TensorType& rows, const TensorType& w, int first, int last) {
  TensorType type = Leading(rows, 1, rows.dtype);
  for (int dim = first; dim < last; ++dim) type.Append(w, dim);
  return type;
}

absl::Status ExpectGroups(const TensorType& groups, std::int64_t experts) {
  if (groups.shape == Shape{experts, 2}) return absl::OkStatus();
  return Internal("groups {} of {} experts", groups.shape.ToString(), experts);
}

// Whether the elements of a row are those of w from dim `first` on.
absl::Status ExpectRow(const TensorType& rows, const TensorType& w, int first) {
  for (int dim = 1; dim < rows.shape.rank(); ++dim) {
    if (first + dim - 1 >= w.shape.rank() || rows.shape[dim] != w.shape[first + dim - 1])
      return Internal("rows {} with w {}", rows.shape.ToString(), w.shape.ToString());
  }
  return absl::OkStatus();
}

Types InferGroupedLinear(TypeSpan inputs, const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectInputs(inputs, 3, 3, "grouped_linear"));
  const TensorType& w = inputs[1];
  const int first_in = w.shape.rank() - InDims(attributes);
  RETURN_IF_ERROR(ExpectGroups(inputs[2], w.shape[0]));
  RETURN_IF_ERROR(ExpectRow(inputs[0], w, first_in));
  return std::vector<TensorType>{RowsLike(inputs[0], w, 1, first_in)};
}

Types InferGroupedDgrad(TypeSpan inputs, const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectInputs(inputs, 3, 3, "grouped_linear_dgrad"));
  const TensorType& w = inputs[1];
  RETURN_IF_ERROR(ExpectGroups(inputs[2], w.shape[0]));
  RETURN_IF_ERROR(ExpectRow(inputs[0], w, 1));
  return std::vector<TensorType>{RowsLike(inputs[0], w, w.shape.rank() - InDims(attributes), w.shape.rank())};
}

Types InferGroupedWgrad(TypeSpan inputs, const Attributes&) {
  RETURN_IF_ERROR(ExpectInputs(inputs, 3, 3, "grouped_linear_wgrad"));
  if (inputs[0].shape[0] != inputs[1].shape[0])
    return Internal("dy {}, x {}", inputs[0].shape.ToString(), inputs[1].shape.ToString());
  TensorType dw{.shape = {inputs[2].shape[0]}, .dtype = StatisticsDType(inputs[0].dtype)};
  dw.dims.Set(0, Dim::kExpert);
  for (const TensorType& part : {inputs[0], inputs[1]}) {
    for (int dim = 1; dim < part.shape.rank(); ++dim) dw.Append(part, dim);
  }
  return std::vector<TensorType>{dw};
}

// The rows that have a choice, where all experts are chosen alike: RowBound solved for the tokens.
double MeanRows(std::int64_t bound, std::int64_t here, const Attributes& attributes) {
  const std::int64_t k = attributes.Int("k", 1);
  const std::int64_t experts = attributes.Int("experts", here);
  const auto at_most =
      static_cast<double>(std::max<std::int64_t>(bound - here * (kRowAlignment - 1), kRowAlignment));
  const double tokens = at_most / static_cast<double>(std::min(k, here));
  return tokens * static_cast<double>(k) * static_cast<double>(here) / static_cast<double>(experts);
}

// `rows`: input that has them; `other`: elements of a row of the result, or of the other operand.
Work GroupedWork(TypeSpan inputs, TypeSpan outputs, std::int64_t experts, double row, double other,
                 const Attributes& attributes) {
  const double rows = MeanRows(inputs[0].shape[0], experts, attributes);
  const double flops = 2 * rows * row * other;
  double bytes = 0;
  for (const TypeSpan types : {inputs, outputs}) {
    for (const TensorType& type : types) {
      const double share = type.meaning(0) == Dim::kSlot && type.shape.rank() > 1 && type.shape[1] != 2
                               ? rows / static_cast<double>(type.shape[0])
                               : 1;
      bytes += share * Bytes(type);
    }
  }
  return {.flops = flops, .bytes = bytes, .product_flops = flops, .results = rows * other, .depth = row};
}

double RowElements(const TensorType& rows) {
  return static_cast<double>(rows.shape.elements(1, rows.shape.rank()));
}

Work GroupedLinearWork(TypeSpan inputs, TypeSpan outputs, const Attributes& attributes) {
  return GroupedWork(inputs, outputs, inputs[1].shape[0], RowElements(inputs[0]), RowElements(outputs[0]),
                     attributes);
}
Work GroupedWgradWork(TypeSpan inputs, TypeSpan outputs, const Attributes& attributes) {
  Work work = GroupedWork(inputs, outputs, inputs[2].shape[0], RowElements(inputs[0]), RowElements(inputs[1]),
                          attributes);
  work.results = Elements(outputs[0]);
  work.depth = work.results > 0 ? work.flops / (2 * work.results) : 0;
  return work;
}

ValueIds GroupedLinearGradient(GradientContext& context) {
  const graph::Node& node = context.node;
  const ValueId dy = context.d_outputs[0];
  const ValueId dx = context.graph->Emit1(kGroupedLinearDgrad, "d_" + node.name + ".x",
                                          {dy, node.inputs[1], node.inputs[2]}, node.attributes);
  const std::array<ValueId, 1> into = {context.accumulators[1]};
  const ValueIds dw = context.graph->Emit(kGroupedLinearWgrad, "d_" + node.name + ".w",
                                          {dy, node.inputs[0], node.inputs[2]}, node.attributes, into);
  return {dx, into[0] == kNoValue ? dw[0] : kNoValue, kNoValue};
}

// Of x and w: what the axis splits of them, where it splits weights.
struct Split {
  int out, in;  // dims of w
};
Split SplitOf(const Shape& w, const Attributes& attributes) {
  return {1 + OutSplit(attributes), w.rank() - InDims(attributes) + InSplit(attributes)};
}

// Rows are split by tokens or by experts, with or without the weights.
Signature ByRows(const AxisRule& rule, bool gradient_of_weight) {
  const Placement s = Placement::S(0);
  const bool experts = rule.parameters.Has(Dim::kExpert);
  if (gradient_of_weight) return {{s, s, s}, {experts ? s : Placement::P()}};
  return {{s, experts ? s : Placement::R(), s}, {s}};
}

const Signature kWhole = {{Placement::R(), Placement::R(), Placement::R()}, {Placement::R()}, true};

// Whether the axis splits the features of the matrices.
bool SplitsFeatures(const Attributes& attributes, const AxisRule& rule) {
  return WholeTokens(attributes, rule) && !rule.parameters.Has(Dim::kExpert);
}

std::vector<Signature> GroupedLinearSignatures(TypeSpan inputs, const Attributes& attributes,
                                               const AxisRule& rule) {
  const TensorType& w = inputs[1];
  const Split split = SplitOf(w.shape, attributes);
  const int in = split.in - (w.shape.rank() - InDims(attributes));
  const Placement r = Placement::R();
  if (!SplitsFeatures(attributes, rule)) return {ByRows(rule, false), kWhole};
  return {{{r, Placement::S(split.out), r}, {Placement::S(split.out)}},
          {{Placement::S(1 + in), Placement::S(split.in), r}, {Placement::P()}},
          kWhole};
}

std::vector<Signature> GroupedDgradSignatures(TypeSpan inputs, const Attributes& attributes,
                                              const AxisRule& rule) {
  const TensorType& w = inputs[1];
  const Split split = SplitOf(w.shape, attributes);
  const int in = split.in - (w.shape.rank() - InDims(attributes));
  const Placement r = Placement::R();
  if (!SplitsFeatures(attributes, rule)) return {ByRows(rule, false), kWhole};
  return {{{Placement::S(split.out), Placement::S(split.out), r}, {Placement::P()}},
          {{r, Placement::S(split.in), r}, {Placement::S(1 + in)}},
          kWhole};
}

std::vector<Signature> GroupedWgradSignatures(TypeSpan inputs, const Attributes& attributes,
                                              const AxisRule& rule) {
  const int out = 1 + OutSplit(attributes);
  const int in = 1 + InSplit(attributes);
  const int out_dims = inputs[0].shape.rank() - 1;
  const Placement r = Placement::R();
  if (!SplitsFeatures(attributes, rule)) return {ByRows(rule, true), kWhole};
  return {{{Placement::S(out), r, r}, {Placement::S(out)}},
          {{r, Placement::S(in), r}, {Placement::S(out_dims + in)}},
          kWhole};
}

}  // namespace

const OpDef kGroupedLinear{.name = "grouped_linear",
                           .infer = InferGroupedLinear,
                           .family = Family::kProduct,
                           .work = GroupedLinearWork,
                           .gradient = GroupedLinearGradient,
                           .signatures = GroupedLinearSignatures};
const OpDef kGroupedLinearDgrad{.name = "grouped_linear_dgrad",
                                .infer = InferGroupedDgrad,
                                .family = Family::kProduct,
                                .work = GroupedLinearWork,
                                .signatures = GroupedDgradSignatures};
const OpDef kGroupedLinearWgrad{.name = "grouped_linear_wgrad",
                                .infer = InferGroupedWgrad,
                                .family = Family::kProduct,
                                .work = GroupedWgradWork,
                                .signatures = GroupedWgradSignatures,
                                .accumulates = 1};

}  // namespace engine::ops
