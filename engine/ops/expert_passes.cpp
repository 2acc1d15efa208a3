// Experts in passes: all of a step `experts` from the tokens to their sums, on one window of rows after the other
//
//   expert_passes(x[b, …, D…], weight[b, …, k], choice[b, …, k], choice_of[bound], row_of[N], groups[E, 2],
//                 w1[E, (2,) F, D…], w2[E, D…, F]) → y[b, …, D…]
//   expert_passes_grad(the same, dy) → dx, d_weight, d_w1, d_w2
//   extra_rows(choice_of, groups) → rows that are not in the first window, float64; accumulates over microbatches
//
// choice_of, row_of and groups are those of `place` (expert_rows.cpp). The composition is that of the ops spread, grouped_linear,
// expert_activation, grouped_linear and combine, of which each pass does what falls into its window (graph/windows.h). Attributes:
// passes, how many windows there are at the most; experts, of the whole model; act and gated as of expert_activation; features as in
// expert_rows.h. Buffers of the windows are scratch: rows that do not fit into one cost another pass, and never memory.
//
// Numerics: rows are what they are without windows. A token's sum is rounded to the dtype of y after each window in which it has
// rows, and windows follow each other in the order of experts. Gradients of weights add up window by window. In float32 these
// are other orders of the same sums.
//
// Placement: along an axis that splits experts each rank has its own, of all tokens, and y is partial; along one that splits
// features each has a part of every expert's; along one that splits tokens each has those of its tokens.
//
// Backward saves the inputs: rows, the first product and the activation are made again in each window.
#include "engine/ops/expert_passes.h"

#include "engine/graph/activation.h"
#include "engine/ops/expert_rows.h"
#include "engine/ops/ops.h"

namespace engine::ops {
namespace {

absl::Status ExpectPasses(TypeSpan inputs, const Attributes& attributes) {
  const Shape& x = inputs[kPassX].shape;
  const Shape& choice = inputs[kPassChoice].shape;
  const Shape& w1 = inputs[kPassW1].shape;
  const Shape& w2 = inputs[kPassW2].shape;
  const std::int64_t passes = attributes.Int("passes");
  if (passes < 1 || passes > graph::kMostPasses) return Internal("expert_passes: {} passes", passes);
  const std::string& act = attributes.String("act");
  if (graph::FindActivation(graph::kExpertActivations, act) == nullptr)
    return Internal("expert_passes with {}", act);
  if (inputs[kPassWeight].shape != choice || inputs[kPassRowOf].shape[0] != choice.elements())
    return Internal("expert_passes: choices {}, weights {}, rows of {}", choice.ToString(),
                    inputs[kPassWeight].shape.ToString(), inputs[kPassRowOf].shape.ToString());
  const int lead = choice.rank() - 1;
  const std::int64_t width = x.elements(lead, x.rank());
  const std::int64_t ffn = w2[w2.rank() - 1];
  const bool fits = x.elements(0, lead) == choice.elements(0, lead) &&
                    inputs[kPassChoiceOf].shape[0] % kRowAlignment == 0 && w1[0] == w2[0] &&
                    inputs[kPassGroups].shape == Shape{w1[0], 2} && w2.elements() == w1[0] * width * ffn &&
                    w1.elements() == w1[0] * width * ffn * (IsGated(attributes) ? 2 : 1);
  if (fits) return absl::OkStatus();
  return Internal("expert_passes of {} by {} and {}, choices {}, groups {}", x.ToString(), w1.ToString(),
                  w2.ToString(), choice.ToString(), inputs[kPassGroups].shape.ToString());
}

Types InferExpertPasses(TypeSpan inputs, const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectInputs(inputs, kPassDy, kPassDy, "expert_passes"));
  RETURN_IF_ERROR(ExpectPasses(inputs, attributes));
  return std::vector<TensorType>{inputs[kPassX]};
}

Types InferExpertPassesGrad(TypeSpan inputs, const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectInputs(inputs, kPassDy + 1, kPassDy + 1, "expert_passes_grad"));
  RETURN_IF_ERROR(ExpectPasses(inputs, attributes));
  if (inputs[kPassDy].shape != inputs[kPassX].shape)
    return Internal("expert_passes_grad: dy {} of x {}", inputs[kPassDy].shape.ToString(),
                    inputs[kPassX].shape.ToString());
  std::vector<TensorType> made = {inputs[kPassX], inputs[kPassWeight], inputs[kPassW1], inputs[kPassW2]};
  for (const size_t weights : {2, 3}) made[weights].dtype = StatisticsDType(inputs[kPassX].dtype);
  return made;
}

