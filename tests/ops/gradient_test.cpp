// The gradient that each op states, as graph nodes run with the float64 kernels, against central differences.
#include <doctest/doctest.h>

#include <cmath>
#include <set>

#include "engine/ops/ops.h"
#include "tests/ops/cases.h"
#include "tests/ops/interpreter.h"

namespace engine::ops_test {
namespace {

// The scalar function under test: L = Σ_o factor_o · Σ d_o · output_o over the outputs that take a gradient, to which
// the z-loss of cross_entropy adds z_loss · Σ d_0 · output_0².
struct Loss {
  std::vector<double> factors;  // per output; 0: a statistic that takes no gradient
  std::vector<double> signs;    // per input: the sign in which the op gives its gradient
  double z_loss = 0;
};

// Ops whose attribute scale is a factor of their gradient alone.
bool IsSum(const Case& test) {
  return test.op == &ops::kLossSum || test.op == &ops::kBalanceLoss || test.op == &ops::kRouterZLoss;
}

// The counts of balance_loss and the bias of route are constants to their gradients.
bool IsConstant(const Case& test, size_t input) {
  return input == 1 && (test.op == &ops::kBalanceLoss || test.op == &ops::kRoute);
}

// The gradient of loss_sum is that of scale · Σ (lse − target), given as the weight w for lse, and w again
// for target, whose gradient is −w: cross_entropy_grad is defined for that pair
// (engine/ops/cross_entropy.cpp). So is the factor 1 + 2·z_loss·lse of the derivative to lse.
Loss LossOf(const Case& test, size_t outputs) {
  Loss loss = {std::vector<double>(outputs, 1.0), std::vector<double>(test.inputs.size(), 1.0), 0};
  if (test.op == &ops::kCrossEntropy) loss.z_loss = test.attributes.Float("z_loss", 0);
  for (size_t o = 1; o < outputs && test.op != &ops::kQkvSplit; ++o) loss.factors[o] = 0.0;
  if (test.op == &ops::kCrossEntropy) loss.factors[1] = -1.0;
  if (test.op == &ops::kRoute) loss.factors = {0.0, 1.0};  // choices, weights
  if (IsSum(test)) loss.factors[0] = test.attributes.Float("scale");
  if (test.op == &ops::kLossSum) loss.signs[1] = -1.0;
  return loss;
}

struct Weights {
  Tensors d_outputs;

