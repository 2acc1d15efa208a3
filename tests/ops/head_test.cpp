// linear_cross_entropy in all its forms: its composition against the plain ops as differentiation chains them, and its
// gradients against differences of its loss.
#include <doctest/doctest.h>

#include <array>
#include <cmath>

#include "engine/graph/autodiff.h"
#include "engine/ops/fp8.h"
#include "engine/ops/fused.h"
#include "engine/ops/ops.h"
#include "tests/ops/composed.h"
#include "tests/ops/head_forms.h"

namespace engine::ops_test {
namespace {

using graph::Attributes;
using graph::Graph;
using graph::ValueId;
using graph::ValueIds;

Attributes HeadAttributes() {
  return {{"in_dims", std::int64_t{1}},
          {"classes", std::int64_t{13}},
          {"scale", 0.3},
          {"chunk", std::int64_t{4}}};
}

Attributes Joined(Attributes attributes, const Attributes& more) {
  for (const auto& [name, item] : more.items()) attributes.Set(name, item);
  return attributes;
}

}  // namespace

std::vector<HeadForm> HeadForms() {
  const Attributes terms = {{"smoothing", 0.2}, {"z_loss", 0.05}};
  const Attributes mapped = {{"by", 0.7}, {"cap", 1.5}};
  const Attributes bias = {{"bias", std::int64_t{1}}};
  const Attributes frozen = {{"frozen", std::int64_t{1}}};
  return {{"", {}},
          {"smoothed, z-loss", terms},
          {"scaled", {{"by", -1.3}}},
          {"capped", {{"cap", 1.5}}},
          {"scaled, capped", mapped},
          {"biased", bias, true},
          {"frozen bias", {}, true},
          {"frozen table", frozen},
          {"biased, frozen table", Joined(bias, frozen), true},
          {"all frozen", frozen, true},
          {"smoothed, z-loss, scaled, capped, biased", Joined(Joined(terms, mapped), bias), true},
          {"smoothed, z-loss, scaled, capped, all frozen", Joined(Joined(terms, mapped), frozen), true}};
}

// x, w, labels[, b].
Case HeadCase(const HeadForm& form) {
  Case head{&ops::kLinearCrossEntropy,
            form.label,
            {{{2, 5, 6}}, {{16, 6}}, {{2, 5}, Input::kLabels, 13}},
            Joined(HeadAttributes(), form.attributes)};
  if (form.bias) head.inputs.push_back({{16}});
  return head;
}

namespace {

// The head as a model's graph has it, differentiated; x = lookup of a table, so that d_x comes out as the gradient of the
// table's rows.
struct HeadChain {
  Graph graph;
  ValueId ids, labels, table, w, x, bias = graph::kNoValue, loss;

  explicit HeadChain(const HeadForm& form) {
    ids = graph.AddInput("tokens", {.shape = {2, 5}, .dtype = DType::kI32});
    labels = graph.AddInput("labels", {.shape = {2, 5}, .dtype = DType::kI32});
    table = graph.AddParameter("table", {{10, 6}, DType::kF32}, {10, 6}, {}, graph::Role::kMatrix);
    w = graph.AddParameter("head", {{16, 6}, DType::kF32}, {13, 6}, {}, graph::Role::kMatrix);
    if (form.bias) bias = graph.AddParameter("bias", {{16}, DType::kF32}, {13}, {}, graph::Role::kBias);
    if (form.attributes.Int("frozen", 0) != 0) graph.SetTraining(w, {.frozen = true});
    if (form.bias && form.attributes.Int("bias", 0) == 0) graph.SetTraining(bias, {.frozen = true});
    x = graph.Emit1(ops::kEmbedding, "lookup", {ids, table});
    Loss(form.attributes);
    REQUIRE(graph::Differentiate(&graph, ops::kAdd).ok());
  }

  // The sum that the gradient of a parameter goes into.
  ValueId GradientOf(ValueId parameter) const {
    for (size_t v = 0; v < graph.values().size(); ++v) {
      const graph::Value& value = graph.values()[v];
      if (value.kind == graph::ValueKind::kAccumulator && value.gradient_of == parameter)
        return static_cast<ValueId>(v);
    }
    return graph::kNoValue;
  }

