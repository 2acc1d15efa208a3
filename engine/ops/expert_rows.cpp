// Tokens to the rows of experts and back (dispatch and combine of GShard, arXiv:2006.16668)
//
//   tally(choice[b, …, k]) → count[g, E]     how many choices of a group of samples fall on each expert; attribute samples: how
//                                            many a group has, 1 unless given, so that g = b / samples
//   place(choice[b, …, k], count[b, E]) → choice_of[R] i32, row_of[N] i32, groups[E, 2] i32
//     choice_of: which choice (token · k + place among its k) row r is of; −1: none
//     row_of:    the row of each of the N = tokens · k choices; −1: of an expert that is not here
//     groups:    first row and number of rows of each expert
//     rows are sorted by expert, those of an expert by token (a stable sort by counting)
//   spread(x[b, …, D], choice_of, row_of, choice) → rows[R, D]     row r = x of the token of choice_of[r]
//   combine(rows[R, D], choice_of, row_of, choice) → y[b, …, D]    y of a token = Σ over its choices of their rows
//
// Each is the gradient of the other. R is RowBound (graph/rows.h). Attributes of tally: experts E; of_rank or of_all, which say where the number of
// samples comes from (model/modules/experts.cpp) and change nothing; and by_expert: 1 where
// an axis that splits experts is to make counts of its own experts, for place, which takes from count nothing but which
// experts a rank has. Attribute features: expert_rows.h.
//
// Placement: along an axis that splits experts each rank finds the rows of its own experts among all tokens, and what they
// give is partial. So the exchange of experts is derived: tokens are gathered, results summed and scattered.
//
// Backward saves choice_of, row_of and choice.
#include "engine/ops/expert_rows.h"

#include "engine/ops/ops.h"

