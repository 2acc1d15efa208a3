#include <algorithm>
#include <cmath>

#include "engine/base/status.h"
#include "engine/graph/dims.h"
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

// y + (alpha / rank) · B (A x), with parameters PREFIXlora_a [rank, in…] and PREFIXlora_b [out…, rank] (Hu et al.,
// arXiv:2106.09685, section 4.1). A begins with the variance of PEFT's, B with zeros, so that the adapter begins with nothing.
absl::StatusOr<graph::ValueId> Adapted(StepContext& step, const recipe::Lora& lora, const Product& product,
                                       const Sizes& in, graph::ValueId y,
                                       const graph::Attributes& of_product) {
  const std::string prefix = product.suffix.empty() ? "" : product.suffix + ".";
  const std::string name = product.suffix.empty() ? step.path() : step.path() + "." + product.suffix;
  Sizes a_sizes;
  a_sizes.Append(lora.rank, lora.rank, graph::Dim::kOther);
  for (int i = 0; i < in.shape.rank(); ++i) a_sizes.Append(in.shape[i], in.logical[i], in.dims[i]);
  Sizes b_sizes = product.out;
  b_sizes.Append(lora.rank, lora.rank, graph::Dim::kOther);
  const double std = 1 / std::sqrt(3.0 * static_cast<double>(in.shape.elements()));
  ASSIGN_OR_RETURN(const graph::ValueId a, step.Parameter(prefix + "lora_a", graph::Role::kAdapter, a_sizes,
                                                          StepContext::Normal(std)));
  ASSIGN_OR_RETURN(const graph::ValueId b,
                   step.Parameter(prefix + "lora_b", graph::Role::kAdapter, b_sizes, StepContext::Zeros()));
  graph::Attributes down = {{"in_dims", std::int64_t{in.shape.rank()}}};
  if (const std::int64_t split = of_product.Int("in_split", 0); split != 0) down.Set("in_split", split);
  graph::Attributes up = {{"in_dims", std::int64_t{1}}, {"out_split", of_product.Int("out_split", 0)}};
  ASSIGN_OR_RETURN(const graph::ValueId low,
                   step.Emit1(ops::kLinear, name + ".lora_a", {step.input(), a}, down));
  ASSIGN_OR_RETURN(const graph::ValueId scaled,
                   step.Emit1(ops::kScale, name + ".lora_scale", {low},
                              {{"by", lora.alpha / static_cast<double>(lora.rank)}}));
  ASSIGN_OR_RETURN(const graph::ValueId high, step.Emit1(ops::kLinear, name + ".lora_b", {scaled, b}, up));
  return step.Emit1(ops::kAdd, name + ".lora", {y, high});
}

absl::StatusOr<graph::ValueId> EmitProduct(StepContext& step, const Product& product, int contracted) {
  const graph::ValueId x = step.input();
  const int lead = step.type(x).shape.rank() - contracted;
  Sizes sizes = product.out;
  const int out = sizes.shape.rank();
  const Sizes in = step.TrailingSizes(x, lead);  // what is contracted, x's last dims
  for (int i = 0; i < contracted; ++i) sizes.Append(in.shape[i], in.logical[i], in.dims[i]);
  const std::string prefix = product.suffix.empty() ? "" : product.suffix + ".";
  const std::string name = product.suffix.empty() ? step.path() : step.path() + "." + product.suffix;
  ASSIGN_OR_RETURN(const graph::ValueId w, Weight(step, prefix, sizes));
  graph::Attributes attributes = {{"in_dims", std::int64_t{contracted}},
                                  {"out_split", std::int64_t{SplitDim(sizes.dims, 0, out)}}};
  if (const int split = SplitDim(sizes.dims, out, out + contracted); split != 0)
    attributes.Set("in_split", std::int64_t{split});
  ASSIGN_OR_RETURN(graph::ValueId y, step.Emit1(ops::kLinear, name, {x, w}, attributes));
  if (const recipe::Lora* lora = step.Has("weight") ? nullptr : step.Adapter(); lora != nullptr) {
    ASSIGN_OR_RETURN(y, Adapted(step, *lora, product, in, y, attributes));
  }
  if (!step.Flag("bias")) return y;
  ASSIGN_OR_RETURN(const graph::ValueId bias,
                   step.Parameter(prefix + "bias", graph::Role::kBias, product.out, StepContext::Zeros()));
  return step.Emit1(ops::kBiasAdd, name + ".add_bias", {y, bias});
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
        "unless `contract` says otherwise.",
    .reads = "x [l…, i…]",
    .parameters =
        "NAME.weight [out…, i…], role matrix; NAME.bias [out…], zeros. Of parts: NAME.PART.weight and "
        "NAME.PART.bias each. With [lora] also NAME.lora_a [rank, in…] and "
        "NAME.lora_b [out…, rank], role adapter",
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
