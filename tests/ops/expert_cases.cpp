// Cases of experts: routers and their losses, rows of experts, products in groups, experts in passes.
#include <string>
#include <utility>

#include "engine/graph/activation.h"
#include "engine/graph/rows.h"
#include "engine/ops/ops.h"
#include "tests/ops/case_inputs.h"

namespace engine::ops_test {
namespace {

using graph::Attributes;

// `experts` experts of which a token chooses k, one after the other with a stride: other ones for each token, and none
// that is a multiple of 5 but 0.
Input Choices(const Shape& tokens, std::int64_t k, std::int64_t experts) {
  Input input;
  input.shape = tokens;
  input.shape.push_back(k);
  input.kind = Input::kGiven;
  std::vector<std::int32_t> lawful;
  for (std::int32_t e = 0; e < experts; ++e) {
    if (e % 5 != 0 || e == 0) lawful.push_back(e);
  }
  for (std::int64_t t = 0; t < tokens.elements(); ++t) {
    for (std::int64_t j = 0; j < k; ++j)
      input.given.push_back(lawful[static_cast<size_t>(t * t + 3 * t + j) % lawful.size()]);
  }
  return input;
}

// Where the rows of choices lie, by sorting them.
struct RowPlaces {
  Input choice_of, row_of, groups;
};
RowPlaces PlacesOf(const Input& choice, std::int64_t experts) {
  const std::int64_t count = choice.shape.elements();
  const std::int64_t k = choice.shape[choice.shape.rank() - 1];
  const std::int64_t bound = graph::RowBound(count / k, k, experts);
  RowPlaces places;
  places.choice_of = {.shape = {bound}, .kind = Input::kGiven, .given = {}};
  places.row_of = {.shape = {count}, .kind = Input::kGiven, .given = {}};
  places.groups = {.shape = {experts, 2}, .kind = Input::kGiven, .given = {}};
  places.choice_of.given.assign(static_cast<size_t>(bound), -1);
  places.row_of.given.assign(static_cast<size_t>(count), -1);
  std::int64_t row = 0;
  for (std::int64_t e = 0; e < experts; ++e) {
    const std::int64_t first = row;
    for (std::int64_t c = 0; c < count; ++c) {
      if (choice.given[static_cast<size_t>(c)] != e) continue;
      places.row_of.given[static_cast<size_t>(c)] = static_cast<std::int32_t>(row);
      places.choice_of.given[static_cast<size_t>(row++)] = static_cast<std::int32_t>(c);
    }
    places.groups.given.push_back(static_cast<std::int32_t>(first));
    places.groups.given.push_back(static_cast<std::int32_t>(row - first));
    while (row % graph::kRowAlignment != 0) ++row;
  }
  return places;
}

void AddRoute(std::vector<Case>* cases) {
  const auto add = [&](const std::string& label, const Shape& logits, Attributes attributes, bool bias,
                       bool large = false) {
    Shape weights = logits;
    weights[logits.rank() - 1] = attributes.Int("k");
    const std::int64_t experts = logits[logits.rank() - 1];
    std::vector<Input> inputs = {Real(logits)};
    if (bias) inputs.push_back(Real({experts}));
    cases->push_back({&ops::kRoute, label, inputs, attributes, experts, large});
    Shape tokens;
    for (int dim = 0; dim + 1 < logits.rank(); ++dim) tokens.push_back(logits[dim]);
    cases->push_back({&ops::kRouteGrad,
                      label,
                      {Real(logits), Choices(tokens, attributes.Int("k"), experts), Real(weights)},
                      attributes,
                      experts,
                      large});
  };
  const std::string softmax = "softmax";
  const std::string sigmoid = "sigmoid";
  add("softmax over the chosen", {2, 4, 7}, {{"k", kTwo}, {"score", softmax}, {"normalize", kOne}}, false);
  add("softmax", {2, 4, 7}, {{"k", kTwo}, {"score", softmax}, {"normalize", std::int64_t{0}}}, false);
  add("one of them, with a bias", {2, 4, 7},
      {{"k", kOne}, {"score", softmax}, {"normalize", std::int64_t{0}}}, true);
  add("sigmoid, bias, groups", {2, 4, 8},
      {{"k", kTwo},
       {"score", sigmoid},
       {"normalize", kOne},
       {"scale", 2.5},
       {"groups", std::int64_t{4}},
       {"kept", kTwo},
       {"best", kOne}},
      true);
  const std::string softplus = "sqrtsoftplus";
  add("sqrtsoftplus, scaled", {2, 4, 7},
      {{"k", kTwo}, {"score", softplus}, {"normalize", kOne}, {"scale", 1.5}}, true);
  add("sqrtsoftplus, as it is", {2, 4, 7}, {{"k", kOne}, {"score", softplus}, {"normalize", std::int64_t{0}}},
      false);
  add("even", {2, 4, 7},
      {{"k", kTwo}, {"score", softmax}, {"normalize", kOne}, {"force", std::string("even")}}, false);
  add("zipf", {2, 4, 7},
      {{"k", kTwo}, {"score", softmax}, {"normalize", kOne}, {"force", std::string("zipf")}}, false);
  add("large", {3, 241, 67}, {{"k", std::int64_t{5}}, {"score", softmax}, {"normalize", kOne}}, true, true);
  const Attributes eight = {{"k", std::int64_t{8}}, {"score", softmax}, {"normalize", kOne}};
  add("128 experts", {3, 101, 128}, eight, false, true);
  for (const char* force : {"even", "zipf"}) {
    Attributes forced = eight;
    forced.Set("force", std::string(force));
    add(std::string("128 experts, ") + force, {3, 101, 128}, forced, false, true);
  }
  // More than lanes hold in registers, and more choices than lanes.
  Attributes grouped = {{"k", std::int64_t{8}}, {"score", sigmoid},          {"normalize", kOne},
                        {"scale", 2.5},         {"groups", std::int64_t{8}}, {"kept", std::int64_t{4}},
                        {"best", kTwo}};
  add("256 experts in groups", {2, 37, 256}, grouped, true, true);
  add("320 experts in groups", {2, 37, 320}, grouped, true, true);
  add("4096 experts", {1, 5, 4096}, eight, true, true);
  add("sqrtsoftplus, 128 experts", {3, 101, 128},
      {{"k", std::int64_t{8}}, {"score", softplus}, {"normalize", kOne}}, true, true);
  add("sqrtsoftplus, 320 experts", {2, 37, 320},
      {{"k", std::int64_t{8}}, {"score", softplus}, {"normalize", kOne}}, true, true);
  for (const bool large : {false, true}) {  // chosen by ranks of their own
    const Shape logits = large ? Shape{3, 101, 67} : Shape{2, 4, 7};
    cases->push_back({&ops::kRoute,
                      large ? "by ranks, large" : "by ranks",
                      {Real(logits), Real(logits)},
                      {{"k", kTwo},
                       {"score", softmax},
                       {"normalize", std::int64_t{0}},
                       {"select", std::string("sinkhorn")}},
                      logits[2],
                      large});
  }
  add("40 choices", {2, 19, 67}, {{"k", std::int64_t{40}}, {"score", softmax}, {"normalize", kOne}}, false,
      true);
}

// Rounds are few where the rounding of one goes into the next.
void AddSinkhorn(std::vector<Case>* cases) {
  for (const Shape& logits : {Shape{2, 4, 7}, Shape{3, 301, 19}, Shape{2, 131, 60}, Shape{2, 131, 128},
                              Shape{2, 131, 200}, Shape{1, 70, 300}}) {
    const bool large = logits.elements() > 100;
    cases->push_back({&ops::kSinkhorn,
                      large ? fmt::format("{} experts", logits[2]) : "plain",
                      {Real(logits)},
                      {{"rounds", std::int64_t{large ? 8 : 3}}},
                      8,  // ranks are far below 1
                      large});
  }
}

void AddRouteLoad(std::vector<Case>* cases) {
  for (const bool large : {false, true}) {
    const Input choice = large ? Choices({3, 101}, 3, 67) : Choices({2, 4}, 2, 7);
    cases->push_back({&ops::kRouteLoad,
                      large ? "large" : "plain",
                      {choice},
                      {{"experts", std::int64_t{large ? 67 : 7}}},
                      choice.shape.elements(),
                      large});
    cases->push_back({&ops::kRouteCount,
                      large ? "large" : "plain",
                      {choice},
                      {{"experts", std::int64_t{large ? 67 : 7}}},
                      1,
                      large});
  }
}

void AddRouterLosses(std::vector<Case>* cases) {
  for (const Shape& logits : {Shape{2, 4, 6}, Shape{3, 301, 19}, Shape{3, 101, 128}, Shape{2, 9, 300}}) {
    const bool large = logits.elements() > 100;
    const Shape counts = {logits[0], logits[2]};
    const std::string label = large ? fmt::format("{} experts", logits[2]) : "plain";
    const std::int64_t terms = logits.elements();
    for (const char* score : {"softmax", "sigmoid", "sqrtsoftplus"}) {
      const Attributes attributes = {
          {"k", kTwo}, {"tokens", logits[1]}, {"score", std::string(score)}, {"scale", 0.3}};
      for (const graph::OpDef* op : {&ops::kBalanceLoss, &ops::kBalanceLossGrad})
        cases->push_back(
            {op, label + ", " + score, {Real(logits), Positive(counts)}, attributes, terms, large});
    }
    for (const graph::OpDef* op : {&ops::kRouterZLoss, &ops::kRouterZLossGrad})
      cases->push_back({op, label, {Real(logits)}, {{"scale", 0.3}}, terms, large});
    for (const char* score : {"softmax", "sigmoid", "sqrtsoftplus"})
      cases->push_back({&ops::kRouterEntropy,
                        label + ", " + score,
                        {Real(logits)},
                        {{"score", std::string(score)}},
                        terms,
                        large});
    cases->push_back(
        {&ops::kRunningLoad, label, {Positive(counts), Real({logits[2] + 2})}, {}, counts.elements(), large});
  }
  // Counts of groups of two samples, and of all of them.
  for (const std::int64_t groups : {2, 1}) {
    const Attributes attributes = {
        {"k", kTwo}, {"tokens", 3 * 4 / groups}, {"score", std::string("softmax")}, {"scale", 0.3}};
    for (const graph::OpDef* op : {&ops::kBalanceLoss, &ops::kBalanceLossGrad})
      cases->push_back(
          {op, fmt::format("{} groups", groups), {Real({4, 3, 6}), Positive({groups, 6})}, attributes, 72});
    const Input choice = Choices({4, 3}, 2, 7);
    cases->push_back({&ops::kTally,
                      fmt::format("{} groups", groups),
                      {choice},
                      {{"experts", std::int64_t{7}}, {"samples", 4 / groups}},
                      1});
    cases->push_back({&ops::kDrop,
                      fmt::format("{} groups", groups),
                      {choice, Positive(choice.shape)},
                      {{"experts", std::int64_t{7}},
                       {"cap", kTwo},
                       {"by", std::string("weight")},
                       {"samples", 4 / groups}},
                      1});
  }
}

void AddExpertRows(std::vector<Case>* cases) {
  for (const bool large : {false, true}) {
    const Shape tokens = large ? Shape{3, 101} : Shape{2, 4};
    const std::int64_t experts = large ? 11 : 3;
    const std::int64_t k = large ? 3 : 2;
    const std::int64_t d = large ? 67 : 3;
    const std::int64_t f = large ? 35 : 5;
    const std::string label = large ? "large" : "plain";
    const Input choice = Choices(tokens, k, experts);
    const RowPlaces at = PlacesOf(choice, experts);
    const std::int64_t rows = at.choice_of.shape[0];
    const auto add = [&](const graph::OpDef& op, const std::string& what, std::vector<Input> inputs,
                         const Attributes& attributes, std::int64_t terms) {
      cases->push_back({&op, label + what, std::move(inputs), attributes, terms, large, /*rows=*/true});
    };
    for (const char* by : {"weight", "position"}) {
      cases->push_back({&ops::kDrop,
                        label + ", by " + by,
                        {choice, Positive(choice.shape)},
                        {{"experts", experts}, {"cap", kTwo}, {"by", std::string(by)}},
                        1,
                        large});
    }
    Input kept = choice;
    for (size_t c = 0; c < kept.given.size(); c += 3) kept.given[c] = -1;
    cases->push_back({&ops::kDropCount, label, {kept}, {}, 1, large});
    for (const std::int64_t by_expert : {0, 1}) {
      cases->push_back({&ops::kTally,
                        label + (by_expert != 0 ? ", by expert" : ""),
                        {choice},
                        {{"experts", experts}, {"by_expert", by_expert}},
                        1,
                        large});
    }
    add(ops::kPlace, "", {choice, Real({tokens[0], experts})}, {}, 1);
    add(ops::kSpread, "", {{{tokens[0], tokens[1], d}}, at.choice_of, at.row_of, choice}, {}, 1);
    add(ops::kCombine, "", {{{rows, d}}, at.choice_of, at.row_of, choice}, {}, k);
    const Attributes one = {{"in_dims", kOne}};
    const Attributes planes = {{"in_dims", kOne}, {"out_split", kOne}};
    add(ops::kGroupedLinear, "", {{{rows, d}}, {{experts, f, d}}, at.groups}, one, d);
    add(ops::kGroupedLinear, ", planes out", {{{rows, d}}, {{experts, 2, f, d}}, at.groups}, planes, d);
    add(ops::kGroupedLinearDgrad, "", {{{rows, 2, f}}, {{experts, 2, f, d}}, at.groups}, planes, 2 * f);
    add(ops::kGroupedLinearWgrad, "", {{{rows, 2, f}}, {{rows, d}}, at.groups}, planes,
        tokens.elements() * k);
    const Shape weights = choice.shape;
    for (const graph::ActivationKind& kind : graph::kExpertActivations) {
      for (const std::int64_t gated : {0, 1}) {
        const Shape h = gated != 0 ? Shape{rows, 2, f} : Shape{rows, f};
        const Attributes attributes = {{"act", std::string(kind.name)}, {"gated", gated}};
        const std::string what = fmt::format(", {}{}", kind.name, gated != 0 ? ", gated" : "");
        add(ops::kExpertActivation, what, {{h}, {weights}, at.choice_of}, attributes, 1);
        add(ops::kExpertActivationGrad, what, {{h}, {weights}, at.choice_of, {{rows, f}}}, attributes, f);
      }
    }
  }
}

struct ExpertSizes {
  std::string label;
  Shape tokens;
  std::int64_t k, experts, here, d, f;  // `here`: the first of the experts, which alone have rows
};

// Rows of whole vectors and of an even number of elements; experts of which not all are here; more choices than a warp has
// lanes. Without grouped products.
void AddMoreExpertRows(std::vector<Case>* cases) {
  for (const ExpertSizes& s : {ExpertSizes{"128 experts", {3, 101}, 8, 128, 128, 72, 40},
                               {"128 experts, even rows", {3, 101}, 8, 128, 128, 70, 44},
                               {"5 of 11 experts", {3, 101}, 3, 11, 5, 72, 40},
                               {"35 choices", {3, 7}, 35, 50, 50, 10, 8}}) {
    const Input choice = Choices(s.tokens, s.k, s.experts);
    const RowPlaces at = PlacesOf(choice, s.here);
    const std::int64_t rows = at.choice_of.shape[0];
    const auto add = [&](const graph::OpDef& op, const std::string& what, std::vector<Input> inputs,
                         const Attributes& attributes, std::int64_t terms) {
      cases->push_back({&op, s.label + what, std::move(inputs), attributes, terms, /*large=*/true,
                        /*rows=*/true});
    };
    cases->push_back({&ops::kTally, s.label, {choice}, {{"experts", s.here}}, 1, /*large=*/true});
    add(ops::kPlace, "", {choice, Real({s.tokens[0], s.here})}, {}, 1);
    add(ops::kSpread, "", {{{s.tokens[0], s.tokens[1], s.d}}, at.choice_of, at.row_of, choice}, {}, 1);
    add(ops::kCombine, "", {{{rows, s.d}}, at.choice_of, at.row_of, choice}, {}, s.k);
    for (const char* act : {"silu", "gelu_tanh"}) {
      for (const std::int64_t gated : {0, 1}) {
        const Shape h = gated != 0 ? Shape{rows, 2, s.f} : Shape{rows, s.f};
        const Attributes attributes = {{"act", std::string(act)}, {"gated", gated}};
        const std::string what = fmt::format(", {}{}", act, gated != 0 ? ", gated" : "");
        add(ops::kExpertActivation, what, {{h}, {choice.shape}, at.choice_of}, attributes, 1);
        add(ops::kExpertActivationGrad, what, {{h}, {choice.shape}, at.choice_of, {{rows, s.f}}}, attributes,
            s.f);
      }
    }
  }
}

struct PassSizes {
  std::string label;
  Shape tokens;
  std::int64_t k, experts, here, d, f, passes;
  bool large;
};

// Windows with several experts, with one, and with a part of one's rows; more passes than there are windows.
void AddExpertPasses(std::vector<Case>* cases) {
  for (const PassSizes& s : {PassSizes{"two windows", {2, 4}, 2, 3, 3, 3, 5, 2, false},
                             {"three windows", {2, 4}, 2, 3, 3, 3, 5, 3, false},
                             {"one window", {2, 3}, 1, 3, 3, 2, 3, 1, false},
                             {"rows of an expert in two windows", {2, 150}, 2, 3, 3, 72, 40, 6, true},
                             {"11 experts, 64 passes", {3, 101}, 3, 11, 11, 67, 35, 64, true},
                             {"5 of 11 experts", {3, 101}, 3, 11, 5, 72, 40, 4, true},
                             {"whole tiles", {2, 320}, 2, 4, 4, 256, 128, 5, true},
                             {"35 choices", {3, 7}, 35, 50, 50, 10, 8, 7, true}}) {
    const Input choice = Choices(s.tokens, s.k, s.experts);
    const RowPlaces at = PlacesOf(choice, s.here);
    Shape x = s.tokens;
    x.push_back(s.d);
    for (const std::int64_t gated : {0, 1}) {
      const Shape w1 = gated != 0 ? Shape{s.here, 2, s.f, s.d} : Shape{s.here, s.f, s.d};
      const Attributes attributes = {{"experts", s.experts},
                                     {"passes", s.passes},
                                     {"k", s.k},
                                     {"act", std::string(gated != 0 ? "silu" : "gelu_erf")},
                                     {"gated", gated}};
      std::vector<Input> inputs = {{x},       {choice.shape}, choice, at.choice_of,
                                   at.row_of, at.groups,      {w1},   {{s.here, s.d, s.f}}};
      const std::string label = s.label + (gated != 0 ? ", gated" : "");
      // Of the longest chain: a sum over D, the product of three such numbers, and a sum over F and k or over an expert's rows.
      const std::int64_t terms = 4 * (s.d + s.f) * s.k + choice.shape.elements();
      cases->push_back({&ops::kExpertPasses, label, inputs, attributes, terms, s.large, /*rows=*/true});
      inputs.push_back({x});
      cases->push_back({&ops::kExpertPassesGrad, label, inputs, attributes, terms, s.large, /*rows=*/true});
    }
    cases->push_back({&ops::kExtraRows,
                      s.label,
                      {at.choice_of, at.groups},
                      {{"passes", s.passes}},
                      1,
                      s.large,
                      /*rows=*/true});
  }
}

// Products of experts as GPUs take them in whole tiles of 128 × 256, with rows, elements and experts that fill none.
void AddGroupedLinear(std::vector<Case>* cases) {
  struct Sizes {
    std::string label;
    std::int64_t tokens, k, experts, d, planes, f;
  };
  for (const Sizes& s :
       std::initializer_list<Sizes>{{"whole tiles", 320, 2, 4, 256, 1, 512},
                                    {"planes, no whole tile", 300, 2, 9, 192, 2, 328},
                                    {"elements not in blocks of 64", 200, 1, 3, 72, 1, 1000},
                                    {"an odd number of tiles", 150, 2, 3, 264, 1, 264},
                                    {"experts without rows", 30, 1, 40, 64, 1, 64},
                                    {"many rows an expert", 2100, 2, 2, 64, 1, 136},
                                    {"a few elements", 130, 2, 5, 8, 2, 8},
                                    {"elements not in pieces of 16 bytes", 200, 2, 4, 68, 2, 90}}) {
    const Input choice = Choices({1, s.tokens}, s.k, s.experts);
    const RowPlaces at = PlacesOf(choice, s.experts);
    const std::int64_t rows = at.choice_of.shape[0];
    const Shape x = {rows, s.d};
    const Shape y = s.planes > 1 ? Shape{rows, s.planes, s.f} : Shape{rows, s.f};
    const Shape w = s.planes > 1 ? Shape{s.experts, s.planes, s.f, s.d} : Shape{s.experts, s.f, s.d};
    const Attributes attributes = {{"in_dims", kOne}, {"out_split", s.planes > 1 ? kOne : std::int64_t{0}}};
    const auto add = [&](const graph::OpDef& op, std::vector<Input> inputs, std::int64_t terms) {
      cases->push_back({&op, s.label, std::move(inputs), attributes, terms, /*large=*/true, /*rows=*/true});
    };
    add(ops::kGroupedLinear, {{x}, {w}, at.groups}, s.d);
    add(ops::kGroupedLinearDgrad, {{y}, {w}, at.groups}, s.planes * s.f);
    add(ops::kGroupedLinearWgrad, {{y}, {x}, at.groups}, s.tokens * s.k);
  }
}

}  // namespace

void AddExpertCases(std::vector<Case>* cases) {
  AddRoute(cases);
  AddSinkhorn(cases);
  AddRouteLoad(cases);
  AddRouterLosses(cases);
  AddExpertRows(cases);
  AddMoreExpertRows(cases);
  AddGroupedLinear(cases);
  AddExpertPasses(cases);
}

}  // namespace engine::ops_test