 private:
  void Loss(const Attributes& form) {
    ValueId logits = graph.Emit1(ops::kLinear, "head", {x, w}, {{"in_dims", std::int64_t{1}}});
    if (bias != graph::kNoValue) logits = graph.Emit1(ops::kBiasAdd, "head.add_bias", {logits, bias});
    if (form.Has("by")) logits = graph.Emit1(ops::kScale, "scale", {logits}, {{"by", form.Float("by")}});
    if (form.Has("cap")) logits = graph.Emit1(ops::kSoftcap, "cap", {logits}, {{"cap", form.Float("cap")}});
    Attributes of_statistics = {{"classes", std::int64_t{13}}};
    Attributes of_sum = {{"scale", 0.3}};
    for (const char* term : {"smoothing", "z_loss"}) {
      if (!form.Has(term)) continue;
      of_statistics.Set(term, form.Float(term));
      of_sum.Set(term, form.Float(term));
    }
    const ValueIds statistics =
        graph.Emit(ops::kCrossEntropy, "cross_entropy", {logits, labels}, of_statistics);
    loss = graph.AddMetric("loss", 1, 1);
    graph.Emit(ops::kLossSum, "loss.sum", {statistics[0], statistics[1], labels}, of_sum,
               std::array<ValueId, 1>{loss});
  }
};

void CheckHeadIsItsChain(const HeadForm& form) {
  CAPTURE(form.label);
  const HeadChain chain(form);
  ValueTensors values;
  Case inputs = HeadCase(form);
  inputs.inputs[0].shape = {10, 6};  // the table, whose rows are x
  const Tensors made = MakeInputs(inputs, DType::kF32);
  values[chain.table] = made[0];
  values[chain.w] = made[1];
  values[chain.labels] = made[2];
  if (form.bias) values[chain.bias] = made[3];
  values[chain.ids] = Tensor({{2, 5}, DType::kI32});
  for (std::int64_t i = 0; i < 10; ++i) values[chain.ids].Set(i, static_cast<double>(i));  // each row once
  RunGraph(chain.graph, &values);

  Tensors of_head = {values.at(chain.x), made[1], made[2]};
  if (form.bias) of_head.push_back(made[3]);
  const Composed composed(ops::kLinearCrossEntropy, inputs.attributes, of_head);
  std::vector<ValueId> wanted = {chain.GradientOf(chain.table), chain.GradientOf(chain.w), chain.loss};
  if (form.bias) wanted.push_back(chain.GradientOf(chain.bias));
  std::erase(wanted, graph::kNoValue);  // of what is frozen
  REQUIRE(composed.outputs.size() == wanted.size());
  for (size_t o = 0; o < wanted.size(); ++o) CHECK(Distance(composed.Output(o), values.at(wanted[o])) == 0);
  CHECK(values.at(chain.loss).Get(0) > 0);
}

// The outputs of a composition: the loss, and the gradients of the inputs x, w, labels and b; null where there is none.
struct HeadResults {
  const Tensor* loss = nullptr;
  std::array<const Tensor*, 4> gradients = {};

  HeadResults(const HeadForm& form, const Composed& composed) {
    size_t next = 0;
    gradients[0] = &composed.Output(next++);
    if (form.attributes.Int("frozen", 0) == 0) gradients[1] = &composed.Output(next++);
    loss = &composed.Output(next++);
    if (form.attributes.Int("bias", 0) != 0) gradients[3] = &composed.Output(next++);
    CHECK(next == composed.outputs.size());
  }
};

double HeadLoss(const HeadForm& form, const Tensors& inputs) {
  const Composed composed(ops::kLinearCrossEntropy, HeadCase(form).attributes, inputs);
  return HeadResults(form, composed).loss->Get(0);
}

}  // namespace

TEST_CASE("linear_cross_entropy is head, loss and their gradients as differentiation chains them") {
  for (const HeadForm& form : HeadForms()) CheckHeadIsItsChain(form);
}

// Central differences in float64, of which two thirds of the digits hold.
TEST_CASE("linear_cross_entropy gives the gradients of its loss") {
  constexpr double kStep = 1e-5;
  for (const HeadForm& form : HeadForms()) {
    CAPTURE(form.label);
    const Tensors inputs = MakeInputs(HeadCase(form), DType::kF64);
    const Composed composed(ops::kLinearCrossEntropy, HeadCase(form).attributes, inputs);
    const HeadResults results(form, composed);
    double largest = 0;
    for (size_t i = 0; i < inputs.size(); ++i) {
      const Tensor* gradient = results.gradients[i];
      for (std::int64_t e = 0; gradient != nullptr && e < gradient->elements(); ++e) {
        const auto loss = [&](double step) {
          Tensors moved = inputs;
          moved[i].Set(e, inputs[i].Get(e) + step);
          return HeadLoss(form, moved);
        };
        const double wanted = 0.3 * (loss(kStep) - loss(-kStep)) / (2 * kStep);
        CHECK(std::fabs(gradient->Get(e) - wanted) < 1e-9);
        largest = std::max(largest, std::fabs(wanted));
      }
    }
    CHECK(largest > 0.01);
  }
}

TEST_CASE("the fp8 head states the products of the plain one") {
  for (const HeadForm& form : HeadForms()) {
    CAPTURE(form.label);
    std::vector<graph::TensorType> types = TypesOf(MakeInputs(HeadCase(form), DType::kF32));
    const Attributes attributes = HeadCase(form).attributes;
    const auto outputs = ops::kLinearCrossEntropy.infer(types, attributes);
    REQUIRE(outputs.ok());
    const double plain = ops::kLinearCrossEntropy.work(types, *outputs, attributes).product_flops;
    types.insert(types.begin() + 2, {types[1], {{8}, DType::kF32}});  // the table transposed, and its state
    CHECK(ops::kLinearCrossEntropyFp8.work(types, *outputs, attributes).product_flops == plain);
  }
}

}  // namespace engine::ops_test