  // L, and the sum of its terms' magnitudes.
  std::pair<double, double> Sum(const Loss& loss, const Tensors& outputs) const {
    double sum = 0;
    double magnitude = 0;
    for (size_t o = 0; o < outputs.size(); ++o) {
      for (std::int64_t i = 0; loss.factors[o] != 0 && i < outputs[o].elements(); ++i) {
        const double output = outputs[o].Get(i);
        const double squared = o == 0 ? loss.z_loss * output * output : 0.0;
        const double term = d_outputs[o].Get(i) * (loss.factors[o] * output + squared);
        sum += term;
        magnitude += std::fabs(term);
      }
    }
    return {sum, magnitude};
  }
};

Weights MakeWeights(const Case& test, const Tensors& outputs) {
  Weights weights;
  for (const Tensor& output : outputs) {
    Tensor d(output.type());
    const bool one = IsSum(test);
    // The two outputs of cross_entropy share one weight per token, and have it only where there is a label.
    const size_t seed = test.op == &ops::kCrossEntropy ? 0 : weights.d_outputs.size();
    const Tensors inputs = MakeInputs(test, DType::kF64);
    for (std::int64_t i = 0; i < d.elements(); ++i) {
      double value =
          one ? 1.0 : std::cos(1.0 + 3.0 * static_cast<double>(i) + 0.5 * static_cast<double>(seed));
      if (test.op == &ops::kCrossEntropy && inputs[1].Get(i) < 0) value = 0;
      d.Set(i, value);
    }
    weights.d_outputs.push_back(std::move(d));
  }
  return weights;
}

// The gradients of the inputs by the op's own rule; an empty tensor where it gives none.
Tensors Analytic(const Case& test, const Loss& loss, const Tensors& inputs, const Weights& weights) {
  graph::Graph graph;
  ValueTensors values;
  graph::ValueIds ids;
  for (size_t i = 0; i < inputs.size(); ++i) {
    ids.push_back(graph.AddInput("input" + std::to_string(i), inputs[i].type()));
    values[ids.back()] = inputs[i];
  }
  graph.Emit(*test.op, "node", ids, test.attributes);
  graph::ValueIds d_outputs;
  for (size_t o = 0; o < weights.d_outputs.size(); ++o) {
    if (loss.factors[o] == 0) {
      d_outputs.push_back(graph::kNoValue);
    } else if (o > 0 && test.op == &ops::kCrossEntropy) {
      d_outputs.push_back(d_outputs[0]);
    } else {
      d_outputs.push_back(graph.AddInput("d" + std::to_string(o), weights.d_outputs[o].type()));
      values[d_outputs.back()] = weights.d_outputs[o];
    }
  }
  graph::GradientContext context = {&graph, graph.nodes()[0], d_outputs,
                                    graph::ValueIds(inputs.size(), graph::kNoValue)};
  const graph::ValueIds gradients = test.op->gradient(context);
  RunGraph(graph, &values);
  Tensors result;
  for (graph::ValueId id : gradients) result.push_back(id == graph::kNoValue ? Tensor() : values.at(id));
  return result;
}

TEST_CASE("gradients agree with central differences") {
  constexpr double kStep = 1e-5;
  std::set<const graph::OpDef*> checked;
  for (const Case& test : AllCases()) {
    if (test.op->gradient == nullptr || test.large) continue;
    CAPTURE(std::string(test.op->name));
    CAPTURE(test.label);
    Tensors inputs = MakeInputs(test, DType::kF64);
    const Tensors outputs = RunOp(*test.op, test.attributes, inputs);
    const Loss loss = LossOf(test, outputs.size());
    const Weights weights = MakeWeights(test, outputs);
    const Tensors gradients = Analytic(test, loss, inputs, weights);
    REQUIRE(gradients.size() == inputs.size());
    // Truncation h²/6 · L''' with third derivatives below 10³ (of gelu and softmax: below 10, of a norm with
    // rstd below 10: below 10³), and rounding of the two values of L, ε·Σ|terms| each with a dozen
    // operations, over 2h.
    const double magnitude = weights.Sum(loss, outputs).second;
    const double bound = 170.0 * kStep * kStep + 12 * 2.2e-16 * (magnitude + 1.0) / kStep;
    for (size_t i = 0; i < inputs.size(); ++i) {
      CAPTURE(i);
      if (inputs[i].type().dtype != DType::kF64 || IsConstant(test, i)) continue;
      REQUIRE(gradients[i].elements() == inputs[i].elements());
      REQUIRE(gradients[i].type().shape == inputs[i].type().shape);
      double worst = 0;
      for (std::int64_t e = 0; e < inputs[i].elements(); ++e) {
        const double value = inputs[i].Get(e);
        inputs[i].Set(e, value + kStep);
        const double up = weights.Sum(loss, RunOp(*test.op, test.attributes, inputs)).first;
        inputs[i].Set(e, value - kStep);
        const double down = weights.Sum(loss, RunOp(*test.op, test.attributes, inputs)).first;
        inputs[i].Set(e, value);
        const bool of_lse = test.op == &ops::kLossSum && i == 0;
        const double beside = of_lse ? 1 + 2 * test.attributes.Float("z_loss", 0) * value : 1.0;
        const double error =
            std::fabs((up - down) / (2 * kStep) - beside * loss.signs[i] * gradients[i].Get(e));
        worst = std::isnan(error) ? INFINITY : std::max(worst, error);
      }
      CHECK(worst <= bound);
    }
    checked.insert(test.op);
  }
  for (const graph::OpDef* op : ops::AllOps()) {
    CAPTURE(std::string(op->name));
    CHECK((op->gradient == nullptr || checked.count(op) == 1));
  }
}

}  // namespace
}  // namespace engine::ops_test
