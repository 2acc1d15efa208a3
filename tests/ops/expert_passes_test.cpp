// Experts in passes against the ops that they stand for, which have room for all rows.
#include <doctest/doctest.h>

#include <cmath>
#include <random>
#include <vector>

#include "engine/graph/windows.h"
#include "engine/ops/expert_passes.h"
#include "engine/ops/ops.h"
#include "tests/ops/cases.h"
#include "tests/ops/interpreter.h"

namespace engine::ops_test {
namespace {

using graph::Attributes;
using graph::TensorType;

struct Load {
  std::int64_t samples, tokens, experts, k, d, f;
  bool gated;
  Tensor x, weight, choice, w1, w2, dy;
};

template <typename Value>
Tensor Made(const Shape& shape, DType dtype, const Value& value) {
  Tensor tensor(TensorType{shape, dtype});
  for (std::int64_t i = 0; i < tensor.elements(); ++i) tensor.Set(i, value());
  return tensor;
}

// A load in which tokens go to `popular` of the experts alone.
Load RandomLoad(std::mt19937* random, bool few) {
  const auto draw = [&](int below) {
    return static_cast<std::int64_t>((*random)() % static_cast<unsigned>(below));
  };
  const auto real = [&] { return static_cast<double>(draw(2001)) / 1000 - 1; };
  Load load;
  load.experts = 2 * (1 + draw(4));
  load.k = 1 + draw(static_cast<int>(std::min<std::int64_t>(load.experts, 3)));
  load.samples = 1 + draw(3);
  load.tokens = 1 + draw(150);
  load.d = 1 + draw(4);
  load.f = 1 + draw(4);
  load.gated = draw(2) != 0;
  const std::int64_t popular = few ? load.k : load.experts;
  load.choice = Tensor(TensorType{{load.samples, load.tokens, load.k}, DType::kI32});
  std::vector<std::int64_t> order(static_cast<size_t>(popular));
  for (std::int64_t t = 0; t < load.samples * load.tokens; ++t) {
    for (std::int64_t e = 0; e < popular; ++e) order[static_cast<size_t>(e)] = e;
    std::shuffle(order.begin(), order.end(), *random);
    for (std::int64_t j = 0; j < load.k; ++j)
      load.choice.Set(t * load.k + j, static_cast<double>(order[static_cast<size_t>(j)]));
  }
  const Shape x = {load.samples, load.tokens, load.d};
  const Shape w1 = load.gated ? Shape{load.experts, 2, load.f, load.d} : Shape{load.experts, load.f, load.d};
  load.x = Made(x, DType::kF64, real);
  load.weight = Made(load.choice.type().shape, DType::kF64, real);
  load.w1 = Made(w1, DType::kF64, real);
  load.w2 = Made({load.experts, load.d, load.f}, DType::kF64, real);
  load.dy = Made(x, DType::kF64, real);
  return load;
}

// y, dx, d_weight, d_w1, d_w2.
Tensors WithAllRows(const Load& load, const Tensors& at) {
  const Attributes one = {{"in_dims", std::int64_t{1}}};
  const Attributes act = {{"act", std::string("silu")}, {"gated", std::int64_t{load.gated}}};
  const auto run = [](const graph::OpDef& op, const Attributes& attributes, const Tensors& inputs) {
    return RunOp(op, attributes, inputs)[0];
  };
  const Tensor rows = run(ops::kSpread, {}, {load.x, at[0], at[1], load.choice});
  const Tensor h = run(ops::kGroupedLinear, one, {rows, load.w1, at[2]});
  const Tensor activated = run(ops::kExpertActivation, act, {h, load.weight, at[0]});
  const Tensor made = run(ops::kGroupedLinear, one, {activated, load.w2, at[2]});
  const Tensor y = run(ops::kCombine, {}, {made, at[0], at[1], load.choice});
  const Tensor d_rows = run(ops::kSpread, {}, {load.dy, at[0], at[1], load.choice});
  const Tensor d_w2 = run(ops::kGroupedLinearWgrad, one, {d_rows, activated, at[2]});
  const Tensor d_activated = run(ops::kGroupedLinearDgrad, one, {d_rows, load.w2, at[2]});
  const Tensors d = RunOp(ops::kExpertActivationGrad, act, {h, load.weight, at[0], d_activated});
  const Tensor d_w1 = run(ops::kGroupedLinearWgrad, one, {d[0], rows, at[2]});
  const Tensor back = run(ops::kGroupedLinearDgrad, one, {d[0], load.w1, at[2]});
  const Tensor dx = run(ops::kCombine, {}, {back, at[0], at[1], load.choice});
  return {y, dx, d[1], d_w1, d_w2};
}

Attributes PassAttributes(const Load& load, std::int64_t passes) {
  return {{"experts", load.experts},
          {"k", load.k},
          {"passes", passes},
          {"act", std::string("silu")},
          {"gated", std::int64_t{load.gated}}};
}

Tensors InPasses(const Load& load, const Tensors& at, std::int64_t passes) {
  Tensors inputs = {load.x, load.weight, load.choice, at[0], at[1], at[2], load.w1, load.w2};
  Tensors results = RunOp(ops::kExpertPasses, PassAttributes(load, passes), inputs);
  inputs.push_back(load.dy);
  for (Tensor& gradient : RunOp(ops::kExpertPassesGrad, PassAttributes(load, passes), inputs))
    results.push_back(std::move(gradient));
  return results;
}

}  // namespace

TEST_CASE("200 random loads in passes give what buffers for all rows give, and so do their gradients") {
  std::mt19937 random(23);
  std::int64_t extra = 0;
  for (int round = 0; round < 200; ++round) {
    CAPTURE(round);
    const Load load = RandomLoad(&random, round % 4 == 0);
    const std::int64_t passes = 1 + static_cast<std::int64_t>(random() % 9);
    CAPTURE(passes);
    const Tensor count = RunOp(ops::kTally, {{"experts", load.experts}}, {load.choice})[0];
    const Tensors at = RunOp(ops::kPlace, {}, {load.choice, count});
    const Tensors expected = WithAllRows(load, at);
    const Tensors results = InPasses(load, at, passes);
    REQUIRE(results.size() == expected.size());
    for (size_t i = 0; i < results.size(); ++i) {
      CAPTURE(i);
      REQUIRE(results[i].type().shape == expected[i].type().shape);
      CHECK(Distance(results[i], expected[i]) <= 1e-13 * Scale(expected[i]) * 450);
    }
    // Rows that are not in the first window, by their places.
    const std::int64_t window = graph::WindowRows(at[0].elements(), passes);
    std::int64_t behind = 0;
    for (std::int64_t c = 0; c < at[1].elements(); ++c)
      behind += at[1].Get(c) >= static_cast<double>(window) ? 1 : 0;
    CHECK(RunOp(ops::kExtraRows, {{"passes", passes}}, {at[0], at[2]})[0].Get(0) ==
          static_cast<double>(behind));
    extra += behind;
  }
  CHECK(extra > 10000);
}

TEST_CASE("a rank whose experts nobody chose gives zeros in passes, gradients of weights among them") {
  std::mt19937 random(5);
  Load load = RandomLoad(&random, false);
  for (std::int64_t c = 0; c < load.choice.elements(); ++c) load.choice.Set(c, -1);
  const Tensor count = RunOp(ops::kTally, {{"experts", load.experts}}, {load.choice})[0];
  const Tensors at = RunOp(ops::kPlace, {}, {load.choice, count});
  for (const Tensor& result : InPasses(load, at, 3)) {
    for (std::int64_t i = 0; i < result.elements(); ++i) CHECK(result.Get(i) == 0);
  }
}

TEST_CASE("windows hold all rows, and the fewest passes are taken that keep to a budget") {
  for (const std::int64_t bound : {128, 1280, 128 * 63, 128 * 64, 128 * 1001}) {
    for (std::int64_t passes = 1; passes <= graph::kMostPasses; ++passes) {
      const std::int64_t rows = graph::WindowRows(bound, passes);
      CHECK(rows % graph::kRowAlignment == 0);
      CHECK(rows * passes >= bound);
      CHECK((rows - graph::kRowAlignment) * passes < bound);
    }
  }
  // 8 of 256 experts for a token, 4 of them on a rank: the worst load is 4 rows a token, the mean 1/8.
  CHECK(graph::WorstOverMean(8, 256, 4) == 32);
  CHECK(graph::PassesOf(2, 8, 256, 4) == 16);
  CHECK(graph::PassesOf(1.25, 8, 256, 4) == 25);
  CHECK(graph::PassesOf(32, 8, 256, 4) == 1);
  CHECK(graph::PassesOf(40, 8, 256, 4) == 1);
  // One rank has the rows of all choices, whatever they are.
  CHECK(graph::PassesOf(1, 2, 8, 8) == 1);
  CHECK(graph::PassesOf(0.5, 2, 8, 8) == 2);
}

TEST_CASE("experts in passes count the products of the mean load, the first one again backward") {
  const TensorType x = {{2, 16, 8}};
  const TensorType choice = {{2, 16, 2}, DType::kI32};
  const TensorType weight = {{2, 16, 2}};
  const std::int64_t bound = graph::RowBound(32, 2, 2);
  std::vector<TensorType> inputs = {x,
                                    weight,
                                    choice,
                                    {{bound}, DType::kI32},
                                    {{64}, DType::kI32},
                                    {{2, 2}, DType::kI32},
                                    {{2, 2, 5, 8}},
                                    {{2, 8, 5}}};
  const Attributes attributes = {{"experts", std::int64_t{4}},
                                 {"k", std::int64_t{2}},
                                 {"passes", std::int64_t{3}},
                                 {"act", std::string("silu")},
                                 {"gated", std::int64_t{1}}};
  const auto work = [&](const graph::OpDef& op) {
    const auto outputs = op.infer(inputs, attributes);
    REQUIRE(outputs.ok());
    return op.work(inputs, *outputs, attributes);
  };
  const double rows = 32;  // 64 choices, two of four experts
  const double products = 2 * rows * 8 * (10 + 5);
  const graph::Work forward = work(ops::kExpertPasses);
  CHECK(forward.product_flops == products);
  CHECK(forward.flops == products + 10 * rows * 5);
  inputs.push_back(x);
  const graph::Work backward = work(ops::kExpertPassesGrad);
  CHECK(backward.product_flops == 2 * products);
  CHECK(backward.flops == doctest::Approx(2 * products + 2 * rows * 8 * 10 + 32 * rows * 5));
}

}  // namespace engine::ops_test
