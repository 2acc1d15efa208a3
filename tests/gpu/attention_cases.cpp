// Cases of attention: by cuDNN, by the reference kernels and by our own.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <initializer_list>
#include <string>

#include "engine/ops/ops.h"
#include "tests/gpu/cases.h"

namespace engine::gpu_test {

// cuDNN rounds the probabilities P to the dtype before P·v and Pᵀ·d_o, and the gradients of the scores dS =
// P·(dP − D) before dS·k and dSᵀ·q; with grouped queries also dk and dv of each query head. With Σ_j P_ij = 1
// and m the largest Σ_i P_ij of a key over the queries and heads that read it (the reference gives it as dv
// for d_o = 1): the error of o is below u·max|v|, that of dv below u·m·max|d_o|; |dP − D| is below 2·6·σ with
// σ = 0.75·√U of a sum of U products of variance 0.75², so that of dq is below u·scale·12σ·max|k|, that of dk
// below u·scale·12σ·m·max|q|. A factor 2: each of these is rounded once more in another product's operand
// (exp of a score in 2⁻²² relative is less). Where dk and dv are sums over chunks of queries, each chunk's
// are rounded, with grouped queries each head's before: twice u times the sum of the terms' bounds,
// 2·u·m·max|d_o| and 2·u·scale·12σ·m·max|q|. All inputs are below 1.5.
double CudnnExtra(const graph::Attributes& attributes, bool backward, bool summed, size_t output, DType dtype,
                  const Tensors& inputs, const Tensors& expected, double more, double mass) {
  const double u = UnitRoundoff(dtype) + more;
  if (!backward) return output == 0 ? 2 * u * 1.5 : 0;
  const Shape& q = inputs[0].type().shape;
  const double sigma = 0.75 * std::sqrt(static_cast<double>(inputs[2].type().shape[3]));
  const double d_score = attributes.Float("scale") * 12 * sigma;
  const double groups =
      static_cast<double>(q[2] / inputs[1].type().shape[2] - 1) * u * ops_test::Scale(expected[output]);
  if (output == 0) return 2 * u * d_score * 1.5;
  if (mass < 0) {
    Tensors ones = inputs;
    Tensor& d_o = ones[inputs[4].type().shape.rank() == 3 ? 7 : 6];  // behind spans, or not
    for (std::int64_t i = 0; i < d_o.elements(); ++i) d_o.Set(i, 1.0);
    mass = ops_test::Scale(RunOnCpu(ops::kAttentionGrad, attributes, ones)[2]);
  }
  return groups + (summed ? 4 : 2) * u * mass * 1.5 * (output == 1 ? d_score : 1.0);
}

namespace {

using graph::Attributes;
using graph::OpDef;
using ops_test::Input;

// o and lse of the forward pass, as the gradient of a kernel library may assume.
std::function<void(Tensors*)> SavedByForward(const Attributes& attributes) {
  return [attributes](Tensors* inputs) {
    Tensors& in = *inputs;
    const Tensors saved = RunOnCpu(ops::kAttention, attributes, {in[0], in[1], in[2], in[3]});
    in[4] = saved[0];
    in[5] = saved[1];
  };
}

struct AttentionSizes {
  std::string label;
  std::int64_t batch, sequence, heads, kv_heads, head, window;
  std::vector<DType> dtypes;
  DimExtent positions = {};      // of the queries; empty: the whole sequence
  std::int64_t group_bytes = 0;  // scratch_attention.h: grad_group_bytes; 0: as it is
  std::int64_t value_head = 0;   // elements of a head of values; 0: as many as of keys
};

// Queries as a rank of context parallelism has them: a piece of the sequence.
void PlaceQueries(const DimExtent& positions, std::int64_t sequence, Tensors* inputs) {
  const Tensor& whole = (*inputs)[0];
  Extent extent = Extent::Whole(whole.type().shape);
  extent.dims[1] = positions;
  Shape logical = whole.type().shape;
  logical[1] = sequence;
  Tensor q(whole.type(), extent, logical);
  for (std::int64_t i = 0; i < q.elements(); ++i) q.Set(i, whole.Get(i));
  (*inputs)[0] = q;
  Tensor& places = (*inputs)[3];
  const std::int64_t queries = places.type().shape[1];
  for (std::int64_t i = 0; i < places.elements(); ++i) {
    places.Set(i, static_cast<double>(LogicalIndex(positions, i % queries)));
  }
}

std::int64_t QueriesOf(const AttentionSizes& s) {
  return s.positions.empty() ? s.sequence : Length(s.positions);
}

struct CaseTensors {
  Shape q, k, v, o;
  Input positions, rows;  // rows: lse
};
CaseTensors InputsOf(const AttentionSizes& s) {
  const std::int64_t queries = QueriesOf(s);
  const std::int64_t value_head = s.value_head > 0 ? s.value_head : s.head;
  return {.q = {s.batch, queries, s.heads, s.head},
          .k = {s.batch, s.sequence, s.kv_heads, s.head},
          .v = {s.batch, s.sequence, s.kv_heads, value_head},
          .o = {s.batch, queries, s.heads, value_head},
          .positions = Make({s.batch, queries}, Input::kPositions),
          .rows = Make({s.batch, queries, s.heads}, Input::kReal)};
}

void AddAttention(const AttentionSizes& s, GpuCases* cases) {
  Attributes attributes = {
      {"scale", 1.0 / std::sqrt(static_cast<double>(s.head))}, {"window", s.window}, {"dropout", 0.0}};
  if (s.group_bytes > 0) attributes.Set("grad_group_bytes", s.group_bytes);
  attributes.Set("kernel", std::string(s.label == "cuDNN" ? "cudnn" : "reference"));
  const auto [q, k, v, o, positions, rows] = InputsOf(s);
  const std::int64_t terms = s.sequence + std::max(s.head, s.value_head);
  std::string label = fmt::format("{}, {} heads of {}, {} kv heads, {} tokens", s.label, s.heads, s.head,
                                  s.kv_heads, s.sequence);
  if (s.value_head > 0) label += fmt::format(", values of {}", s.value_head);
  if (s.window > 0) label += fmt::format(", window {}", s.window);
  for (const Interval& piece : s.positions) label += fmt::format(", {} from {}", piece.length, piece.start);
  if (s.group_bytes > 0) label += fmt::format(", groups of {} bytes", s.group_bytes);
  cases->push_back({.base = {&ops::kAttention, label, {{q}, {k}, {v}, positions}, attributes, terms, true}});
  cases->back().dtypes = s.dtypes;
  cases->push_back({.base = {&ops::kAttentionGrad,
                             label,
                             {{q}, {k}, {v}, positions, {o}, rows, {o}},
                             attributes,
                             terms * s.heads / s.kv_heads,
                             true}});
  cases->back().dtypes = s.dtypes;
  const auto place = [s](Tensors* inputs) {
    if (!s.positions.empty()) PlaceQueries(s.positions, s.sequence, inputs);
  };
  (*cases)[cases->size() - 2].adjust = place;
  cases->back().adjust = [place, saved = SavedByForward(attributes)](Tensors* inputs) {
    place(inputs);
    saved(inputs);
  };
  if (s.label != "cuDNN") return;
  const bool summed = s.group_bytes > 0 || !s.positions.empty();
  for (size_t i = cases->size() - 2; i < cases->size(); ++i) {
    const bool backward = i + 1 == cases->size();
    (*cases)[i].extra = [attributes, backward, summed](size_t output, DType dtype, const Tensors& inputs,
                                                       const Tensors& expected) {
      return CudnnExtra(attributes, backward, summed, output, dtype, inputs, expected);
    };
  }
}

// As a rank of tensor parallelism has them: heads 3, 4 and 5 of 12, with each form of score, and sinks or biases by distance.
void AddSliceOfHeads(bool biased, GpuCases* cases) {
  const Shape q = {2, 67, 3, 20};
  const Shape k = {2, 67, 1, 20};
  const Input positions = Make({2, 67}, Input::kPositions);
  const Input rows = Make({2, 67, 3}, Input::kPositive);
  Attributes attributes = {{"scale", 0.2},   {"window", std::int64_t{50}},
                           {"softcap", 1.5}, {"alibi", kOne},
                           {"dropout", 0.2}, {"stream", std::string("core")}};
  constexpr std::int64_t kDistance = 10;
  if (biased) attributes.Set("distance", kDistance);
  const Shape of_heads = biased ? Shape{3, 2 * kDistance + 1} : Shape{3};
  const auto place = [](int dim, Tensor* tensor) {
    Extent extent = Extent::Whole(tensor->type().shape);
    extent.dims[static_cast<size_t>(dim)] = {Interval{3, 3}};
    Shape logical = tensor->type().shape;
    logical[dim] = 12;
    Tensor placed(tensor->type(), extent, logical);
    for (std::int64_t i = 0; i < placed.elements(); ++i) placed.Set(i, tensor->Get(i));
    *tensor = placed;
  };
  const std::string label = biased ? kBiasedSliceOfHeads : kSliceOfHeads;
  cases->push_back(
      {.base = {&ops::kAttention, label, {{q}, {k}, {k}, positions, {of_heads}}, attributes, 67 + 20, true}});
  cases->push_back({.base = {&ops::kAttentionGrad,
                             label,
                             {{q}, {k}, {k}, positions, {q}, rows, {q}, {of_heads}},
                             attributes,
                             (67 + 20) * 3 + 2 * 67,
                             true}});
  for (size_t at = cases->size() - 2; at < cases->size(); ++at) {
    (*cases)[at].adjust = [place](Tensors* inputs) {
      place(2, &inputs->front());
      place(0, &inputs->back());
    };
  }
}

}  // namespace

GpuCases AttentionCases() {
  GpuCases cases;
  AddCommon({&ops::kAttention, &ops::kAttentionGrad}, &cases);
  for (GpuCase& common : cases) common.base.attributes.Set("kernel", std::string("reference"));
  for (const bool biased : {false, true}) AddSliceOfHeads(biased, &cases);
  for (const AttentionSizes& sizes : std::initializer_list<AttentionSizes>{
           {"cuDNN", 2, 128, 2, 2, 64, 0, kNarrow},
           {"cuDNN", 2, 128, 4, 2, 128, 0, kNarrow},
           {"cuDNN", 1, 256, 4, 1, 64, 0, kNarrow},
           {"cuDNN", 1, 256, 2, 2, 128, 256, kNarrow},
           {"cuDNN", 1, 1024, 2, 2, 64, 0, {DType::kBF16}},
           {"reference", 2, 128, 4, 2, 64, 0, {DType::kF32}},
           // Not in blocks of 128 tokens.
           {"cuDNN", 2, 131, 4, 2, 64, 0, kNarrow},
           {"cuDNN", 1, 37, 2, 2, 128, 0, kNarrow},
           {"cuDNN", 1, 320, 2, 1, 256, 0, kNarrow},
           // Windows.
           {"cuDNN", 1, 256, 2, 1, 64, 100, kNarrow},
           {"cuDNN", 2, 384, 2, 2, 128, 1, kNarrow},
           {"cuDNN", 1, 1000, 2, 2, 64, 300, {DType::kBF16}},
           // A piece of the sequence, or the two of a rank: chunks 1 and 6, 0 and 7, 3 and 4 of eight.
           {"cuDNN", 2, 512, 2, 2, 64, 0, kNarrow, {{256, 256}}},
           {"cuDNN", 2, 512, 4, 2, 128, 0, kNarrow, {{128, 128}}},
           {"cuDNN", 2, 1024, 4, 2, 64, 0, kNarrow, {{128, 128}, {768, 128}}},
           {"cuDNN", 1, 1024, 2, 2, 64, 0, kNarrow, {{0, 128}, {896, 128}}},
           {"cuDNN", 1, 1024, 2, 2, 64, 0, {DType::kBF16}, {{384, 128}, {512, 128}}},
           {"cuDNN", 1, 1024, 2, 1, 64, 200, kNarrow, {{128, 128}, {768, 128}}},
           {"cuDNN", 1, 400, 2, 2, 64, 0, kNarrow, {{50, 50}, {300, 50}}},
           // Groups: half of the kv heads, of the samples; queries in blocks of 128 (also the last of 116),
           // of a piece of the sequence too.
           {"cuDNN", 1, 512, 4, 4, 64, 0, kNarrow, {}, 1100000},
           {"cuDNN", 4, 512, 2, 2, 64, 0, {DType::kBF16}, {}, 2200000},
           {"cuDNN", 1, 512, 4, 2, 64, 0, kNarrow, {}, 1},
           {"cuDNN", 2, 500, 2, 2, 128, 0, kNarrow, {}, 300000},
           {"cuDNN", 1, 512, 2, 1, 64, 150, kNarrow, {}, 1},
           {"cuDNN", 1, 1024, 4, 2, 64, 0, kNarrow, {{256, 256}, {512, 256}}, 1},
           {"reference", 2, 131, 4, 2, 64, 0, {DType::kF32}},
           {"reference", 2, 131, 4, 2, 60, 0, kFloats},
           {"reference", 1, 256, 2, 1, 60, 100, kFloats},
           {"reference", 1, 256, 2, 1, 60, 0, kFloats, {{64, 64}, {192, 64}}},
           {"reference", 1, 37, 3, 1, 7, 5, kFloats},
           {"reference", 1, 128, 2, 2, 252, 50, {DType::kBF16}},
           {"reference", 1, 65, 2, 1, 320, 20, kFloats},
           {"reference", 1, 65, 2, 2, 512, 0, kFloats},
       }) {
    AddAttention(sizes, &cases);
  }
  return cases;
}

namespace {

// Kernels of our own for Hopper (attention/sm90a.h), which round where cuDNN does: P, of a product, and dS.
struct OwnForm {
  std::string label;
  double softcap = 0, dropout = 0;
  bool alibi = false, sinks = false;
  std::int64_t distance = 0;  // of biases by distance; 0: none
  std::int64_t places = -1;  // behind those of the tokens, of biases of pairs; −1: there are no such biases
  std::string mask = "causal";
  std::vector<std::int64_t> documents =
      {};             // tokens of each of the first ones; the last is of the rest. Empty: none
  double scaled = 1;  // the usual scale times this
};

// Of queries at these positions, in samples alike: the first key and the key behind the last one of each one's document.
Input SpansOf(const AttentionSizes& s, const std::vector<std::int64_t>& documents) {
  const DimExtent positions = s.positions.empty() ? DimExtent{{0, s.sequence}} : s.positions;
  const std::int64_t queries = Length(positions);
  Input spans = Make({s.batch, queries, 2}, Input::kGiven);
  for (std::int64_t i = 0; i < s.batch * queries; ++i) {
    const std::int64_t position = LogicalIndex(positions, i % queries);
    std::int64_t first = 0;
    std::int64_t last = s.sequence;
    for (const std::int64_t tokens : documents) {
      if (position < first + tokens) {
        last = first + tokens;
        break;
      }
      first += tokens;
    }
    spans.given.push_back(static_cast<std::int32_t>(first));
    spans.given.push_back(static_cast<std::int32_t>(last));
  }
  return spans;
}

void AddOwnAttention(const AttentionSizes& s, const OwnForm& form, GpuCases* cases) {
  Attributes attributes = {{"scale", form.scaled / std::sqrt(static_cast<double>(s.head))},
                           {"window", s.window},
                           {"dropout", form.dropout},
                           {"softcap", form.softcap},
                           {"alibi", std::int64_t{form.alibi ? 1 : 0}},
                           {"mask", form.mask},
                           {"kernel", std::string("own")}};
  if (form.dropout > 0) attributes.Set("stream", std::string("core"));
  if (form.distance > 0) attributes.Set("distance", form.distance);
  const std::int64_t pairs = form.places >= 0 ? s.sequence + form.places : 0;
  if (pairs > 0) attributes.Set("pairs", pairs);
  const auto [q, k, v, o, positions, rows] = InputsOf(s);
  std::string label = fmt::format("own, {}, {} samples, {} heads of {}, {} kv heads, {} tokens, window {}",
                                  form.label, s.batch, s.heads, s.head, s.kv_heads, s.sequence, s.window);
  if (s.value_head > 0) label += fmt::format(", values of {}", s.value_head);
  for (const Interval& piece : s.positions) label += fmt::format(", {} from {}", piece.length, piece.start);
  const std::int64_t terms = s.sequence + std::max(s.head, s.value_head);
  std::vector<Input> forward = {{q}, {k}, {v}, positions};
  std::vector<Input> backward = {{q}, {k}, {v}, positions, {o}, rows, {o}};
  if (!form.documents.empty()) {
    const Input spans = SpansOf(s, form.documents);
    forward.insert(forward.begin() + 4, spans);
    backward.insert(backward.begin() + 4, spans);
  }
  const std::size_t saved_at = forward.size();
  for (std::vector<Input>* inputs : {&forward, &backward}) {
    if (form.sinks) inputs->push_back({{s.heads}});
    if (form.distance > 0) inputs->push_back({{s.heads, 2 * form.distance + 1}});
    if (pairs > 0) inputs->push_back({{s.heads, pairs, pairs}});
  }
  const auto place = [s](Tensors* inputs) {
    if (!s.positions.empty()) PlaceQueries(s.positions, s.sequence, inputs);
  };
  const auto saved = [attributes, saved_at](Tensors* inputs) {
    Tensors& in = *inputs;
    const auto o_at = in.begin() + static_cast<std::ptrdiff_t>(saved_at);
    Tensors of_forward(in.begin(), o_at);
    of_forward.insert(of_forward.end(), o_at + 3, in.end());  // behind o, lse and d_o
    const Tensors out = RunOnCpu(ops::kAttention, attributes, of_forward);
    in[saved_at] = out[0];
    in[saved_at + 1] = out[1];
  };
  // The hyperbolic tangent is exact to 2⁻¹¹ (PTX ISA, tanh.approx.f32): what an error d of a score and one of lse do to a
  // probability is a factor of 1 + 2d, to the derivative 1 − tanh² an error of 2⁻¹⁰.
  const double more = form.softcap > 0 ? 4 * form.softcap * 0x1p-11 + 0x1p-10 : 0;
  const double kept = 1 / (1 - form.dropout);
  for (const bool is_backward : {false, true}) {
    cases->push_back(
        {.base = {
             is_backward ? &ops::kAttentionGrad : &ops::kAttention, label, is_backward ? backward : forward,
             attributes,
             is_backward ? terms * s.heads / s.kv_heads + (form.sinks ? s.batch * QueriesOf(s) : 0) : terms,
             true}});
    cases->back().dtypes = s.dtypes;
    cases->back().adjust = [=](Tensors* inputs) {
      place(inputs);
      if (is_backward) saved(inputs);
    };
    cases->back().extra = [=](size_t output, DType dtype, const Tensors& inputs, const Tensors& expected) {
      if (!is_backward && output == 1) return form.softcap * 0x1p-10;
      if (output == 3 && form.sinks) return 0.0;
      if (output >= 3) return kept * BiasGradExtra(dtype, expected[output]);
      return kept * kept *
             CudnnExtra(attributes, is_backward, /*summed=*/false, output, dtype, inputs, expected, more);
    };
  }
}

}  // namespace

GpuCases OwnAttentionCases(std::int64_t head) {
  GpuCases cases;
  const DimExtent zigzag = {{128, 128}, {768, 128}};
  for (const OwnForm& form : std::initializer_list<OwnForm>{
           {.label = "plain"},
           {.label = "dropout", .dropout = 0.1},
           {.label = "soft cap", .softcap = 2},
           {.label = "linear biases", .alibi = true},
           {.label = "sinks", .sinks = true},
           {.label = "biases by distance", .distance = 40},
           {.label = "biases by distance, dropout, sinks", .dropout = 0.1, .sinks = true, .distance = 150},
           {.label = "biases of pairs", .places = 0},
           {.label = "biases of pairs, dropout, sinks", .dropout = 0.1, .sinks = true, .places = 3},
           {.label = "all", .softcap = 2, .dropout = 0.2, .alibi = true, .sinks = true}}) {
    const std::vector<DType> one = {DType::kBF16};
    AddOwnAttention({"", 2, 301, 4, 2, head, 0, kNarrow}, form, &cases);
    AddOwnAttention({"", 1, 1024, 4, 1, head, 0, one, zigzag}, form, &cases);
    AddOwnAttention({"", 2, 500, 2, 2, head, 130, one}, form, &cases);
  }
  for (const std::int64_t tokens : {1, 2, 63, 64, 65, 127, 128, 129, 192, 1000})
    AddOwnAttention({"", 1, tokens, 2, 1, head, 0, {DType::kF16}}, {.label = "plain"}, &cases);
  AddOwnAttention({"", 1, 512, 2, 1, head, 1, kNarrow}, {.label = "plain"}, &cases);
  AddOwnAttention({"", 1, 400, 2, 2, head, 0, kNarrow, {{50, 50}, {300, 50}}}, {.label = "plain"}, &cases);
  AddOwnAttention({"", 1, 2048, 2, 2, head, 0, {DType::kBF16}, {{256, 256}}}, {.label = "plain"}, &cases);
  for (const std::int64_t tokens : {1, 100, 256, 700})
    AddOwnAttention({"", 2, tokens, 4, 2, head, 0, kNarrow}, {.label = "no mask", .mask = "none"}, &cases);
  AddOwnAttention({"", 1, 300, 2, 2, head, 0, {DType::kBF16}},
                  {.label = "no mask, dropout", .dropout = 0.1, .mask = "none"}, &cases);
  for (const std::int64_t distance : {1, 7, 64, 128, 1000}) {
    AddOwnAttention({"", 2, 333, 4, 2, head, 0, kNarrow},
                    {.label = "no mask, biases by distance", .distance = distance, .mask = "none"}, &cases);
  }
  // With as many places as tokens all pairs are seen; a multiple of eight places comes by boxes.
  for (const auto& [tokens, places] : std::initializer_list<std::pair<std::int64_t, std::int64_t>>{
           {1, 0}, {1, 1}, {64, 0}, {64, 1}, {333, 0}, {333, 1}, {333, 3}, {328, 0}, {328, 8}}) {
    AddOwnAttention({"", 3, tokens, 4, 2, head, 0, kNarrow},
                    {.label = fmt::format("no mask, biases of pairs of {} places", tokens + places),
                     .places = places,
                     .mask = "none"},
                    &cases);
  }
  AddOwnAttention({"", 2, 500, 4, 2, head, 0, kNarrow},
                  {.label = "biases of pairs by boxes, dropout", .dropout = 0.1, .places = 4}, &cases);
  if (head != 64) return cases;
  // With bf16 there is no largest score to subtract under a cap of up to 55.
  AddOwnAttention({"", 2, 500, 4, 2, 64, 0, kNarrow},
                  {.label = "soft cap, dropout, sinks", .softcap = 2, .dropout = 0.1, .sinks = true}, &cases);
  AddOwnAttention({"", 1, 700, 2, 2, 64, 90, {DType::kBF16}},
                  {.label = "soft cap of documents", .softcap = 50, .documents = {100, 1, 3, 400}}, &cases);
  AddOwnAttention({"", 1, 333, 2, 1, 64, 0, kNarrow},
                  {.label = "soft cap, scores at either end of it", .softcap = 50, .scaled = 100}, &cases);
  AddOwnAttention({"", 1, 333, 2, 1, 64, 0, {DType::kBF16}}, {.label = "a large soft cap", .softcap = 60},
                  &cases);
  // Keys for the form of three warpgroups.
  AddOwnAttention({"", 1, 4200, 1, 1, 64, 0, {DType::kBF16}}, {.label = "long"}, &cases);
  AddOwnAttention({"", 1, 4200, 1, 1, 64, 0, {DType::kF16}}, {.label = "long, linear biases", .alibi = true},
                  &cases);
  // Of these each of the three computes only what its own queries see.
  AddOwnAttention({"", 1, 2100, 1, 1, 64, 0, kNarrow}, {.label = "of middle length, sinks", .sinks = true},
                  &cases);
  AddOwnAttention({"", 1, 2100, 2, 1, 64, 500, {DType::kBF16}},
                  {.label = "a window, biases by distance", .distance = 128}, &cases);
  AddOwnAttention({"", 1, 4200, 1, 1, 64, 300, {DType::kF16}},
                  {.label = "long, a window, linear biases", .alibi = true}, &cases);
  AddOwnAttention({"", 1, 2500, 1, 1, 64, 0, {DType::kBF16}},
                  {.label = "documents of middle lengths", .documents = {130, 1, 700, 190, 1000}}, &cases);
  AddOwnAttention({"", 1, 2500, 1, 1, 64, 0, {DType::kBF16}, {{100, 333}, {1700, 333}}},
                  {.label = "two pieces of middle length"}, &cases);
  AddOwnAttention({"", 1, 4200, 1, 1, 64, 0, {DType::kBF16}},
                  {.label = "long, biases by distance", .distance = 128}, &cases);
  AddOwnAttention({"", 1, 4200, 1, 1, 64, 0, {DType::kBF16}}, {.label = "long, biases of pairs", .places = 0},
                  &cases);
  return cases;
}

GpuCases FilledAttentionCases() {
  GpuCases cases;
  // Heads that the kernels fill up, of keys and of values.
  for (const auto& [head, value_head] :
       std::initializer_list<std::pair<std::int64_t, std::int64_t>>{{8, 8},
                                                                    {40, 40},
                                                                    {64, 24},
                                                                    {56, 64},
                                                                    {72, 72},
                                                                    {96, 96},
                                                                    {80, 64},
                                                                    {80, 80},
                                                                    {88, 88},
                                                                    {24, 96},
                                                                    {96, 72},
                                                                    {48, 128},
                                                                    {128, 104},
                                                                    {192, 128},
                                                                    {160, 72},
                                                                    {256, 256},
                                                                    {200, 176},
                                                                    {256, 64},
                                                                    {64, 256}}) {
    AddOwnAttention({"", 2, 200, 4, 2, head, 0, kNarrow, {}, 0, value_head}, {.label = "plain"}, &cases);
    AddOwnAttention({"", 1, 333, 2, 1, head, 0, {DType::kBF16}, {}, 0, value_head},
                    {.label = "dropout, sinks", .dropout = 0.1, .sinks = true}, &cases);
  }
  return cases;
}

GpuCases DocumentAttentionCases() {
  GpuCases cases;
  const DimExtent zigzag = {{128, 128}, {768, 128}};
  // Documents: of one token, over borders of tiles and blocks, in chunks, and with each of the other masks.
  for (const std::int64_t head : {64, 72, 96, 128, 256}) {
    const std::vector<std::int64_t> documents = {100, 1, 3, 400, 128};
    AddOwnAttention({"", 2, 700, 4, 2, head, 0, kNarrow}, {.label = "documents", .documents = documents},
                    &cases);
    AddOwnAttention({"", 1, 1024, 2, 1, head, 0, {DType::kBF16}, zigzag},
                    {.label = "documents, dropout", .dropout = 0.1, .documents = documents}, &cases);
    AddOwnAttention(
        {"", 1, 700, 2, 2, head, 90, {DType::kBF16}},
        {.label = "documents, biases, sinks", .alibi = true, .sinks = true, .documents = documents}, &cases);
    AddOwnAttention({"", 1, 700, 2, 2, head, 0, {DType::kBF16}},
                    {.label = "documents, no mask", .mask = "none", .documents = documents}, &cases);
    AddOwnAttention({"", 2, 700, 4, 2, head, 0, {DType::kBF16}},
                    {.label = "documents, biases by distance", .distance = 32, .documents = documents},
                    &cases);
    AddOwnAttention({"", 2, 700, 4, 2, head, 0, {DType::kBF16}},
                    {.label = "documents, biases of pairs", .places = 0, .documents = documents}, &cases);
  }
  return cases;
}

GpuCases OtherOwnAttentionCases() {
  GpuCases cases;
  const DimExtent zigzag = {{128, 128}, {768, 128}};
  // Each form of wide heads, and of such as are filled up to 96 elements.
  for (const auto& [head, value_head] : std::initializer_list<std::pair<std::int64_t, std::int64_t>>{
           {192, 128}, {256, 256}, {72, 72}, {80, 80}, {88, 88}}) {
    AddOwnAttention({"", 1, 1024, 4, 1, head, 0, {DType::kBF16}, zigzag, 0, value_head},
                    {.label = "dropout", .dropout = 0.1}, &cases);
    AddOwnAttention({"", 2, 333, 2, 2, head, 130, kNarrow, {}, 0, value_head},
                    {.label = "soft cap", .softcap = 2}, &cases);
    AddOwnAttention({"", 2, 130, 2, 1, head, 0, kNarrow, {}, 0, value_head},
                    {.label = "no mask", .mask = "none"}, &cases);
    AddOwnAttention({"", 2, 500, 4, 2, head, 0, kNarrow, {}, 0, value_head},
                    {.label = "biases by distance, dropout", .dropout = 0.1, .distance = 90}, &cases);
    AddOwnAttention({"", 2, 500, 4, 2, head, 0, kNarrow, {}, 0, value_head},
                    {.label = "biases of pairs, dropout", .dropout = 0.1, .places = 1}, &cases);
    AddOwnAttention({"", 2, 500, 4, 2, head, 0, kNarrow, {}, 0, value_head},
                    {.label = "biases of pairs by boxes, dropout", .dropout = 0.1, .places = 4}, &cases);
    AddOwnAttention({"", 3, 328, 4, 2, head, 0, kNarrow, {}, 0, value_head},
                    {.label = "no mask, biases of pairs by boxes", .places = 0, .mask = "none"}, &cases);
    AddOwnAttention({"", 1, 1024, 4, 1, head, 0, {DType::kBF16}, zigzag, 0, value_head},
                    {.label = "biases of pairs", .places = 0}, &cases);
    AddOwnAttention({"", 1, 1000, 4, 2, head, 0, {DType::kBF16}, {}, 0, value_head},
                    {.label = "all", .softcap = 2, .dropout = 0.2, .alibi = true, .sinks = true}, &cases);
  }
  return cases;
}

// Multi-head latent attention: whole, not in blocks of 128 tokens, with grouped queries, a window, the chunks of a rank, and in
// groups.
GpuCases LatentAttentionCases() {
  GpuCases cases;
  for (const AttentionSizes& sizes : std::initializer_list<AttentionSizes>{
           {"cuDNN", 2, 128, 2, 2, 192, 0, kNarrow, {}, 0, 128},
           {"cuDNN", 1, 1024, 4, 4, 192, 0, {DType::kBF16}, {}, 0, 128},
           {"cuDNN", 2, 131, 4, 4, 192, 0, kNarrow, {}, 0, 128},
           {"cuDNN", 1, 256, 4, 2, 192, 0, kNarrow, {}, 0, 128},
           {"cuDNN", 1, 384, 2, 2, 192, 100, kNarrow, {}, 0, 128},
           {"cuDNN", 2, 1024, 2, 2, 192, 0, kNarrow, {{128, 128}, {768, 128}}, 0, 128},
           {"cuDNN", 1, 512, 4, 4, 192, 0, kNarrow, {}, 1100000, 128},
           {"cuDNN", 2, 500, 2, 2, 192, 0, kNarrow, {}, 300000, 128},
           {"cuDNN", 1, 512, 4, 2, 192, 0, {DType::kBF16}, {}, 1, 128},
           {"reference", 2, 131, 4, 2, 96, 0, kNarrow, {}, 0, 64},
           {"reference", 1, 128, 2, 2, 192, 0, {DType::kF32}, {}, 0, 128},
       }) {
    AddAttention(sizes, &cases);
  }
  return cases;
}

}  // namespace engine::gpu_test