Types InferExtra(TypeSpan inputs, const Attributes&) {
  RETURN_IF_ERROR(ExpectInputs(inputs, 2, 2, "extra_rows"));
  return std::vector<TensorType>{{.shape = {}, .dtype = DType::kF64}};
}

// How often the elements of a row, D, those of the first product and F, are read or written beside the products.
struct RowTraffic {
  double width, hidden, ffn;
};
// Of the rows that have a choice, where all experts are chosen alike. `products`: how many there are of both matrices; `again`: FLOPs of
// those that are repeated, as a share of one; `arithmetic`: FLOPs of the activation for one of F.
Work PassesWork(TypeSpan inputs, TypeSpan outputs, const Attributes& attributes, double products,
                double again, double arithmetic, const RowTraffic& traffic) {
  const graph::WindowSizes sizes = WindowsOf(inputs, attributes);
  const double share =
      static_cast<double>(sizes.experts) / static_cast<double>(attributes.Int("experts", sizes.experts));
  const double rows = static_cast<double>(sizes.choices) * share;
  const auto width = static_cast<double>(sizes.width);
  const auto hidden = static_cast<double>(sizes.hidden);
  const auto ffn = static_cast<double>(sizes.ffn);
  const double results = rows * (hidden + width);
  const double of_matrices = 2 * rows * width * (hidden + ffn);
  const double row = width * traffic.width + hidden * traffic.hidden + ffn * traffic.ffn;
  double bytes = rows * row * static_cast<double>(SizeOf(inputs[kPassX].dtype));
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (i != kPassChoiceOf) bytes += Bytes(inputs[i]);
  }
  return {.flops = (products + again) * of_matrices + arithmetic * rows * ffn,
          .bytes = bytes + Bytes(outputs),
          .product_flops = products * of_matrices,
          .results = products * results,
          .depth = results > 0 ? of_matrices / (2 * results) : 0};
}
Work ExpertPassesWork(TypeSpan inputs, TypeSpan outputs, const Attributes& attributes) {
  return PassesWork(inputs, outputs, attributes, 1, 0, 10, {.width = 2, .hidden = 1, .ffn = 1});
}
Work ExpertPassesGradWork(TypeSpan inputs, TypeSpan outputs, const Attributes& attributes) {
  const graph::WindowSizes sizes = WindowsOf(inputs, attributes);
  const double first = static_cast<double>(sizes.hidden) / static_cast<double>(sizes.hidden + sizes.ffn);
  return PassesWork(inputs, outputs, attributes, 2, first, 32, {.width = 3, .hidden = 2, .ffn = 2});
}
Work ExtraWork(TypeSpan inputs, TypeSpan outputs, const Attributes&) {
  return {.flops = 0, .bytes = Bytes(inputs[1]) + Bytes(outputs)};
}

ValueIds ExpertPassesGradient(GradientContext& context) {
  const graph::Node& node = context.node;
  ValueIds inputs = node.inputs;
  inputs.push_back(context.d_outputs[0]);
  const ValueId of_w1 = context.accumulators[kPassW1];
  const ValueId of_w2 = context.accumulators[kPassW2];
  const std::array<ValueId, 4> into = {kNoValue, kNoValue, of_w1, of_w2};
  const ValueIds d = context.graph->Emit(kExpertPassesGrad, "d_" + node.name, inputs, node.attributes, into);
  ValueIds gradients(kPassDy, kNoValue);
  gradients[kPassX] = d[0];
  gradients[kPassWeight] = d[1];
  if (of_w1 == kNoValue) gradients[kPassW1] = d[2];
  if (of_w2 == kNoValue) gradients[kPassW2] = d[3];
  return gradients;
}

