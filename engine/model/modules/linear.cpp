#include <algorithm>

#include <cmath>

#include "engine/base/status.h"
#include "engine/graph/dims.h"
#include "engine/model/lora.h"
#include "engine/model/modules/modules.h"
#include "engine/ops/ops.h"

namespace engine::model {
namespace {

// The first dim that a mesh axis may split weights along; 0 where there is none.
int SplitDim(const graph::Dims& dims, int from, int to) {
  for (int dim = from; dim < to; ++dim) {
    const auto splits = [&](const graph::AxisRule& rule) { return rule.parameters.Has(dims[dim]); };
    if (std::any_of(graph::kAxisRules.begin(), graph::kAxisRules.end(), splits)) return dim - from;
  }
  return 0;
}

struct Product {
  std::string suffix;  // of its name; empty: none
  Sizes out;
};

absl::StatusOr<graph::ValueId> Weight(StepContext& step, const std::string& prefix, const Sizes& sizes) {
  if (!step.Has("weight"))
    return step.Parameter(prefix + "weight", graph::Role::kMatrix, sizes, step.Get("init").initializer);
  const graph::ValueId weight = step.Get("weight").value;
  const Shape& shape = step.type(weight).shape;
  if (shape == sizes.shape) return weight;
  return step.ErrorIn(
      "weight", fmt::format("{} is {}, and a weight of {} is needed here (out, then what is contracted)",
                            step.graph().value(weight).name, shape.ToString(), sizes.shape.ToString()));
}

// y + alpha / rank · B (A x) beside y = W x. The factor is applied to the narrow tensor between the two products. That one is
// whole on every rank of tp: its dims have no meaning by which it could be split, and it is small.
absl::StatusOr<graph::ValueId> AddAdapter(StepContext& step, const std::string& prefix,
                                          const std::string& name, const Sizes& out, const Sizes& in,
                                          graph::ValueId y) {
  const recipe::Lora& lora = step.options().lora;
  Sizes down;
  down.Append(lora.rank, lora.rank, graph::Dim::kOther);
  for (int i = 0; i < in.shape.rank(); ++i) down.Append(in.shape[i], in.logical[i], in.dims[i]);
  Sizes up = out;
  up.Append(lora.rank, lora.rank, graph::Dim::kOther);
  const double std = 1 / std::sqrt(3 * static_cast<double>(in.shape.elements()));
  ASSIGN_OR_RETURN(const graph::ValueId a, step.Parameter(prefix + std::string(kLoraA), graph::Role::kAdapter,
                                                          down, StepContext::Normal(std)));
  ASSIGN_OR_RETURN(const graph::ValueId b, step.Parameter(prefix + std::string(kLoraB), graph::Role::kAdapter,
                                                          up, StepContext::Zeros()));
  const auto attributes = [](std::int64_t in_dims, std::int64_t out_split, std::int64_t in_split) {
    graph::Attributes of = {{"in_dims", in_dims}, {"out_split", out_split}, {"adapter", std::int64_t{1}}};
    if (in_split != 0) of.Set("in_split", in_split);
    return of;
  };
  ASSIGN_OR_RETURN(graph::ValueId narrow,
                   step.Emit1(ops::kLinear, name + ".lora_a", {step.input(), a},
                              attributes(in.shape.rank(), 0, SplitDim(in.dims, 0, in.shape.rank()))));
  step.graph().value(narrow).pin = graph::Pin::kReplicated;
  const double by = lora.alpha / static_cast<double>(lora.rank);
  if (by != 1) {
    ASSIGN_OR_RETURN(narrow, step.Emit1(ops::kScale, name + ".lora_scale", {narrow}, {{"by", by}}));
  }
  ASSIGN_OR_RETURN(const graph::ValueId wide,
                   step.Emit1(ops::kLinear, name + ".lora_b", {narrow, b},
                              attributes(1, SplitDim(out.dims, 0, out.shape.rank()), 0)));
  return step.Emit1(ops::kAdd, name + ".lora", {y, wide});
}

absl::StatusOr<graph::ValueId> EmitProduct(StepContext& step, const Product& product, int contracted) {
  const graph::ValueId x = step.input();
  const int lead = step.type(x).shape.rank() - contracted;
  Sizes sizes = product.out;
  const int out = sizes.shape.rank();
  const Sizes in = step.TrailingSizes(x, lead);
  for (int i = 0; i < contracted; ++i) sizes.Append(in.shape[i], in.logical[i], in.dims[i]);
  const std::string prefix = product.suffix.empty() ? "" : product.suffix + ".";
  const std::string name = product.suffix.empty() ? step.path() : step.path() + "." + product.suffix;
  ASSIGN_OR_RETURN(const graph::ValueId w, Weight(step, prefix, sizes));
  graph::Attributes attributes = {{"in_dims", std::int64_t{contracted}},
                                  {"out_split", std::int64_t{SplitDim(sizes.dims, 0, out)}}};
  if (const int split = SplitDim(sizes.dims, out, out + contracted); split != 0)
    attributes.Set("in_split", std::int64_t{split});
  ASSIGN_OR_RETURN(graph::ValueId y, step.Emit1(ops::kLinear, name, {x, w}, attributes));
  if (step.Flag("bias")) {
    ASSIGN_OR_RETURN(const graph::ValueId bias,
                     step.Parameter(prefix + "bias", graph::Role::kBias, product.out, StepContext::Zeros()));
    ASSIGN_OR_RETURN(y, step.Emit1(ops::kBiasAdd, name + ".add_bias", {y, bias}));
  }
  const bool adapts = step.in_stack() && !step.Has("weight") && IsLoraTarget(step.options().lora, name);
  return adapts ? AddAdapter(step, prefix, name, product.out, in, y) : y;
}

absl::StatusOr<graph::ValueIds> EmitLinear(StepContext& step) {
  const int rank = step.type(step.input()).shape.rank();
  int contracted = rank - step.LeadingDims(step.input());
  if (step.Has("contract")) contracted = static_cast<int>(step.Int("contract"));
  if (contracted < 1 || contracted >= rank) {
    return step.ErrorIn("contract",
                        fmt::format("{} has no {} dims behind its samples and tokens to contract",
                                    step.type(step.input()).shape.ToString(), std::max(contracted, 1)));
  }
  if (step.Has("out") == step.Has("parts")) {
    return step.Error("it needs either out, the shape that it gives, or parts, several by name",
                      "out = [\"D\"]; or parts = { u = [\"F\"], g = [\"F\"] }");
  }
  if (step.Has("out")) {
    ASSIGN_OR_RETURN(const graph::ValueId y, EmitProduct(step, {"", step.Get("out").sizes}, contracted));
    return graph::ValueIds{y};
  }
  if (step.Has("weight")) return step.ErrorIn("weight", "each of the parts has a weight of its own");
  graph::ValueIds results;
  for (const NamedSizes& part : step.Get("parts").parts) {
    ASSIGN_OR_RETURN(const graph::ValueId y, EmitProduct(step, {part.name, part.sizes}, contracted));
    results.push_back(y);
  }
  return results;
}

}  // namespace

const ModuleDef kLinearModule{
    .name = "linear",
    .doc =
        "y[l…, o…] = Σ_i x[l…, i…] · w[o…, i…] (+ b[o…]). All dims of x behind its samples and tokens are "
        "contracted, "
        "unless `contract` says otherwise. Where [lora] names a step of a stack, y + alpha / rank · B (A x) "
        "(docs/lora.md).",
    .reads = "x [l…, i…]",
    .parameters =
        "NAME.weight [out…, i…], role matrix; NAME.bias [out…], zeros. Of parts: NAME.PART.weight and "
        "NAME.PART.bias each. Of [lora], role adapter: "
        "NAME.lora_a [rank, i…], normal with the variance 1 / 3i, and NAME.lora_b [out…, rank], zeros",
    .gives = "[l…, out…]; with parts, one value a part, called as the part",
    .results = -1,
    .attributes =
        {{.name = "out",
          .kind = AttributeKind::kShape,
          .doc = "Dims that it gives: [\"K\", \"H/K+2\", \"E\"]."},
         {.name = "parts",
          .kind = AttributeKind::kParts,
          .doc =
              "Several products of one input, each with a weight and a result of its own, which are placed "
              "apart: { u = [\"F\"], g = [\"F\"] }. One product, with one weight, is faster: out = [\"K\", "
              "\"H/K+2\", \"E\"] with qkv_split behind it, or out = [2, \"F\"] with gate."},
         {.name = "bias",
          .kind = AttributeKind::kFlag,
          .initial = "false",
          .doc = "Whether a bias is added."},
         {.name = "weight",
          .kind = AttributeKind::kParameter,
          .doc = "The weight of another step, in place of one of its own: tied embeddings."},
         {.name = "contract",
          .kind = AttributeKind::kInteger,
          .doc = "How many trailing dims of x are contracted.",
          .min = 1,
          .max = 7},
         {.name = "init", .kind = AttributeKind::kInitializer, .initial = "normal", .doc = "Of the weight."}},
    .emit = EmitLinear};

}  // namespace engine::model
