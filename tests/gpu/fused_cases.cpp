// Cases of the fused ops: each dtype that the profile fuses, against the composition.
#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <string>

#include "engine/backend/cuda/profile/profile.h"
#include "engine/ops/fused.h"
#include "engine/ops/ops.h"
#include "tests/gpu/cases.h"

namespace engine::gpu_test {
namespace {

using graph::Attributes;
using graph::OpDef;
using ops_test::Input;

void Multiply(Tensor* tensor, double factor) {
  for (std::int64_t i = 0; i < tensor->elements(); ++i) tensor->Set(i, factor * tensor->Get(i));
}

// The dtypes in which the profile fuses the op, by the shape that it asks for.
std::vector<DType> FusedDTypes(const OpDef& op, const Shape& decides) {
  std::vector<DType> dtypes;
  for (DType dtype : kFloats) {
    if (backend::cuda::CudaProfile().fuses(op, {decides, dtype}, {})) dtypes.push_back(dtype);
  }
  return dtypes;
}

// x is scaled so that products have a variance near 0.75². tanh of the cuBLASLt epilogue is taken to be as
// exact as tanh.approx.f32 (cases.cpp: 2⁻¹²·max|pre| of the value, 2⁻¹²·(1 + 2·1.5·2.1)·max|dy·w| ≤
// 2⁻¹²·8·4.5 of the gradient). The kernel takes gelu of pre as it is in fp32, the reference of the rounded
// one: u·1.13·max|pre|, 1.13 being the largest slope of gelu.
void AddGelu(std::int64_t in, std::int64_t out, GpuCases* cases) {
  const Attributes attributes = {{"in_dims", kOne}, {"tanh", kOne}};
  const std::string label = fmt::format("{} to {}", in, out);
  const Shape x = {2, 20, in};
  const Shape y = {2, 20, out};
  cases->push_back(
      {.base = {&ops::kLinearGelu, label, {{x}, {{out, in}}, {{out}}}, attributes, in + 1, true}});
  cases->back().dtypes = FusedDTypes(ops::kLinearGelu, y);
  cases->back().adjust = [in](Tensors* inputs) {
    Multiply(&(*inputs)[1], 1 / std::sqrt(static_cast<double>(in)));
  };
  cases->back().extra = [](size_t output, DType dtype, const Tensors&, const Tensors& expected) {
    return output == 0 ? (UnitRoundoff(dtype) * 1.13 + 0x1p-12) * ops_test::Scale(expected[1]) : 0;
  };
  // Here `in` is contracted too: dy[.., in], w[in, out].
  cases->push_back({.base = {&ops::kLinearDgradGelu, label, {{x}, {{in, out}}, {y}}, attributes, in, true}});
  cases->back().dtypes = FusedDTypes(ops::kLinearDgradGelu, y);
  cases->back().adjust = [in](Tensors* inputs) {
    Multiply(&(*inputs)[1], 1 / std::sqrt(static_cast<double>(in)));
  };
  cases->back().extra = [](size_t, DType, const Tensors&, const Tensors&) { return 0x1p-12 * 8 * 4.5; };
}

// The kernel adds the product as it is in fp32, the reference as it was rounded: u times its size, which is below 8.
void AddAddedProducts(std::int64_t tokens, std::int64_t in, std::int64_t out, GpuCases* cases) {
  const std::string label = fmt::format("2 x {} tokens, {} to {}", tokens, in, out);
  const Shape x = {2, tokens, in};
  const Shape y = {2, tokens, out};
  const auto add = [&](const OpDef& op, const Shape& w) {
    cases->push_back({.base = {&op, label, {{x}, {w}, {y}}, {{"in_dims", kOne}}, in + 1, true}});
    cases->back().dtypes = FusedDTypes(op, y);
    cases->back().adjust = [in](Tensors* inputs) {
      Multiply(&(*inputs)[1], 1 / std::sqrt(static_cast<double>(in)));
    };
    cases->back().extra = [](size_t, DType dtype, const Tensors&, const Tensors&) {
      return UnitRoundoff(dtype) * 8;
    };
  };
  add(ops::kLinearAdd, {out, in});
  add(ops::kLinearDgradAdd, {in, out});
}

void AddActivationsAgain(GpuCases* cases) {
  for (const Shape& x : {Shape{3, 81, 307}, Shape{2, 64, 1280}}) {
    for (std::int64_t tanh : {0, 1}) {
      cases->push_back({.base = {&ops::kGeluGradAgain,
                                 (tanh != 0 ? "tanh, x " : "erf, x ") + x.ToString(),
                                 {{x}, {x}},
                                 {{"tanh", tanh}},
                                 1,
                                 true}});
      cases->back().dtypes = FusedDTypes(ops::kGeluGradAgain, x);
      cases->back().extra = [tanh](size_t output, DType dtype, const Tensors&, const Tensors&) {
        if (dtype == DType::kF32 || tanh == 0) return 0.0;
        return 0x1p-12 * (output == 1 ? 1.5 : 12.0);  // as GeluExtra in cases.cpp
      };
    }
    const Shape pair = {x[0], x[1], 2, x[2]};
    cases->push_back({.base = {&ops::kSwigluGradAgain, "x " + pair.ToString(), {{pair}, {x}}, {}, 1, true}});
    cases->back().dtypes = FusedDTypes(ops::kSwigluGradAgain, pair);
  }
}

// Dropout of a branch before a norm, and its gradient with that of the branch's bias.
void AddDroppedNorms(const std::string& label, const Shape& x, const Attributes& epsilon, GpuCases* cases) {
  const Shape d = {x[2]};
  const std::int64_t count = x[1];
  const Attributes dropout = {{"p", 0.1}, {"stream", std::string("layers.3.residual")}};
  Attributes both = epsilon;
  for (const auto& [name, item] : dropout.items()) both.Set(name, item);
  const auto add = [&](const OpDef& op, const std::string& text, const std::vector<Input>& inputs,
                       const Attributes& attributes) {
    cases->push_back({.base = {&op, text, inputs, attributes, count + x[2], true}});
    cases->back().dtypes = FusedDTypes(op, x);
    return &cases->back();
  };
  add(ops::kAddDropoutLayerNorm, label + " biased", {{x}, {x}, {d}, {d}, {d}}, both);
  for (const bool pieces : {false, true}) {
    const std::string text = label + (pieces ? ", in pieces" : "");
    GpuCase* test = add(ops::kAddDropoutLayerNorm, text, {{x}, {x}, {d}, {d}}, both);
    if (pieces) test->adjust = InPieces(1);
    test = add(ops::kAddDropoutRmsNorm, text, {{x}, {x}, {d}}, both);
    if (pieces) test->adjust = InPieces(1);
    // In fp32 each dx differs by two operations' rounding; in 16 bits by its own where it lies on a tie: in few of a
    // column's rows, four allowed.
    test = add(ops::kDropoutGradBias, text, {{x}}, dropout);
    if (pieces) test->adjust = InPieces(0);
    test->extra = [count](size_t output, DType dtype, const Tensors&, const Tensors& expected) {
      if (output != 1) return 0.0;
      const double each = dtype == DType::kF32 ? 2.0 * static_cast<double>(count) : 8.0;
      return each * UnitRoundoff(dtype) * ops_test::Scale(expected[0]);
    };
  }
}

void AddNorms(std::int64_t count, std::int64_t columns, double gain_offset, GpuCases* cases) {
  const Shape x = {1, count, columns};
  const Shape rows = {1, count};
  const Shape d = {columns};
  const Input rstd = Make(rows, Input::kPositive);
  const std::int64_t terms = count + columns;
  std::string label = fmt::format("{} rows of {}", count, columns);
  Attributes epsilon = {{"epsilon", 1e-5}};
  if (gain_offset != 0) {
    label += fmt::format(", gain {} + w", gain_offset);
    epsilon.Set("gain_offset", gain_offset);
  }
  Attributes with_bias = epsilon;
  with_bias.Set("bias", kOne);
  const auto add = [&](const OpDef& op, const std::string& text, const std::vector<Input>& inputs,
                       const Attributes& attributes) {
    cases->push_back({.base = {&op, text, inputs, attributes, terms, true}});
    cases->back().dtypes = FusedDTypes(op, x);
    return &cases->back();
  };
  add(ops::kAddLayerNorm, label, {{x}, {x}, {d}, {d}}, epsilon);
  add(ops::kAddLayerNorm, label + " biased", {{x}, {x}, {d}, {d}, {d}}, epsilon);
  add(ops::kAddRmsNorm, label, {{x}, {x}, {d}}, epsilon);
  AddDroppedNorms(label, x, epsilon, cases);
  add(ops::kLayerNormGradAdd, label, {{x}, {x}, {d}, {rows}, rstd, {x}}, epsilon);
  add(ops::kRmsNormGradAdd, label, {{x}, {x}, {d}, rstd, {x}}, epsilon);
  // d_bias sums dx as rounded to its dtype. In 16 bits the two dx round to different neighbours, 2u·max|dx|
  // apart, where fp32 noise lies on a tie: in few of a column's rows, four allowed. In fp32 each differs by
  // its 16 operations' rounding.
  for (const OpDef* op : {&ops::kLayerNormGradAdd, &ops::kRmsNormGradAdd}) {
    const bool layer = op == &ops::kLayerNormGradAdd;
    std::vector<Input> inputs = {{x}, {x}, {d}, {rows}, rstd, {x}};
    if (!layer) inputs.erase(inputs.begin() + 3);
    add(*op, label + ", bias", inputs, with_bias)->extra =
        [layer, count](size_t output, DType dtype, const Tensors&, const Tensors& expected) {
          if (output != (layer ? 3U : 2U)) return 0.0;
          const double each = dtype == DType::kF32 ? 16.0 * static_cast<double>(count) : 8.0;
          return each * UnitRoundoff(dtype) * ops_test::Scale(expected[0]);
        };
  }
}

void AddRotary(const Shape& qkv, const Attributes& attributes, GpuCases* cases) {
  for (const OpDef* op : {&ops::kRotary, &ops::kRotaryGrad}) {
    cases->push_back(
        {.base = {op,
                  fmt::format("qkv {}, {} elements{}", qkv.ToString(), attributes.Int("width", qkv[4]),
                              attributes.Int("interleaved", 0) != 0 ? ", interleaved" : ""),
                  {{qkv}, Make({qkv[0], qkv[1]}, Input::kPositions)},
                  attributes,
                  2,
                  true}});
    cases->back().dtypes = FusedDTypes(ops::kRotary, qkv);
  }
}

// Each query head has its key and value head. With cuDNN (heads of 64 or more, 16 bits) the bounds of
// CudnnExtra in cases.cpp: o below 2·u·1.5, dq below 2·u·scale·12σ·1.5, dk and dv by the mass m, the largest
// Σ_i P_ij of a key. The packed gradient is one tensor, so it takes the largest bound of the three; m is at
// most 2·(1 + ln S): scores of standard deviation 0.75 leave P within a few times 1/(i + 1), Σ_i 1/(i + 1) ≤
// 1
// + ln S. Queries in chunks (a group may have only so many bytes): twice the bound, as there.
// `documents`: samples are of documents of that many tokens, the last of the rest; by the reference kernels. 0: of one.
void AddPackedAttention(const Shape& qkv, std::vector<DType> dtypes, GpuCases* cases,
                        std::int64_t group_bytes = 0, std::int64_t documents = 0) {
  const double scale = 1.0 / std::sqrt(static_cast<double>(qkv[4]));
  Attributes attributes = {{"scale", scale}, {"window", std::int64_t{0}}, {"dropout", 0.0}};
  if (group_bytes > 0) {
    attributes.Set("grad_group_bytes", group_bytes);
    attributes.Set("kernel", std::string("cudnn"));
  }
  const Input positions = Make({qkv[0], qkv[1]}, Input::kPositions);
  const Shape o = {qkv[0], qkv[1], qkv[2], qkv[4]};
  const Shape lse = {qkv[0], qkv[1], qkv[2]};
  const bool cudnn = qkv[4] >= 64 && documents == 0;
  const std::int64_t terms = qkv[1] + qkv[4];
  const std::vector<DType> fused = FusedDTypes(ops::kAttentionPacked, qkv);
  std::erase_if(dtypes, [&](DType d) { return std::find(fused.begin(), fused.end(), d) == fused.end(); });
  std::string label = "qkv " + qkv.ToString();
  if (group_bytes > 0) label += fmt::format(", groups of {} bytes", group_bytes);
  std::vector<Input> forward_inputs = {{qkv}, positions};
  if (documents > 0) {
    label += fmt::format(", documents of {} tokens", documents);
    attributes.Set("kernel", std::string("reference"));
    Input spans = Make({qkv[0], qkv[1], 2}, Input::kGiven);
    for (std::int64_t token = 0; token < qkv[0] * qkv[1]; ++token) {
      const std::int64_t first = token % qkv[1] / documents * documents;
      const std::int64_t last = std::min(first + documents, qkv[1]);
      spans.given.insert(spans.given.end(),
                         {static_cast<std::int32_t>(first), static_cast<std::int32_t>(last)});
    }
    forward_inputs.push_back(spans);
  }
  const std::size_t saved_at = forward_inputs.size();
  std::vector<Input> backward_inputs = forward_inputs;
  backward_inputs.insert(backward_inputs.end(), {{o}, {lse}, {o}});

  cases->push_back({.base = {&ops::kAttentionPacked, label, forward_inputs, attributes, terms, true}});
  cases->back().dtypes = dtypes;
  cases->back().extra = [cudnn](size_t output, DType dtype, const Tensors&, const Tensors&) {
    return cudnn && output == 0 && dtype != DType::kF32 ? 2 * UnitRoundoff(dtype) * 1.5 : 0.0;
  };
  cases->push_back({.base = {&ops::kAttentionPackedGrad, label, backward_inputs, attributes, terms, true}});
  cases->back().dtypes = dtypes;
  cases->back().adjust = [attributes, saved_at](Tensors* inputs) {
    GpuCase forward;
    forward.base.op = &ops::kAttentionPacked;
    forward.base.attributes = attributes;
    const auto at = inputs->begin() + static_cast<std::ptrdiff_t>(saved_at);
    const std::vector<graph::TensorType> types = {{at[0].type().shape, DType::kF64},
                                                  {at[1].type().shape, DType::kF64}};
    const Tensors saved = Reference(forward, Tensors(inputs->begin(), at), types);
    at[0] = saved[0];
    at[1] = saved[1];
  };
  const double roundings = group_bytes > 0 ? 4 : 2;
  cases->back().extra = [=](size_t, DType dtype, const Tensors&, const Tensors&) {
    if (!cudnn || dtype == DType::kF32) return 0.0;
    const double mass = 2 * (1 + std::log(static_cast<double>(qkv[1])));
    const double d_score = scale * 12 * 0.75 * std::sqrt(static_cast<double>(qkv[4]));
    return roundings * UnitRoundoff(dtype) * mass * 1.5 * std::max(1.0, d_score);
  };
}

// A head, and the terms of its loss; what lies between product and softmax; a bias, and what is frozen.
struct Head {
  std::int64_t columns, classes, depth, chunk;
  double smoothing = 0, z_loss = 0;
  double by = 1, cap = 0;
  bool bias = false, d_bias = false, frozen = false;
};

enum class HeadOutput { kInput, kTable, kLoss, kBias };

// Which output of the op it is.
HeadOutput OutputAt(const Head& head, size_t output) {
  std::vector<HeadOutput> all = {HeadOutput::kInput};
  if (!head.frozen) all.push_back(HeadOutput::kTable);
  all.push_back(HeadOutput::kLoss);
  if (head.d_bias) all.push_back(HeadOutput::kBias);
  return all.at(output);
}

// The largest number of tokens that share a label.
int MostOfALabel(const Tensor& labels, std::int64_t classes) {
  std::vector<int> counts(static_cast<size_t>(classes), 0);
  int most = 0;
  for (std::int64_t i = 0; i < labels.elements(); ++i) {
    if (labels.Get(i) >= 0) most = std::max(most, ++counts[static_cast<size_t>(labels.Get(i))]);
  }
  return most;
}

// Errors beside the fp32 ones: logits are rounded to the dtype, u·Z with Z the largest, and the gradients of
// logits in place of them. With weight w = scale and p the softmax: each token's loss is off by 2·u·Z;
// d_logits by w·(2·u·Z·p + u·|p − onehot|). Summed over classes for d_x: w·(2·u·Z + 2·u)·max|w_head|; summed
// over tokens for d_w: w·max|x|·u·((2·Z + 1)·mass + count), mass = Σ_tokens p ≤ T·min(1, exp(2·Z)/V), count:
// tokens that share a label; d_bias is that without x. With label smoothing and z-loss ζ: lse is at most L = Z + ln V, so
// that the softmax's part and the loss of a token are off by up to 1 + 2·ζ·L times as much, and what is rounded has ε/V
// more, which Σ over classes adds up to u·ε ≤ u. A bias adds up to 1.5 to Z.
//
// With a scale a and a cap c between product and softmax: they multiply an error by at most |a|, and so does the way back.
// In 16 bits tanh is off by 2⁻²⁰, a logit so by c·2⁻²⁰. The slope a·(1 − t²) is off by a²/c·|2·t·(1 − t²)| ≤ 0.77·a²/c
// times the error u·Z of the product, for each |p − onehot|.
double HeadExtra(const Head& head, HeadOutput output, DType dtype, const Tensors& inputs, double scale) {
  const double u = UnitRoundoff(dtype);
  const auto classes = static_cast<double>(head.classes);
  const double product =
      6 * 0.75 * 0.75 + (head.bias ? 1.5 : 0);  // six standard deviations of Σ_D x·w, w scaled by 1/√D
  const double by = std::fabs(head.by);
  const double tanh_error = dtype == DType::kF32 ? 0 : head.cap * 0x1p-20;
  const double z = by * product;
  const double off = u * z + tanh_error;
  const double slope_off = head.cap > 0 ? 0.77 * by * by / head.cap * u * product : 0;
  const int count = MostOfALabel(inputs[2], head.classes);
  const double tokens = static_cast<double>(inputs[2].elements());
  const double more = 1 + 2 * head.z_loss * (z + std::log(classes));
  const double of_smoothing = head.z_loss > 0 ? u : 0.0;
  if (output == HeadOutput::kLoss) return tokens * 2 * off * more;
  if (output == HeadOutput::kInput) {
    const double each = by * (more * (2 * off + 2 * u) + of_smoothing) + 2 * slope_off * more;
    return scale * each * 1.5 / std::sqrt(static_cast<double>(head.depth));
  }
  const double mass = tokens * std::min(1.0, std::exp(2 * z) / classes);
  const double sum = by * ((2 * off + u) * mass * more + u * count + of_smoothing * tokens) +
                     slope_off * (mass * more + count + head.smoothing * tokens / classes);
  return scale * sum * (output == HeadOutput::kTable ? 1.5 : 1);
}

std::string LabelOf(const Head& head) {
  std::string label = fmt::format("{} of {} columns, {} deep, chunks of {}", head.classes, head.columns,
                                  head.depth, head.chunk);
  if (head.smoothing > 0) label += ", smoothed, z-loss";
  if (head.by != 1) label += fmt::format(", scaled by {}", head.by);
  if (head.cap > 0) label += fmt::format(", capped at {}", head.cap);
  if (head.bias) label += head.d_bias ? ", biased" : ", frozen bias";
  return label + (head.frozen ? ", frozen" : "");
}

void AddHead(const Head& head, GpuCases* cases) {
  constexpr double kScale = 0.3;
  const Shape x = {2, 12, head.depth};
  Attributes attributes = {
      {"in_dims", kOne}, {"classes", head.classes}, {"scale", kScale}, {"chunk", head.chunk}};
  if (head.smoothing > 0) attributes.Set("smoothing", head.smoothing);
  if (head.z_loss > 0) attributes.Set("z_loss", head.z_loss);
  if (head.by != 1) attributes.Set("by", head.by);
  if (head.cap > 0) attributes.Set("cap", head.cap);
  if (head.d_bias) attributes.Set("bias", kOne);
  if (head.frozen) attributes.Set("frozen", kOne);
  std::vector<Input> inputs = {
      {x}, {{head.columns, head.depth}}, Make({2, 12}, Input::kLabels, head.classes)};
  if (head.bias) inputs.push_back({{head.columns}});
  // The longest sums: over D for the logits, over V in pieces of at most V/8 (split-K or a warp's part) for
  // d_x.
  const std::int64_t terms = head.depth + head.columns / 8 + 24;
  cases->push_back({.base = {&ops::kLinearCrossEntropy, LabelOf(head), inputs, attributes, terms, true}});
  cases->back().dtypes = FusedDTypes(ops::kLinearCrossEntropy, {2, 12, head.columns});
  cases->back().adjust = [depth = head.depth](Tensors* made) {
    Multiply(&(*made)[1], 1 / std::sqrt(static_cast<double>(depth)));
  };
  cases->back().extra = [head](size_t output, DType dtype, const Tensors& made, const Tensors&) {
    return HeadExtra(head, OutputAt(head, output), dtype, made, kScale);
  };
}

// A row at a time, by single elements and by eight; rows held in shared memory.
void AddHeads(GpuCases* cases) {
  AddHead({50, 47, 64, 10}, cases);
  AddHead({56, 47, 24, 24}, cases);
  AddHead({1000, 997, 64, 8}, cases);
  for (Head head : {Head{50, 47, 64, 10}, Head{1000, 997, 64, 8}}) {
    const Head plain = head;
    head.smoothing = 0.2;
    head.z_loss = 0.05;
    AddHead(head, cases);
    Head mapped = plain;
    mapped.cap = 1.5;
    AddHead(mapped, cases);
    mapped.by = -0.7;
    AddHead(mapped, cases);
    mapped.cap = 0;
    AddHead(mapped, cases);
    Head biased = plain;
    biased.bias = true;
    AddHead(biased, cases);
    biased.d_bias = true;
    AddHead(biased, cases);
    Head frozen = plain;
    frozen.frozen = true;
    AddHead(frozen, cases);
    Head all = head;
    all.by = 0.7;
    all.cap = 1.5;
    all.bias = all.d_bias = true;
    AddHead(all, cases);
    all.frozen = true;
    AddHead(all, cases);
  }
  // As long as no row is held.
  Head wide = {50304, 50257, 64, 16};
  AddHead(wide, cases);
  std::erase(cases->back().dtypes, DType::kF16);  // seconds of the CPU's
  wide.cap = 1.5;
  wide.bias = wide.d_bias = true;
  AddHead(wide, cases);
  cases->back().dtypes = {DType::kBF16};
}

}  // namespace

GpuCases FusedCases() {
  GpuCases cases;
  AddGelu(64, 128, &cases);
  AddGelu(16, 8, &cases);
  AddGelu(1280, 64, &cases);
  // Narrow products are kernels of our own (kernels/narrow_product.h): of 16 to 64 terms, with rows and columns that end within
  // tiles; the others are the library's.
  for (std::int64_t terms : {16, 32, 48, 64}) {
    AddAddedProducts(20, terms, 136, &cases);
    AddAddedProducts(163, terms, 1048, &cases);
  }
  AddAddedProducts(8111, 16, 2056, &cases);  // several blocks of more rows than the least
  AddAddedProducts(20, 80, 136, &cases);
  AddAddedProducts(20, 136, 16, &cases);
  AddAddedProducts(20, 3, 7, &cases);
  AddActivationsAgain(&cases);
  for (std::int64_t columns : {768, 129, 4096, 7, 1280}) {
    for (std::int64_t count : {1, 257}) AddNorms(count, columns, 0, &cases);
  }
  // The kernels' ways to hold a row: none, one, two, four vectors a thread.
  for (std::int64_t columns : {129, 1280, 4096, 10240}) AddNorms(67, columns, 1, &cases);
  const Attributes plain = {{"rotary", kOne}, {"base", 10000.0}, {"factor", 1.0},
                            {"low", 1.0},     {"high", 4.0},     {"original", 8192.0}};
  Attributes bent = plain;
  bent.Set("factor", 8.0);
  bent.Set("original", 64.0);
  AddRotary({2, 81, 2, 3, 16}, bent, &cases);
  AddRotary({1, 64, 4, 3, 64}, plain, &cases);
  AddRotary({1, 5, 1, 3, 6}, plain, &cases);
  // Parts of heads, and neighbours; by single elements and by eight.
  for (const std::int64_t interleaved : {0, 1}) {
    Attributes yarn = plain;
    yarn.Set("scaling", std::string("yarn"));
    yarn.Set("factor", 4.0);
    yarn.Set("interleaved", interleaved);
    yarn.Set("width", std::int64_t{16});
    AddRotary({2, 81, 2, 3, 64}, yarn, &cases);
    yarn.Set("width", std::int64_t{4});
    AddRotary({2, 5, 2, 3, 6}, yarn, &cases);
  }
  AddPackedAttention({2, 128, 2, 3, 64}, kFloats, &cases);
  AddPackedAttention({1, 256, 1, 3, 128}, kNarrow, &cases);
  AddPackedAttention({2, 37, 2, 3, 10}, kFloats, &cases);
  AddPackedAttention({2, 200, 2, 3, 64}, kNarrow, &cases);
  AddPackedAttention({2, 512, 2, 3, 64}, kNarrow, &cases, 1);
  AddPackedAttention({2, 131, 2, 3, 64}, kFloats, &cases, 0, 50);
  AddPackedAttention({1, 256, 1, 3, 128}, kNarrow, &cases, 0, 8);
  AddHeads(&cases);
  const GpuCases few = FewRowsCases();
  cases.insert(cases.end(), few.begin(), few.end());
  return cases;
}

}  // namespace engine::gpu_test
