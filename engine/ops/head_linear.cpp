// A linear map for each head
//
//   head_linear(x[B, S, H, M], w[H, N, C]) → y
//     y[B, S, H, N]:  y_bshn = Σ_c x_bshc · w_hnc, where M = C
//     y[B, S, H, C]:  y_bshc = Σ_n x_bsh,first+n · w_hnc, with attribute transposed = 1: of each row of x, elements first …
//                     first + N − 1 are read, and M is first + N at least.
//
// So multi-head latent attention scores keys by their latents, without making the keys: W_kᵀ is absorbed by the query, and W_v is
// applied to the sum of latents (DeepSeek-V2, arXiv:2405.04434, section 2.1; cached_latent_attention.cpp). Sums in fp32 or wider.
//
// Placement: heads are split with those of the weight; samples and tokens may be split where the weight is whole. No gradients.
#include "engine/ops/common.h"
#include "engine/ops/ops.h"

namespace engine::ops {
namespace {

bool IsTransposed(const Attributes& attributes) { return attributes.Int("transposed", 0) != 0; }

Types InferHeadLinear(TypeSpan inputs, const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectInputs(inputs, 2, 2, "head_linear"));
  const Shape& x = inputs[0].shape;
  const Shape& w = inputs[1].shape;
  const bool transposed = IsTransposed(attributes);
  const std::int64_t first = attributes.Int("first", 0);
  bool fits = x.rank() == 4 && w.rank() == 3 && x[2] == w[0] && inputs[0].dtype == inputs[1].dtype;
  fits = fits && (transposed ? first >= 0 && first + w[1] <= x[3] : first == 0 && x[3] == w[2]);
  if (!fits) {
    return Internal("head_linear{} of x {} from {} on with w {}", transposed ? ", transposed," : "",
                    x.ToString(), first, w.ToString());
  }
  TensorType y = Leading(inputs[0], 3, inputs[0].dtype);
  y.Append(inputs[1], transposed ? 2 : 1);
  return std::vector<TensorType>{y};
}

// 2·B·S·H·N·C.
Work HeadLinearCost(TypeSpan inputs, TypeSpan outputs, const Attributes& attributes) {
  const Shape& x = inputs[0].shape;
  const Shape& w = inputs[1].shape;
  const double depth = static_cast<double>(w[IsTransposed(attributes) ? 1 : 2]);
  const double flops = 2 * Elements(outputs[0]) * depth;
  const double read =
      static_cast<double>(x.elements(0, 3)) * depth * static_cast<double>(SizeOf(inputs[0].dtype));
  return {.flops = flops,
          .bytes = read + Bytes(inputs[1]) + Bytes(outputs),
          .product_flops = flops,
          .results = Elements(outputs[0]),
          .depth = depth};
}

std::vector<Signature> HeadLinearSignatures(TypeSpan, const Attributes&, const AxisRule& rule) {
  const Placement r = Placement::R();
  std::vector<Signature> signatures;
  const bool splits = rule.parameters.Has(Dim::kHead);
  if (splits) {
    signatures.push_back({{Placement::S(2), Placement::S(0)}, {Placement::S(2)}});
  } else {
    for (const int dim : {0, 1}) signatures.push_back({{Placement::S(dim), r}, {Placement::S(dim)}});
  }
  signatures.push_back({{r, r}, {r}, /*fallback=*/true});
  return signatures;
}

}  // namespace

const OpDef kHeadLinear{.name = "head_linear",
                        .infer = InferHeadLinear,
                        .family = Family::kProduct,
                        .work = HeadLinearCost,
                        .signatures = HeadLinearSignatures};

}  // namespace engine::ops
