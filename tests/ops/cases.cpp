#include "tests/ops/cases.h"

#include <fmt/format.h>

#include <cmath>
#include <initializer_list>
#include <limits>
#include <string_view>
#include <utility>

#include "engine/base/philox.h"
#include "engine/graph/activation.h"
#include "engine/graph/rows.h"
#include "engine/ops/ops.h"
#include "tests/ops/case_inputs.h"

namespace engine::ops_test {
namespace {

using graph::Attributes;

void AddLinear(std::vector<Case>* cases) {
  const Attributes one = {{"in_dims", kOne}};
  const Attributes heads = {{"in_dims", kTwo}};
  const Attributes planes = {{"in_dims", kOne}, {"out_split", kOne}};
  cases->push_back({&ops::kLinear, "plain", {{{2, 4, 6}}, {{5, 6}}}, one, 6});
  cases->push_back({&ops::kLinear, "bias, heads out", {{{2, 4, 6}}, {{2, 3, 6}}, {{2, 3}}}, one, 7});
  cases->push_back({&ops::kLinear, "planes out", {{{2, 4, 6}}, {{2, 4, 6}}, {{2, 4}}}, planes, 7});
  cases->push_back({&ops::kLinear, "heads in", {{{2, 4, 2, 3}}, {{5, 2, 3}}}, heads, 6});
  cases->push_back({&ops::kLinear, "large", {{{3, 101, 67}}, {{515, 67}}, {{515}}}, one, 68, true});
  cases->push_back({&ops::kLinearDgrad, "plain", {{{2, 4, 5}}, {{5, 6}}}, one, 5});
  cases->push_back({&ops::kLinearDgrad, "heads out", {{{2, 4, 2, 3}}, {{2, 3, 6}}}, one, 6});
  cases->push_back({&ops::kLinearDgrad, "heads in", {{{2, 4, 5}}, {{5, 2, 3}}}, heads, 5});
  cases->push_back({&ops::kLinearDgrad, "large", {{{3, 101, 67}}, {{67, 515}}}, one, 67, true});
  cases->push_back({&ops::kLinearWgrad, "plain", {{{2, 4, 5}}, {{2, 4, 6}}}, one, 8});
  cases->push_back({&ops::kLinearWgrad, "heads in", {{{2, 4, 5}}, {{2, 4, 2, 3}}}, heads, 8});
  cases->push_back({&ops::kLinearWgrad, "large", {{{3, 25, 301}}, {{3, 25, 515}}}, one, 75, true});
  const Attributes router = {{"in_dims", kOne}, {"router", kOne}};
  const auto add_router = [&](const std::string& label, const Shape& tokens, std::int64_t experts,
                              std::int64_t d, bool large) {
    const Shape x = {tokens[0], tokens[1], d};
    const Shape logits = {tokens[0], tokens[1], experts};
    const Shape w = {experts, d};
    cases->push_back({&ops::kLinear, label, {{x}, {w}}, router, d, large});
    cases->push_back({&ops::kLinearDgrad, label, {{logits}, {w}}, router, experts, large});
    cases->push_back({&ops::kLinearWgrad, label, {{logits}, {x}}, router, tokens.elements(), large});
  };
  add_router("router", {2, 4}, 5, 6, false);
  add_router("router, large", {3, 101}, 128, 72, true);
  add_router("router, large, odd", {3, 101}, 11, 67, true);
}

void AddElementwise(std::vector<Case>* cases) {
  cases->push_back({&ops::kBiasAdd, "one dim", {{{2, 4, 6}}, {{6}}}, {}});
  cases->push_back({&ops::kBiasAdd, "two dims", {{{2, 4, 2, 6}}, {{2, 6}}}, {}});
  cases->push_back({&ops::kBiasAdd, "three dims", {{{2, 4, 2, 3, 5}}, {{2, 3, 5}}}, {}});
  cases->push_back({&ops::kBiasAdd, "large", {{{3, 81, 307}}, {{307}}}, {}, 1, true});
  cases->push_back({&ops::kBiasGrad, "one dim", {{{2, 4, 6}}}, {{"dims", kOne}}, 8});
  cases->push_back({&ops::kBiasGrad, "two dims", {{{2, 4, 2, 6}}}, {{"dims", kTwo}}, 8});
  cases->push_back({&ops::kBiasGrad, "three dims", {{{2, 4, 2, 3, 5}}}, {{"dims", std::int64_t{3}}}, 8});
  cases->push_back({&ops::kBiasGrad, "large", {{{3, 81, 307}}}, {{"dims", kOne}}, 243, true});
  cases->push_back({&ops::kAdd, "plain", {{{2, 4, 6}}, {{2, 4, 6}}}, {}});
  cases->push_back({&ops::kAdd, "large", {{{3, 81, 307}}, {{3, 81, 307}}}, {}, 1, true});
  for (std::int64_t tanh : {0, 1}) {
    const std::string form = tanh != 0 ? "tanh" : "erf";
    cases->push_back({&ops::kGelu, form, {{{2, 4, 6}}}, {{"tanh", tanh}}});
    cases->push_back({&ops::kGelu, form + ", large", {{{3, 81, 307}}}, {{"tanh", tanh}}, 1, true});
    cases->push_back({&ops::kGeluGrad, form, {{{2, 4, 6}}, {{2, 4, 6}}}, {{"tanh", tanh}}});
    cases->push_back(
        {&ops::kGeluGrad, form + ", large", {{{3, 81, 307}}, {{3, 81, 307}}}, {{"tanh", tanh}}, 1, true});
  }
  cases->push_back({&ops::kSwiglu, "plain", {{{2, 4, 2, 6}}}, {}});
  cases->push_back({&ops::kSwiglu, "large", {{{3, 81, 2, 307}}}, {}, 1, true});
  cases->push_back({&ops::kSwigluGrad, "plain", {{{2, 4, 2, 6}}, {{2, 4, 6}}}, {}});
  cases->push_back({&ops::kSwigluGrad, "large", {{{3, 81, 2, 307}}, {{3, 81, 307}}}, {}, 1, true});
  cases->push_back({&ops::kRelu2, "plain", {{{2, 4, 6}}}, {}});
  cases->push_back({&ops::kRelu2, "large", {{{3, 81, 307}}}, {}, 1, true});
  cases->push_back({&ops::kRelu2Grad, "plain", {{{2, 4, 6}}, {{2, 4, 6}}}, {}});
  cases->push_back({&ops::kRelu2Grad, "large", {{{3, 81, 307}}, {{3, 81, 307}}}, {}, 1, true});
  const Attributes dropout = {{"p", 0.3}, {"stream", std::string("test")}};
  for (const graph::OpDef* op : {&ops::kDropout, &ops::kDropoutGrad}) {
    cases->push_back({op, "plain", {{{2, 4, 7}}}, dropout});
    cases->push_back({op, "large", {{{3, 81, 307}}}, dropout, 1, true});
  }
  const Attributes jitter = {{"eps", 0.3}, {"stream", std::string("test")}};
  for (const graph::OpDef* op : {&ops::kJitter, &ops::kJitterGrad}) {
    cases->push_back({op, "plain", {{{2, 4, 7}}}, jitter});
    cases->push_back({op, "large", {{{3, 81, 307}}}, jitter, 1, true});
  }
}

// Of odd sizes. Elementwise ops on one or two tensors of the same shape, at two sizes.
void AddActivations(std::vector<Case>* cases) {
  for (const bool large : {false, true}) {
    const Shape x = large ? Shape{3, 81, 307} : Shape{2, 4, 7};
    const Shape gated = {x[0], x[1], 2, x[2]};
    const auto add = [&](const graph::OpDef& op, const std::string& label, std::vector<Input> inputs,
                         const Attributes& attributes) {
      cases->push_back({&op, label + (large ? ", large" : ""), std::move(inputs), attributes, 1, large});
    };
    for (const graph::ActivationKind& kind : graph::kActivationKinds) {
      const std::string name(kind.name);
      add(ops::kActivation, name, {{x}}, {{"kind", name}});
      add(ops::kActivationGrad, name, {{x}, {x}}, {{"kind", name}});
    }
    for (const graph::ActivationKind& kind : graph::kGateKinds) {
      const std::string name(kind.name);
      add(ops::kGlu, name, {{gated}}, {{"kind", name}});
      add(ops::kGluGrad, name, {{gated}, {x}}, {{"kind", name}});
    }
    add(ops::kMultiply, "plain", {{x}, {x}}, {});
    add(ops::kScaleRows, "plain", {{x}, {{x[0], x[1], 1}}}, {});
    cases->push_back({&ops::kRowDot, large ? "plain, large" : "plain", {{x}, {x}}, {}, x[2], large});
    add(ops::kScale, "plain", {{x}}, {{"by", -1.7}});
    for (const double cap : {0.7, 30.0}) {  // values far above the cap, and far below
      add(ops::kSoftcap, "at " + std::to_string(cap), {{x}}, {{"cap", cap}});
      add(ops::kSoftcapGrad, "at " + std::to_string(cap), {{x}, {x}}, {{"cap", cap}});
    }
  }
}

// Over the last `dims` dims of x, with an offset of the gain.
void AddNormsOf(const std::string& label, const Shape& x, int dims, double offset, std::vector<Case>* cases) {
  Attributes attributes = {{"epsilon", 1e-2}};
  if (offset != 0) attributes.Set("gain_offset", offset);
  Shape rows;
  Shape d;
  for (int dim = 0; dim < x.rank(); ++dim) (dim < x.rank() - dims ? rows : d).push_back(x[dim]);
  const std::int64_t terms = std::max(d.elements(), rows.elements());
  const bool large = terms > 100;
  const auto add = [&](const graph::OpDef& op, std::vector<Input> inputs) {
    cases->push_back({&op, label, std::move(inputs), attributes, terms, large});
  };
  add(ops::kLayerNorm, {{x}, {d}, {d}});
  add(ops::kLayerNormGrad, {{x}, {x}, {d}, {rows}, Positive(rows)});
  add(ops::kRmsNorm, {{x}, {d}});
  add(ops::kRmsNormGrad, {{x}, {x}, {d}, Positive(rows)});
}

void AddNorms(std::vector<Case>* cases) {
  const Attributes epsilon = {{"epsilon", 1e-2}};  // large, so that a wrong place of it shows
  for (bool large : {false, true}) {
    const std::int64_t columns = large ? 131 : 7;
    const Shape x = {large ? 3 : 2, large ? 41 : 4, columns};
    const Shape d = {x[2]};
    const Shape rows = {x[0], x[1]};
    const std::string label = large ? "large" : "plain";
    const std::int64_t terms = std::max(x[2], x[0] * x[1]);
    cases->push_back({&ops::kLayerNorm, label, {{x}, {d}, {d}}, epsilon, terms, large});
    cases->push_back(
        {&ops::kLayerNormGrad, label, {{x}, {x}, {d}, {rows}, Positive(rows)}, epsilon, terms, large});
    cases->push_back({&ops::kRmsNorm, label, {{x}, {d}}, epsilon, terms, large});
    cases->push_back({&ops::kRmsNormGrad, label, {{x}, {x}, {d}, Positive(rows)}, epsilon, terms, large});
  }
  AddNormsOf("gain 1 + w", {2, 4, 7}, 1, 1.0, cases);
  AddNormsOf("gain 1 + w, large", {3, 41, 131}, 1, 1.0, cases);
  AddNormsOf("by head", {2, 4, 3, 5}, 1, 0.0, cases);
  AddNormsOf("over heads", {2, 4, 3, 5}, 2, 0.0, cases);
  AddNormsOf("over heads, gain w − 0.3", {2, 4, 2, 7}, 2, -0.3, cases);
  AddNormsOf("by head, large", {2, 41, 3, 67}, 1, 1.0, cases);
  AddNormsOf("over heads, large", {3, 41, 5, 27}, 2, 1.0, cases);
}

void AddEmbedding(std::vector<Case>* cases) {
  const Attributes whole = {{"replicate", kOne}};
  cases->push_back({&ops::kEmbedding, "plain", {Ids({2, 4}, 9), {{9, 6}}}, {}});
  cases->push_back({&ops::kEmbedding, "positions", {Positions({2, 4}), {{5, 6}}}, whole});
  cases->push_back({&ops::kEmbedding,
                    "rows behind the first two",
                    {Ids({2, 4}, 9), {{11, 6}}},
                    {{"offset", std::int64_t{2}}}});
  cases->push_back({&ops::kEmbedding, "large", {Ids({3, 81}, 50), {{50, 133}}}, {}, 1, true});
  cases->push_back({&ops::kEmbeddingGrad,
                    "rows behind the first two",
                    {Ids({2, 4}, 9), {{2, 4, 6}}},
                    {{"rows", std::int64_t{11}}, {"offset", std::int64_t{2}}},
                    8});
  cases->push_back(
      {&ops::kEmbeddingGrad, "plain", {Ids({2, 4}, 9), {{2, 4, 6}}}, {{"rows", std::int64_t{9}}}, 8});
  cases->push_back({&ops::kEmbeddingGrad,
                    "large",
                    {Ids({3, 81}, 50), {{3, 81, 133}}},
                    {{"rows", std::int64_t{50}}},
                    243,
                    true});
}

// A form of rotary position embedding.
struct Turned {
  std::string label;
  Attributes attributes;
};

// For heads of 6: every kind of scaling, and every way to pair elements.
std::vector<Turned> TurnedForms() {
  const Attributes base = {{"base", 100.0}, {"factor", 4.0}, {"original", 64.0}};
  const auto with = [&](const std::string& label,
                        std::initializer_list<std::pair<std::string_view, Attributes::Item>> more) {
    Turned form = {label, base};
    for (const auto& [name, item] : more) form.attributes.Set(name, item);
    return form;
  };
  const std::string linear = "linear";
  const std::string yarn = "yarn";
  return {
      with("partial", {{"width", std::int64_t{4}}, {"factor", 1.0}}),
      with("interleaved, linear", {{"interleaved", kOne}, {"scaling", linear}}),
      with("partial, interleaved, ntk",
           {{"width", std::int64_t{4}}, {"interleaved", kOne}, {"scaling", std::string("ntk")}}),
      with("yarn", {{"scaling", yarn}}),
      with("partial, yarn, not rounded",
           {{"width", std::int64_t{4}}, {"scaling", yarn}, {"truncate", std::int64_t{0}}}),
      with("longrope", {{"scaling", std::string("longrope")}, {"factors", std::string("1,1.25,4e1")}}),
  };
}

void AddRotate(std::vector<Case>* cases) {
  const auto add = [&](const Turned& form, const Shape& x, bool large) {
    for (const graph::OpDef* op : {&ops::kRotate, &ops::kRotateGrad})
      cases->push_back({op, form.label, {{x}, Positions({x[0], x[1]})}, form.attributes, 2, large});
  };
  add({"plain", {{"base", 100.0}}}, {2, 4, 2, 6}, false);
  for (const Turned& form : TurnedForms()) add(form, {2, 4, 3, 6}, false);
  for (const auto& [width, interleaved] : {std::pair<std::int64_t, std::int64_t>{16, 0}, {16, 1}, {32, 1}}) {
    const Attributes attributes = {{"base", 1e4},
                                   {"factor", 2.0},
                                   {"scaling", std::string("linear")},
                                   {"width", width},
                                   {"interleaved", interleaved}};
    add({fmt::format("large, {} elements{}", width, interleaved != 0 ? ", interleaved" : ""), attributes},
        {2, 81, 3, 32}, true);
  }
}

void AddQkv(std::vector<Case>* cases) {
  const Attributes none = {{"rotary", std::int64_t{0}}};
  const Attributes plain = {{"rotary", kOne}, {"base", 100.0}, {"factor", 1.0},
                            {"low", 1.0},     {"high", 4.0},   {"original", 8192.0}};
  Attributes bent = plain;
  bent.Set("factor", 8.0);
  bent.Set("original", 64.0);  // wavelengths 6.3…: all three bands are met
  const Shape kv = {2, 4, 2, 6};
  for (const auto& [label, attributes] : {std::pair<std::string, Attributes>{"no rotation", none},
                                          {"rotary", plain},
                                          {"rotary, scaled", bent}}) {
    cases->push_back({&ops::kQkvSplit, label, {{{2, 4, 2, 4, 6}}, Positions({2, 4})}, attributes, 2});
    cases->push_back(
        {&ops::kQkvMerge, label, {{{2, 4, 4, 6}}, {kv}, {kv}, Positions({2, 4})}, attributes, 2});
  }
  cases->push_back({&ops::kQkvSplit, "no positions", {{{2, 4, 2, 4, 6}}}, none, 2});
  cases->push_back({&ops::kQkvMerge, "no positions", {{{2, 4, 4, 6}}, {kv}, {kv}}, none, 2});
  for (Turned& form : TurnedForms()) {
    form.attributes.Set("rotary", kOne);
    cases->push_back(
        {&ops::kQkvSplit, form.label, {{{2, 4, 2, 4, 6}}, Positions({2, 4})}, form.attributes, 2});
    cases->push_back(
        {&ops::kQkvMerge, form.label, {{{2, 4, 4, 6}}, {kv}, {kv}, Positions({2, 4})}, form.attributes, 2});
  }
  const Shape large_kv = {2, 81, 1, 16};
  cases->push_back({&ops::kQkvSplit, "large", {{{2, 81, 1, 3, 16}}, Positions({2, 81})}, bent, 2, true});
  cases->push_back(
      {&ops::kQkvMerge, "large", {{large_kv}, {large_kv}, {large_kv}, Positions({2, 81})}, bent, 2, true});
}

// Of samples of `tokens` that are cut into documents of these lengths; the last sample begins with the second document, so
// that its bounds are others. Queries of `none` see no key.
Input Spans(std::int64_t batch, std::int64_t tokens, const std::vector<std::int32_t>& lengths, bool none) {
  Input input = Make({batch, tokens, 2}, Input::kGiven, 0);
  for (std::int64_t b = 0; b < batch; ++b) {
    std::int32_t first = 0;
    std::size_t document = b + 1 == batch ? 1 : 0;
    std::int32_t last = lengths[document];
    for (std::int32_t i = 0; i < tokens; ++i) {
      if (i == last) {
        first = last;
        last += ++document < lengths.size() ? lengths[document] : static_cast<std::int32_t>(tokens) - first;
      }
      const bool sees = !none || i % 3 != 1;
      input.given.insert(input.given.end(), {first, sees ? last : first});
    }
  }
  return input;
}

void AddAttention(std::vector<Case>* cases) {
  // value_head: elements of a head of values; 0: as many as of keys. Attribute distance says whether there are biases.
  const auto add = [&](const std::string& label, Shape q, Shape k, Attributes attributes, bool large,
                       bool sinks = false, std::int64_t value_head = 0, bool positions = true,
                       const std::vector<Input>& spans = {}) {
    const Shape rows = {q[0], q[1], q[2]};
    Shape v = k;
    Shape o = q;
    if (value_head > 0) v[3] = o[3] = value_head;
    const std::int64_t terms = k[1] + std::max(q[3], v[3]);
    std::vector<Input> forward = {Real(q), Real(k), Real(v)};
    if (positions) forward.push_back(Positions({q[0], q[1]}));
    forward.insert(forward.end(), spans.begin(), spans.end());
    std::vector<Input> backward = forward;
    backward.insert(backward.end(), {Real(o), Positive(rows), Real(o)});
    const std::int64_t distance = attributes.Int("distance", 0);
    const std::int64_t pairs = attributes.Int("pairs", 0);
    for (std::vector<Input>* inputs : {&forward, &backward}) {
      if (sinks) inputs->push_back(Real({q[2]}));
      if (distance > 0) inputs->push_back(Real({q[2], 2 * distance + 1}));
      if (pairs > 0) inputs->push_back(Real({q[2], pairs, pairs}));
    }
    cases->push_back({&ops::kAttention, label, std::move(forward), attributes, terms, large});
    const std::int64_t sink_terms = sinks ? q[0] * q[1] : 0;
    cases->push_back({&ops::kAttentionGrad, label, std::move(backward), attributes,
                      terms * q[2] / k[2] + sink_terms, large});
  };
  const Attributes plain = {{"scale", 0.4}, {"window", std::int64_t{0}}, {"dropout", 0.0}};
  Attributes window = plain;
  window.Set("window", std::int64_t{3});
  Attributes dropout = plain;
  dropout.Set("dropout", 0.3);
  dropout.Set("stream", std::string("core"));
  add("causal", {2, 4, 4, 6}, {2, 4, 2, 6}, plain, false);
  add("window", {2, 8, 2, 6}, {2, 8, 2, 6}, window, false);
  add("dropout", {2, 4, 4, 6}, {2, 4, 2, 6}, dropout, false);
  Attributes all = dropout;
  all.Set("window", std::int64_t{200});
  Attributes unmasked = plain;
  unmasked.Set("mask", std::string("none"));
  Attributes unmasked_dropout = dropout;
  unmasked_dropout.Set("mask", std::string("none"));
  add("no mask", {2, 4, 4, 6}, {2, 4, 2, 6}, unmasked, false);
  add("cross, fewer queries", {2, 4, 4, 6}, {2, 8, 2, 6}, unmasked, false);
  add("cross, more queries, dropout", {2, 8, 2, 6}, {2, 4, 2, 6}, unmasked_dropout, false);
  add("no mask, no positions", {2, 4, 4, 6}, {2, 4, 2, 6}, unmasked, false, false, 0, false);
  add("no mask, no positions, sinks", {2, 8, 2, 6}, {2, 4, 2, 6}, unmasked, false, true, 0, false);
  add("cross, large", {1, 301, 4, 16}, {1, 77, 2, 16}, unmasked, true);
  add("large", {1, 301, 2, 16}, {1, 301, 2, 16}, plain, true);
  add("large, all", {1, 301, 2, 16}, {1, 301, 2, 16}, all, true);
  // Scores of a soft cap, linear biases and sinks.
  const auto form = [](Attributes attributes, double softcap, std::int64_t alibi) {
    if (softcap > 0) attributes.Set("softcap", softcap);
    attributes.Set("alibi", alibi);
    return attributes;
  };
  Attributes some = dropout;
  some.Set("window", std::int64_t{3});
  const Shape heads_of_5 = {2, 8, 6, 5};
  const Shape keys_of_5 = {2, 8, 2, 5};
  add("soft cap, window", heads_of_5, keys_of_5, form(window, 0.8, 0), false);
  add("soft cap, dropout", {2, 4, 4, 6}, {2, 4, 2, 6}, form(dropout, 0.8, 0), false);
  add("soft cap, no mask", {2, 4, 2, 6}, {2, 8, 2, 6}, form(unmasked, 0.8, 0), false);
  add("linear biases", heads_of_5, keys_of_5, form(plain, 0, 1), false);
  add("sinks", {2, 4, 4, 6}, {2, 4, 2, 6}, plain, false, true);
  add("sinks, window, dropout", heads_of_5, keys_of_5, some, false, true);
  add("sinks, no mask, dropout", {2, 8, 2, 6}, {2, 4, 2, 6}, unmasked_dropout, false, true);
  add("soft cap, linear biases, sinks, window", heads_of_5, keys_of_5, form(window, 0.8, 1), false, true);
  add("large, soft cap, linear biases, sinks, window, dropout", {2, 301, 6, 17}, {2, 301, 2, 17},
      form(all, 0.8, 1), true, true);
  // Biases by the distance of key and query: beyond the largest and below it, beside everything else.
  const auto by_distance = [](Attributes attributes, std::int64_t distance) {
    attributes.Set("distance", distance);
    return attributes;
  };
  add("biases", {2, 8, 4, 6}, {2, 8, 2, 6}, by_distance(plain, 3), false);
  add("biases, of all distances", {2, 4, 2, 6}, {2, 4, 2, 6}, by_distance(plain, 9), false);
  add("biases, no mask", {2, 8, 4, 6}, {2, 8, 2, 6}, by_distance(unmasked, 3), false);
  add("biases, no mask, fewer queries, dropout", {2, 4, 4, 6}, {2, 8, 2, 6}, by_distance(unmasked_dropout, 2),
      false);
  add("biases, no mask, more queries", {2, 8, 2, 6}, {2, 4, 2, 6}, by_distance(unmasked, 5), false);
  add("biases, sinks, window, dropout, soft cap, linear biases", heads_of_5, keys_of_5,
      by_distance(form(some, 0.8, 1), 1), false, true);
  add("large, biases", {2, 301, 6, 17}, {2, 301, 2, 17}, by_distance(plain, 128), true);
  add("large, biases, no mask, all", {2, 301, 6, 17}, {2, 77, 2, 17},
      by_distance(form(unmasked_dropout, 0.8, 0), 100), true, true);
  // A bias for each pair of places, of as many places as there are tokens and of more.
  const auto by_pair = [](Attributes attributes, std::int64_t places) {
    attributes.Set("pairs", places);
    return attributes;
  };
  add("biases of pairs", {2, 8, 4, 6}, {2, 8, 2, 6}, by_pair(plain, 8), false);
  add("biases of pairs, no mask, of more places", {3, 4, 2, 6}, {3, 4, 2, 6}, by_pair(unmasked, 9), false);
  add("biases of pairs, no mask, fewer queries, dropout", {2, 4, 4, 6}, {2, 8, 2, 6},
      by_pair(unmasked_dropout, 8), false);
  add("biases of pairs, sinks, window, dropout, soft cap, linear biases", heads_of_5, keys_of_5,
      by_pair(form(some, 0.8, 1), 8), false, true);
  add("documents, biases of pairs", {2, 8, 4, 6}, {2, 8, 2, 6}, by_pair(plain, 8), false, false, 0, true,
      {Spans(2, 8, {3, 1, 4}, false)});
  add("large, biases of pairs", {3, 301, 6, 17}, {3, 301, 2, 17}, by_pair(plain, 303), true);
  add("large, biases of pairs, no mask, all", {2, 301, 6, 17}, {2, 77, 2, 17},
      by_pair(form(unmasked_dropout, 0.8, 0), 301), true, true);
  // Keys and values of two widths.
  add("narrow values", {2, 4, 4, 6}, {2, 4, 2, 6}, plain, false, false, 3);
  add("wide values, sinks, window, dropout, soft cap", {2, 8, 4, 3}, {2, 8, 2, 3}, form(some, 0.8, 0), false,
      true, 5);
  add("narrow values, no mask", {2, 8, 2, 6}, {2, 4, 2, 6}, unmasked, false, false, 5);
  Attributes gentle = plain;
  gentle.Set("scale", 0.05);  // of long heads, so that gradients are numbers of fp16
  add("large, 160 and 96", {1, 131, 3, 160}, {1, 131, 3, 160}, gentle, true, false, 96);
  add("large, 24 and 72, all", {2, 131, 4, 24}, {2, 131, 2, 24}, form(all, 0.8, 1), true, true, 72);
  // Documents.
  const Shape q = {2, 8, 4, 6};
  const Shape k = {2, 8, 2, 6};
  const std::vector<Input> three = {Spans(2, 8, {3, 1, 4}, false)};
  const std::vector<Input> gaps = {Spans(2, 8, {5, 3}, true)};
  add("documents", q, k, plain, false, false, 0, true, three);
  add("documents, window, dropout", q, k, some, false, false, 0, true, three);
  add("documents, queries without keys", q, k, plain, false, false, 0, true, gaps);
  add("documents, queries without keys, sinks, soft cap, linear biases", q, k, form(window, 0.8, 1), false,
      true, 0, true, gaps);
  add("documents, no mask", q, k, unmasked, false, false, 0, true, three);
  add("documents, no mask, no positions, sinks, narrow values", q, k, unmasked, false, true, 5, false, three);
  add("documents, no mask, dropout", q, k, unmasked_dropout, false, false, 0, true, three);
  add("documents, biases", q, k, by_distance(plain, 3), false, false, 0, true, three);
  add("documents, no mask, biases, sinks, queries without keys", q, k, by_distance(unmasked, 3), false, true,
      0, true, gaps);
  const std::vector<Input> long_ones = {Spans(2, 301, {100, 1, 63, 70}, false)};
  add("large, documents", {2, 301, 4, 16}, {2, 301, 2, 16}, plain, true, false, 0, true, long_ones);
  add("large, documents, all", {2, 301, 6, 17}, {2, 301, 2, 17}, form(all, 0.8, 1), true, true, 0, true,
      long_ones);
}

void AddRelativeBias(std::vector<Case>* cases) {
  const auto add = [&](const std::string& label, std::int64_t buckets, std::int64_t distance,
                       std::int64_t both_ways, std::int64_t heads, bool large) {
    const Attributes attributes = {{"buckets", buckets}, {"distance", distance}, {"both_ways", both_ways}};
    cases->push_back({&ops::kRelativeBias, label, {Real({buckets, heads})}, attributes, 1, large});
    cases->push_back(
        {&ops::kRelativeBiasGrad, label, {Real({heads, 2 * distance + 1})}, attributes, distance + 1, large});
  };
  add("one way", 6, 9, 0, 4, false);
  add("both ways", 8, 6, 1, 2, false);
  add("an odd number", 5, 4, 0, 2, false);
  add("large, T5's decoder", 32, 128, 0, 12, true);
  add("large, T5's encoder", 32, 128, 1, 12, true);
}

void AddJoin(std::vector<Case>* cases) {
  const auto add = [&](const std::string& label, const Shape& lead, std::vector<std::int64_t> widths,
                       std::int64_t shared, bool large) {
    const std::int64_t heads = lead[lead.rank() - 1];
    std::vector<Input> parts;
    Shape joined = lead;
    joined.push_back(0);
    for (std::size_t i = 0; i < widths.size(); ++i) {
      const bool one = (shared >> i & 1) != 0;
      Shape part = lead;
      if (one) part[lead.rank() - 1] = 1;
      part.push_back(widths[i]);
      joined[lead.rank()] += widths[i];
      parts.push_back(Real(part));
    }
    cases->push_back({&ops::kJoin, label, std::move(parts), {{"shared", shared}}, 1, large});
    std::int64_t first = 0;
    for (std::size_t i = 0; i < widths.size(); ++i) {
      const std::int64_t one = shared >> i & 1;
      cases->push_back({&ops::kJoinGrad,
                        fmt::format("{}, part {}", label, i),
                        {Real(joined)},
                        {{"first", first}, {"count", widths[i]}, {"shared", one}},
                        one != 0 ? heads : 1,
                        large});
      first += widths[i];
    }
  };
  add("plain", {2, 4, 4}, {3, 5}, 0, false);
  add("the first shared", {2, 4, 4}, {2, 6}, 1, false);
  add("two of three shared", {2, 4, 2}, {3, 2, 4}, 5, false);
  add("large", {3, 101, 7}, {16, 40}, 1, true);
  add("large, of odd widths", {3, 101, 7}, {15, 33, 8}, 4, true);
}

void AddSelectToken(std::vector<Case>* cases) {
  const auto add = [&](const std::string& label, const Shape& x, std::int64_t index) {
    Shape y = {x[0]};
    for (int dim = 2; dim < x.rank(); ++dim) y.push_back(x[dim]);
    const Attributes grad = {
        {"index", index}, {"length", x[1]}, {"meaning", static_cast<std::int64_t>(graph::Dim::kSequence)}};
    cases->push_back({&ops::kSelectToken, label, {{x}}, {{"index", index}}});
    cases->push_back({&ops::kSelectTokenGrad, label, {{y}}, grad});
  };
  add("first", {2, 4, 6}, 0);
  add("inner", {2, 8, 2, 3}, 5);
}

// Label smoothing and z-loss, large enough that a wrong place of them shows.
struct LossTerms {
  const char* label;
  double smoothing, z_loss;
  void SetOn(Attributes* attributes) const {
    if (smoothing > 0) attributes->Set("smoothing", smoothing);
    if (z_loss > 0) attributes->Set("z_loss", z_loss);
  }
};
constexpr LossTerms kLossTerms[] = {
    {"", 0, 0}, {", smoothed", 0.3, 0}, {", z-loss", 0, 0.05}, {", smoothed, z-loss", 0.1, 0.2}};

// Per token, and (a loss per sample) per sequence.
void AddLoss(std::vector<Case>* cases) {
  for (const auto& [label, rows] :
       {std::pair<std::string, Shape>{"plain", {2, 4}}, {"large", {3, 41}}, {"per sample", {6}}}) {
    const bool large = label == "large";
    const std::int64_t vocabulary = large ? 701 : 10;
    const std::int64_t classes = vocabulary - 3;
    Shape logits = rows;
    logits.push_back(vocabulary);
    cases->push_back({&ops::kLossWeight, label, {Labels(rows, classes)}, {{"scale", 0.3}}, 1, large});
    cases->push_back({&ops::kTokenScore,
                      label,
                      {Real(logits), Labels(rows, classes), Real(rows), Real(rows)},
                      {{"classes", classes}},
                      1,
                      large});
    if (rows.rank() == 2) {
      cases->push_back({&ops::kTopLogits,
                        label,
                        {Real(logits), Positive({rows[0]})},
                        {{"classes", classes}, {"count", std::int64_t{large ? 50 : 6}}},
                        vocabulary,
                        large,
                        /*rows=*/true});
    }
    for (const LossTerms& terms : kLossTerms) {
      Attributes attributes = {{"classes", classes}};
      Attributes of_sum = {{"scale", 0.3}};
      terms.SetOn(&attributes);
      terms.SetOn(&of_sum);
      const std::string name = label + terms.label;
      cases->push_back(
          {&ops::kCrossEntropy, name, {Real(logits), Labels(rows, classes)}, attributes, vocabulary, large});
      cases->push_back({&ops::kCrossEntropyGrad,
                        name,
                        {Real(logits), Labels(rows, classes), Real(rows), Real(rows)},
                        attributes,
                        vocabulary,
                        large});
      cases->push_back(
          {&ops::kLossSum, name, {Real(rows), Real(rows), Labels(rows, classes)}, of_sum, 8, large});
    }
  }
}

}  // namespace

const std::vector<Case>& AllCases() {
  static const std::vector<Case> cases = [] {
    std::vector<Case> all;
    AddLinear(&all);
    AddElementwise(&all);
    AddActivations(&all);
    AddNorms(&all);
    AddEmbedding(&all);
    AddQkv(&all);
    AddRotate(&all);
    AddAttention(&all);
    AddRelativeBias(&all);
    AddJoin(&all);
    AddSelectToken(&all);
    AddCacheCases(&all);
    AddLoss(&all);
    AddExpertCases(&all);
    return all;
  }();
  return cases;
}

Tensors MakeInputs(const Case& test, DType real) {
  Tensors tensors;
  for (const Input& input : test.inputs) {
    const bool integer = input.kind >= Input::kIds;
    Tensor tensor({input.shape, integer ? DType::kI32 : input.kind == Input::kCached ? DType::kE4M3 : real});
    const PhiloxKey key = MakePhiloxKey(5, "input" + std::to_string(tensors.size()));
    for (std::int64_t i = 0; i < tensor.elements(); ++i) {
      const std::uint32_t word = PhiloxWord(key, static_cast<std::uint64_t>(i));
      const double uniform = UniformFromWord(word);
      double value = 3 * uniform - 1.5;
      if (input.kind == Input::kPositive) value = 0.5 + uniform;
      if (integer && input.limit > 0)
        value = static_cast<double>(word % static_cast<std::uint32_t>(input.limit));
      if (input.kind == Input::kLabels && i % 5 == 2) value = -1;
      if (input.kind == Input::kPositions) value = static_cast<double>(i % input.shape[1]);
      if (!input.given.empty()) value = input.given[static_cast<size_t>(i)];
      tensor.Set(i, value);
    }
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

double Scale(const Tensor& tensor) {
  double scale = 1;
  for (std::int64_t i = 0; i < tensor.elements(); ++i) scale = std::max(scale, std::fabs(tensor.Get(i)));
  return scale;
}

double Distance(const Tensor& a, const Tensor& b) {
  double distance = 0;
  for (std::int64_t i = 0; i < a.elements(); ++i) {
    const double difference = std::fabs(a.Get(i) - b.Get(i));
    if (std::isnan(difference)) return std::numeric_limits<double>::infinity();
    distance = std::max(distance, difference);
  }
  return distance;
}

}  // namespace engine::ops_test