// How tokens, with their choices and weights, rows' places and the two matrices lie.
struct Lie {
  Placement tokens, places, w1, w2;
  bool partial = false;          // what is made of rows is a term of the tokens' sums
  bool partial_weights = false;  // gradients of the matrices are terms
  bool fallback = false;
};
std::vector<Lie> Places(TypeSpan inputs, const Attributes& attributes, const AxisRule& rule) {
  const Placement r = Placement::R();
  const Placement s = Placement::S(0);
  if (rule.parameters.Has(Dim::kExpert)) return {{r, s, s, s, true}};
  const Lie whole = {.tokens = r, .places = r, .w1 = r, .w2 = r, .fallback = true};
  if (WholeTokens(attributes, rule)) {
    return {{r, r, Placement::S(IsGated(attributes) ? 2 : 1), Placement::S(inputs[kPassW2].shape.rank() - 1),
             true},
            whole};
  }
  std::vector<Lie> places;
  for (int dim = 0; dim + 1 < inputs[kPassChoice].shape.rank(); ++dim)
    places.push_back({Placement::S(dim), s, r, r, false, true});
  places.push_back(whole);
  return places;
}

std::vector<Signature> ExpertPassesSignatures(TypeSpan inputs, const Attributes& attributes,
                                              const AxisRule& rule) {
  std::vector<Signature> signatures;
  for (const Lie& at : Places(inputs, attributes, rule)) {
    signatures.push_back({{at.tokens, at.tokens, at.tokens, at.places, at.places, at.places, at.w1, at.w2},
                          {at.partial ? Placement::P() : at.tokens},
                          at.fallback});
  }
  return signatures;
}
std::vector<Signature> ExpertPassesGradSignatures(TypeSpan inputs, const Attributes& attributes,
                                                  const AxisRule& rule) {
  std::vector<Signature> signatures;
  for (const Lie& at : Places(inputs, attributes, rule)) {
    const Placement d_tokens = at.partial ? Placement::P() : at.tokens;
    signatures.push_back(
        {{at.tokens, at.tokens, at.tokens, at.places, at.places, at.places, at.w1, at.w2, at.tokens},
         {d_tokens, d_tokens, at.partial_weights ? Placement::P() : at.w1,
          at.partial_weights ? Placement::P() : at.w2},
         at.fallback});
  }
  return signatures;
}
std::vector<Signature> ExtraSignatures(TypeSpan, const Attributes&, const AxisRule& rule) {
  const Placement r = Placement::R();
  const Placement s = Placement::S(0);
  const Signature of_ranks = {{s, s}, {Placement::P()}};
  if (rule.parameters.Has(Dim::kExpert)) return {of_ranks};
  return {{{r, r}, {r}}, of_ranks};
}

}  // namespace

graph::WindowSizes WindowsOf(TypeSpan inputs, const Attributes& attributes) {
  return graph::SizesOfWindows(inputs[kPassChoice].shape, inputs[kPassChoiceOf].shape, inputs[kPassW1].shape,
                               inputs[kPassW2].shape, attributes.Int("passes"));
}

const OpDef kExpertPasses{.name = "expert_passes",
                          .infer = InferExpertPasses,
                          .family = Family::kProduct,
                          .work = ExpertPassesWork,
                          .gradient = ExpertPassesGradient,
                          .signatures = ExpertPassesSignatures};
const OpDef kExpertPassesGrad{.name = "expert_passes_grad",
                              .infer = InferExpertPassesGrad,
                              .family = Family::kProduct,
                              .work = ExpertPassesGradWork,
                              .signatures = ExpertPassesGradSignatures,
                              .accumulates = 0b1100};
const OpDef kExtraRows{.name = "extra_rows",
                       .infer = InferExtra,
                       .work = ExtraWork,
                       .signatures = ExtraSignatures,
                       .accumulates = 1};

}  // namespace engine::ops
