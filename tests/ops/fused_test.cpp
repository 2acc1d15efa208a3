// Fused ops: types and FLOPs that they state, against their composition run node by node; and compositions
// against the plain ops as differentiation chains them.
#include "engine/ops/fused.h"

#include <doctest/doctest.h>

#include <cmath>
#include <set>

#include "engine/ops/ops.h"
#include "tests/ops/case_inputs.h"
#include "tests/ops/composed.h"
#include "tests/ops/head_forms.h"
#include "tests/ops/interpreter.h"

namespace engine::ops_test {
namespace {

using graph::Attributes;
using graph::Graph;
using graph::OpDef;
using graph::ValueId;
using graph::ValueIds;

Attributes RotaryAttributes() {
  return {{"rotary", kOne}, {"base", 10000.0}, {"factor", 1.0},
          {"low", 1.0},     {"high", 4.0},     {"original", 8192.0}};
}
// Neighbours of a part of each head, with a factor other than 1.
Attributes YarnAttributes() {
  return {{"rotary", kOne},   {"base", 100.0},     {"factor", 4.0},      {"scaling", std::string("yarn")},
          {"original", 64.0}, {"width", kOne + 1}, {"interleaved", kOne}};
}
Attributes AttentionAttributes() {
  return {{"scale", 0.5}, {"window", std::int64_t{0}}, {"dropout", 0.0}, {"stream", std::string("core")}};
}
std::vector<Case> FusedCases() {
  const Shape x = {2, 5, 6};
  const Shape d = {6};
  const Shape rows = {2, 5};
  const Input rstd = Make(rows, Input::kPositive);
  const Input spans = {.shape = {2, 5, 2}, .kind = Input::kGiven, .given = {0, 2, 0, 2, 2, 5, 2, 5, 2, 5,
                                                                            0, 1, 1, 5, 1, 5, 1, 5, 1, 5}};
  const Input rows_of = {.shape = {3}, .kind = Input::kGiven, .given = {7, -1, 0}};
  const Attributes gelu = {{"in_dims", kOne}, {"tanh", kOne}};
  const Attributes epsilon = {{"epsilon", 1e-5}};
  Attributes with_bias = epsilon;
  with_bias.Set("bias", kOne);
  const Attributes dropout = {{"epsilon", 1e-5}, {"p", 0.3}, {"stream", std::string("branch")}};
  Attributes again = with_bias;
  again.Set("again", kOne);
  const Shape qkv = {2, 5, 2, 3, 4};
  const Shape grouped = {2, 5, 2, 4, 4};
  std::vector<Case> cases = {
      {&ops::kLinearGelu, "", {{x}, {{8, 6}}, {{8}}}, gelu},
      {&ops::kLinearDgradGelu, "", {{{2, 5, 6}}, {{6, 8}}, {{2, 5, 8}}}, gelu},
      {&ops::kLinearAdd, "", {{x}, {{8, 6}}, {{2, 5, 8}}}, {{"in_dims", kOne}}},
      {&ops::kLinearDgradAdd, "", {{{2, 5, 6}}, {{6, 8}}, {{2, 5, 8}}}, {{"in_dims", kOne}}},
      {&ops::kLinearResidual, "", {{x}, {{8, 6}}, {{2, 5, 8}}}, {{"in_dims", kOne}}},
      {&ops::kLinearResidual, "biased", {{x}, {{8, 6}}, {{2, 5, 8}}, {{8}}}, {{"in_dims", kOne}}},
      {&ops::kNormLinear, "rms", {{x}, {{8, 6}}, {d}}, {{"in_dims", kOne}, {"epsilon", 1e-5}}},
      {&ops::kNormLinear,
       "layer, biased, gelu",
       {{x}, {{8, 6}}, {d}, {d}, {{8}}},
       {{"in_dims", kOne}, {"epsilon", 1e-5}, {"tanh", kOne}, {"layer", kOne}, {"gelu", kOne}}},
      {&ops::kNormLinear,
       "rms, gate",
       {{x}, {{2, 8, 6}}, {d}},
       {{"in_dims", kOne}, {"epsilon", 1e-5}, {"gate", kOne}}},
      {&ops::kLinearGated, "", {{x}, {{2, 8, 6}}}, {{"in_dims", kOne}}},
      {&ops::kLinearGated,
       "gelu, biased",
       {{x}, {{2, 8, 6}}, {{2, 8}}},
       {{"in_dims", kOne}, {"kind", std::string("gelu_erf")}}},
      {&ops::kGeluGradAgain, "tanh", {{x}, {x}}, {{"tanh", kOne}}},
      {&ops::kGeluGradAgain, "erf", {{x}, {x}}, {{"tanh", std::int64_t{0}}}},
      {&ops::kGeluGradAgain, "bias", {{x}, {x}}, {{"tanh", kOne}, {"bias", kOne}}},
      {&ops::kSwigluGradAgain, "", {{{2, 5, 2, 6}}, {x}}, {}},
      {&ops::kExpertActivationGradAgain,
       "gated",
       {{{3, 2, 6}}, {{2, 5, 2}}, rows_of, {{3, 6}}},
       {{"act", std::string("silu")}, {"gated", kOne}}},
      {&ops::kExpertActivationGradAgain,
       "not gated",
       {{{3, 6}}, {{2, 5, 2}}, rows_of, {{3, 6}}},
       {{"act", std::string("gelu_tanh")}, {"gated", std::int64_t{0}}}},
      {&ops::kAddLayerNorm, "", {{x}, {x}, {d}, {d}}, epsilon},
      {&ops::kAddLayerNorm, "biased", {{x}, {x}, {d}, {d}, {d}}, epsilon},
      {&ops::kAddRmsNorm, "", {{x}, {x}, {d}}, epsilon},
      {&ops::kAddDropoutLayerNorm, "", {{x}, {x}, {d}, {d}}, dropout},
      {&ops::kAddDropoutLayerNorm, "biased", {{x}, {x}, {d}, {d}, {d}}, dropout},
      {&ops::kAddDropoutRmsNorm, "", {{x}, {x}, {d}}, dropout},
      {&ops::kDropoutGradBias, "", {{x}}, {{"p", 0.3}, {"stream", std::string("branch")}}},
      {&ops::kLayerNormGradAdd, "", {{x}, {x}, {d}, {rows}, rstd, {x}}, epsilon},
      {&ops::kLayerNormGradAdd, "bias", {{x}, {x}, {d}, {rows}, rstd, {x}}, with_bias},
      {&ops::kLayerNormGradAdd, "again", {{x}, {x}, {d}, {rows}, rstd, {x}, {d}}, again},
      {&ops::kRmsNormGradAdd, "again", {{x}, {x}, {d}, rstd, {x}}, again},
      {&ops::kRmsNormGradAdd, "", {{x}, {x}, {d}, rstd, {x}}, epsilon},
      {&ops::kRmsNormGradAdd, "bias", {{x}, {x}, {d}, rstd, {x}}, with_bias},
      {&ops::kRotary, "", {{qkv}, Positions(rows)}, RotaryAttributes()},
      {&ops::kRotary, "grouped", {{grouped}, Positions(rows)}, RotaryAttributes()},
      {&ops::kRotaryGrad, "", {{qkv}, Positions(rows)}, RotaryAttributes()},
      {&ops::kRotary, "yarn", {{qkv}, Positions(rows)}, YarnAttributes()},
      {&ops::kRotaryGrad, "yarn", {{qkv}, Positions(rows)}, YarnAttributes()},
      {&ops::kAttentionPacked, "", {{qkv}, Positions(rows)}, AttentionAttributes()},
      {&ops::kAttentionPacked, "grouped", {{grouped}, Positions(rows)}, AttentionAttributes()},
      {&ops::kAttentionPacked, "documents", {{qkv}, Positions(rows), spans}, AttentionAttributes()},
      {&ops::kAttentionPackedGrad,
       "documents",
       {{qkv}, Positions(rows), spans, {{2, 5, 2, 4}}, {{2, 5, 2}}, {{2, 5, 2, 4}}},
       AttentionAttributes()},
      {&ops::kAttentionPackedGrad,
       "",
       {{qkv}, Positions(rows), {{2, 5, 2, 4}}, {{2, 5, 2}}, {{2, 5, 2, 4}}},
       AttentionAttributes()},
  };
  for (const HeadForm& form : HeadForms()) cases.push_back(HeadCase(form));
  return cases;
}

// Bit for bit: the same kernels on the same numbers.
void CheckSame(const std::string& what, const Tensor& a, const Tensor& b) {
  INFO(what);
  CHECK((a.type() == b.type()));
  CHECK(a.SameBytes(b));
  CHECK(std::isfinite(Distance(a, b)));
}

Tensor Values(const Shape& shape, DType dtype, double seed) {
  Tensor tensor({shape, dtype});
  for (std::int64_t i = 0; i < tensor.elements(); ++i)
    tensor.Set(i, std::sin(seed + 1.7 * static_cast<double>(i)));
  return tensor;
}

}  // namespace

TEST_CASE("every fused op has a case") {
  std::set<const OpDef*> covered;
  for (const Case& test : FusedCases()) covered.insert(test.op);
  for (const OpDef* op : ops::AllFusedOps()) CHECK_MESSAGE(covered.contains(op), op->name);
}

TEST_CASE("a fused op infers the types that its composition makes") {
  for (const Case& test : FusedCases()) {
    for (DType real : {DType::kF32, DType::kF64}) {
      CAPTURE(test.op->name);
      CAPTURE(test.label);
      const Tensors inputs = MakeInputs(test, real);
      const Composed composed(*test.op, test.attributes, inputs);
      const auto types = test.op->infer(TypesOf(inputs), test.attributes);
      REQUIRE_MESSAGE(types.ok(), Message(types.status()));
      REQUIRE(types->size() == composed.outputs.size());
      for (size_t o = 0; o < types->size(); ++o) CHECK(((*types)[o] == composed.Output(o).type()));
    }
  }
}

// What each node is given is known once it has run.
TEST_CASE("a fused op states the FLOPs of its composition, and the bytes of its own inputs and outputs") {
  for (const Case& test : FusedCases()) {
    CAPTURE(test.op->name);
    CAPTURE(test.label);
    const Tensors inputs = MakeInputs(test, DType::kF32);
    const Composed composed(*test.op, test.attributes, inputs);
    const auto types = test.op->infer(TypesOf(inputs), test.attributes);
    REQUIRE(types.ok());
    double flops = 0;
    double product_flops = 0;
    for (const graph::Node& node : composed.graph.nodes()) {
      Tensors in;
      Tensors out;
      for (ValueId id : node.inputs) in.push_back(composed.values.at(id));
      for (ValueId id : node.outputs) out.push_back(composed.values.at(id));
      const graph::Work cost = node.op->work(TypesOf(in), TypesOf(out), node.attributes);
      flops += cost.flops;
      product_flops += cost.product_flops;
    }
    double bytes = 0;
    for (const Tensor& input : inputs)
      bytes += static_cast<double>(input.elements() * SizeOf(input.type().dtype));
    for (size_t o = 0; o < types->size(); ++o) {
      const Tensor& output = composed.Output(o);
      bytes += static_cast<double>(output.elements() * SizeOf(output.type().dtype));
    }
    const graph::Work cost = test.op->work(TypesOf(inputs), *types, test.attributes);
    CHECK(cost.flops == flops);
    CHECK(cost.flops > 0);
    CHECK(cost.product_flops == product_flops);
    CHECK(cost.bytes == bytes);
  }
}

// What fuse.h may do in place and add up has outputs to do it to.
TEST_CASE("a fused op's in-place input is of the type of output 0, its sums are in fp32 or wider") {
  for (const Case& test : FusedCases()) {
    CAPTURE(test.op->name);
    const Tensors inputs = MakeInputs(test, DType::kF32);
    const auto types = test.op->infer(TypesOf(inputs), test.attributes);
    REQUIRE(types.ok());
    if (test.op->in_place_input >= 0)
      CHECK(((*types)[0] == inputs[static_cast<size_t>(test.op->in_place_input)].type()));
    for (size_t o = 0; o < types->size(); ++o) {
      if ((test.op->accumulates >> o & 1U) == 0) continue;
      CHECK(((*types)[o].dtype == DType::kF32 || (*types)[o].dtype == DType::kF64));
    }
  }
}

// A value that the forward pass did not keep: gelu' and gelu of the same input.
TEST_CASE("gelu_grad_again is the gradient and the activation of a differentiated, recomputed chain") {
  for (std::int64_t tanh : {0, 1}) {
    const Attributes attributes = {{"tanh", tanh}};
    const Tensor pre = Values({2, 5, 6}, DType::kF64, 0.1);
    const Tensor dy = Values({2, 5, 6}, DType::kF64, 0.4);
    const Composed composed(ops::kGeluGradAgain, attributes, {pre, dy});
    CheckSame("d_pre", composed.Output(0), RunOp(ops::kGeluGrad, attributes, {pre, dy})[0]);
    CheckSame("y", composed.Output(1), RunOp(ops::kGelu, attributes, {pre})[0]);
  }
}

// With the sums of dx and the norm that the forward pass did not keep.
TEST_CASE("norm gradients with an addition are the chain of norm gradient, add, bias_grad and norm") {
  const Attributes epsilon = {{"epsilon", 1e-2}, {"gain_offset", 1.0}};
  Attributes all = epsilon;
  all.Set("bias", kOne);
  all.Set("again", kOne);
  const Tensor dy = Values({2, 5, 6}, DType::kF64, 0.1);
  const Tensor x = Values({2, 5, 6}, DType::kF64, 0.2);
  const Tensor gamma = Values({6}, DType::kF64, 0.3);
  const Tensor beta = Values({6}, DType::kF64, 0.4);
  const Tensor residual = Values({2, 5, 6}, DType::kF64, 0.5);
  for (bool layer : {true, false}) {
    CAPTURE(layer);
    Tensors of = {x, gamma};
    if (layer) of.push_back(beta);
    const Tensors norm = RunOp(layer ? ops::kLayerNorm : ops::kRmsNorm, epsilon, of);
    Tensors inputs = {dy, x, gamma};
    inputs.insert(inputs.end(), norm.begin() + 1, norm.end());
    const Tensors gradient = RunOp(layer ? ops::kLayerNormGrad : ops::kRmsNormGrad, epsilon, inputs);
    const Tensor dx = RunOp(ops::kAdd, {}, {gradient[0], residual})[0];
    inputs.push_back(residual);
    if (layer) inputs.push_back(beta);
    const Composed composed(layer ? ops::kLayerNormGradAdd : ops::kRmsNormGradAdd, all, inputs);
    const size_t sums = layer ? 2 : 1;
    REQUIRE(composed.outputs.size() == sums + 3);
    CheckSame("dx", composed.Output(0), dx);
    for (size_t o = 1; o <= sums; ++o) CheckSame("a sum", composed.Output(o), gradient[o]);
    CheckSame("d_bias", composed.Output(sums + 1), RunOp(ops::kBiasGrad, {{"dims", kOne}}, {dx})[0]);
    CheckSame("y", composed.Output(sums + 2), norm[0]);
  }
}

// The projection is split with rotation, attended, and its gradient merged back.
TEST_CASE("rotary and attention_packed are the split, attention and merge of a differentiated chain") {
  for (const Shape& shape : {Shape{2, 5, 2, 3, 4}, Shape{2, 5, 2, 4, 4}}) {
    const Tensor qkv = Values(shape, DType::kF64, 0.2);
    const Case at{&ops::kRotary, "", {Positions({2, 5})}, {}};
    const Tensor positions = MakeInputs(at, DType::kF64)[0];
    const Tensors split = RunOp(ops::kQkvSplit, RotaryAttributes(), {qkv, positions});
    const Tensors core =
        RunOp(ops::kAttention, AttentionAttributes(), {split[0], split[1], split[2], positions});
    const Tensor d_o = Values(core[0].type().shape, DType::kF64, 0.9);
    const Tensors d = RunOp(ops::kAttentionGrad, AttentionAttributes(),
                            {split[0], split[1], split[2], positions, core[0], core[1], d_o});
    const Tensor d_qkv = RunOp(ops::kQkvMerge, RotaryAttributes(), {d[0], d[1], d[2], positions})[0];

    const Composed turned(ops::kRotary, RotaryAttributes(), {qkv, positions});
    CHECK_FALSE(turned.Output(0).SameBytes(qkv));
    const Composed packed(ops::kAttentionPacked, AttentionAttributes(), {turned.Output(0), positions});
    CheckSame("o", packed.Output(0), core[0]);
    CheckSame("lse", packed.Output(1), core[1]);
    const Composed gradient(ops::kAttentionPackedGrad, AttentionAttributes(),
                            {turned.Output(0), positions, core[0], core[1], d_o});
    const Composed unturned(ops::kRotaryGrad, RotaryAttributes(), {gradient.Output(0), positions});
    CheckSame("d_qkv", unturned.Output(0), d_qkv);
    // Of documents, beside positions.
    Tensor spans({{2, 5, 2}, DType::kI32});
    for (std::int64_t i = 0; i < 10; ++i) {
      spans.Set(2 * i, i % 5 < 2 ? 0 : 2);
      spans.Set(2 * i + 1, i % 5 < 2 ? 2 : 5);
    }
    const Tensors masked =
        RunOp(ops::kAttention, AttentionAttributes(), {split[0], split[1], split[2], positions, spans});
    CHECK_FALSE(masked[0].SameBytes(core[0]));
    const Composed packed_too(ops::kAttentionPacked, AttentionAttributes(),
                              {turned.Output(0), positions, spans});
    CheckSame("o of documents", packed_too.Output(0), masked[0]);
    const Tensors d_masked =
        RunOp(ops::kAttentionGrad, AttentionAttributes(),
              {split[0], split[1], split[2], positions, spans, masked[0], masked[1], d_o});
    const Composed d_packed(ops::kAttentionPackedGrad, AttentionAttributes(),
                            {turned.Output(0), positions, spans, masked[0], masked[1], d_o});
    CheckSame(
        "d_qkv of documents",
        Composed(ops::kRotaryGrad, RotaryAttributes(), {d_packed.Output(0), positions}).Output(0),
        RunOp(ops::kQkvMerge, RotaryAttributes(), {d_masked[0], d_masked[1], d_masked[2], positions})[0]);
    // Turned there and back again: what was, but for a rounding of each of four products.
    const Composed back(ops::kRotaryGrad, RotaryAttributes(), {turned.Output(0), positions});
    CHECK(Distance(back.Output(0), qkv) < 8 * 0x1p-52);
  }
}

}  // namespace engine::ops_test