namespace engine::ops {
namespace {

std::int64_t TokensOf(const Shape& choice) { return choice.elements(0, choice.rank() - 1); }
std::int64_t ChoicesOf(const Shape& choice) { return choice[choice.rank() - 1]; }

TensorType Slots(std::int64_t count) {
  TensorType type{.shape = {count}, .dtype = DType::kI32};
  type.dims.Set(0, Dim::kSlot);
  return type;
}

Types InferTally(TypeSpan inputs, const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectInputs(inputs, 1, 1, "tally"));
  if (inputs[0].shape.rank() < 2) return Internal("tally of {}", inputs[0].shape.ToString());
  TensorType count = Leading(inputs[0], 1, attributes.Int("f64", 0) != 0 ? DType::kF64 : DType::kF32);
  const std::int64_t samples = attributes.Int("samples", 1);
  if (samples < 1 || count.shape[0] % samples != 0)
    return Internal("tally of {} in groups of {} samples", inputs[0].shape.ToString(), samples);
  count.shape[0] /= samples;
  count.shape.push_back(attributes.Int("experts"));
  if (attributes.Int("by_expert", 0) != 0) count.dims.Set(1, Dim::kExpert);
  return std::vector<TensorType>{count};
}

Types InferPlace(TypeSpan inputs, const Attributes&) {
  RETURN_IF_ERROR(ExpectInputs(inputs, 2, 2, "place"));
  const Shape& choice = inputs[0].shape;
  const std::int64_t experts = inputs[1].shape[1];
  TensorType groups = Slots(experts);
  groups.shape.push_back(2);
  return std::vector<TensorType>{Slots(RowBound(TokensOf(choice), ChoicesOf(choice), experts)),
                                 Slots(choice.elements()), groups};
}

absl::Status ExpectPlaces(TypeSpan inputs, std::string_view op) {
  RETURN_IF_ERROR(ExpectInputs(inputs, 4, 4, op));
  if (inputs[2].shape[0] != inputs[3].shape.elements()) {
    return Internal("{}: {} rows of choices {}", op, inputs[2].shape.ToString(), inputs[3].shape.ToString());
  }
  return absl::OkStatus();
}

Types InferSpread(TypeSpan inputs, const Attributes&) {
  RETURN_IF_ERROR(ExpectPlaces(inputs, "spread"));
  const int lead = inputs[3].shape.rank() - 1;
  TensorType rows = Slots(inputs[1].shape[0]);
  rows.dtype = inputs[0].dtype;
  for (int dim = lead; dim < inputs[0].shape.rank(); ++dim) rows.Append(inputs[0], dim);
  return std::vector<TensorType>{rows};
}

Types InferCombine(TypeSpan inputs, const Attributes&) {
  RETURN_IF_ERROR(ExpectPlaces(inputs, "combine"));
  if (inputs[0].shape[0] != inputs[1].shape[0]) {
    return Internal("combine: rows {} with {} places", inputs[0].shape.ToString(),
                    inputs[1].shape.ToString());
  }
  TensorType y = Leading(inputs[3], inputs[3].shape.rank() - 1, inputs[0].dtype);
  for (int dim = 1; dim < inputs[0].shape.rank(); ++dim) y.Append(inputs[0], dim);
  return std::vector<TensorType>{y};
}

Work MoveWork(TypeSpan inputs, TypeSpan outputs, const Attributes&) {
  return {.flops = 0, .bytes = Bytes(inputs) + Bytes(outputs)};
}
Work CombineWork(TypeSpan inputs, TypeSpan outputs, const Attributes&) {
  return {.flops = Elements(inputs[0]), .bytes = Bytes(inputs) + Bytes(outputs)};
}

ValueIds SpreadGradient(GradientContext& context) {
  const ValueIds& in = context.node.inputs;
  return {context.graph->Emit1(kCombine, "d_" + context.node.name,
                               {context.d_outputs[0], in[1], in[2], in[3]}, context.node.attributes),
          kNoValue, kNoValue, kNoValue};
}
ValueIds CombineGradient(GradientContext& context) {
  const ValueIds& in = context.node.inputs;
  return {context.graph->Emit1(kSpread, "d_" + context.node.name, {context.d_outputs[0], in[1], in[2], in[3]},
                               context.node.attributes),
          kNoValue, kNoValue, kNoValue};
}

std::vector<Signature> TallySignatures(TypeSpan inputs, const Attributes& attributes, const AxisRule& rule) {
  const Placement r = Placement::R();
  if (attributes.Int("by_expert", 0) != 0 && rule.parameters.Has(Dim::kExpert))
    return {{{r}, {Placement::S(1)}}};
  std::vector<Signature> signatures = {{{r}, {r}}};
  if (attributes.Int("by_expert", 0) != 0 && WholeTokens(attributes, rule)) return signatures;
  // Of a group of all samples each rank has a part. Others are whole on a rank where the batch is cut over ranks; ranks that
  // share a sequence share samples in any number (drop.cpp).
  const std::int64_t samples = attributes.Int("samples", 1);
  const bool one_group = samples > 1 && samples == inputs[0].shape[0];
  if (samples == 1 || one_group || !rule.activations.Has(Dim::kSequence))
    signatures.push_back({{Placement::S(0)}, {one_group ? Placement::P() : Placement::S(0)}});
  for (int dim = 1; dim + 1 < inputs[0].shape.rank(); ++dim)
    signatures.push_back({{Placement::S(dim)}, {Placement::P()}});
  return signatures;
}

std::vector<Signature> PlaceSignatures(TypeSpan inputs, const Attributes& attributes, const AxisRule& rule) {
  const Placement r = Placement::R();
  const Placement slots = Placement::S(0);
  if (rule.parameters.Has(Dim::kExpert)) return {{{r, Placement::S(1)}, {slots, slots, slots}}};
  std::vector<Signature> signatures = {{{r, r}, {r, r, r}}};
  if (WholeTokens(attributes, rule)) return signatures;
  signatures.push_back({{slots, Placement::S(0)}, {slots, slots, slots}});
  for (int dim = 1; dim + 1 < inputs[0].shape.rank(); ++dim)
    signatures.push_back({{Placement::S(dim), Placement::P()}, {slots, slots, slots}});
  return signatures;
}

// How tokens and their rows lie together, and the choices that say which. Where each rank has the rows of some experts,
// what is made of rows is partial.
struct Joint {
  Placement tokens, rows, choice;
};
std::vector<Joint> JointPlacements(const Shape& choice, const Attributes& attributes, const AxisRule& rule,
                                   Placement of_experts) {
  const Placement r = Placement::R();
  const Placement s = Placement::S(0);
  if (rule.parameters.Has(Dim::kExpert)) return {{of_experts, s, r}};
  std::vector<Joint> joint = {{r, r, r}};
  if (WholeTokens(attributes, rule)) return joint;
  for (int dim = 0; dim + 1 < choice.rank(); ++dim)
    joint.push_back({Placement::S(dim), s, Placement::S(dim)});
  return joint;
}

std::vector<Signature> SpreadSignatures(TypeSpan inputs, const Attributes& attributes, const AxisRule& rule) {
  std::vector<Signature> signatures;
  for (const Joint& at : JointPlacements(inputs[3].shape, attributes, rule, Placement::R()))
    signatures.push_back({{at.tokens, at.rows, at.rows, at.choice}, {at.rows}});
  return signatures;
}

std::vector<Signature> CombineSignatures(TypeSpan inputs, const Attributes& attributes,
                                         const AxisRule& rule) {
  std::vector<Signature> signatures;
  for (const Joint& at : JointPlacements(inputs[3].shape, attributes, rule, Placement::P()))
    signatures.push_back({{at.rows, at.rows, at.rows, at.choice}, {at.tokens}});
  if (rule.parameters.Has(Dim::kExpert)) return signatures;
  const Placement r = Placement::R();
  signatures.push_back({{Placement::P(), r, r, r}, {Placement::P()}});
  return signatures;
}

}  // namespace

const OpDef kTally{.name = "tally", .infer = InferTally, .work = MoveWork, .signatures = TallySignatures};
const OpDef kPlace{.name = "place", .infer = InferPlace, .work = MoveWork, .signatures = PlaceSignatures};
// Rows are several times the tokens that they are copies of: repeated where activations are.
const OpDef kSpread{.name = "spread",
                    .infer = InferSpread,
                    .family = Family::kActivation,
                    .work = MoveWork,
                    .gradient = SpreadGradient,
                    .signatures = SpreadSignatures};
const OpDef kCombine{.name = "combine",
                     .infer = InferCombine,
                     .work = CombineWork,
                     .gradient = CombineGradient,
                     .signatures = CombineSignatures};

}  // namespace engine::ops
