// Every op: float against double, accumulation, aliasing, threads. Outputs are NaN before every run.
#include <doctest/doctest.h>

#include <set>

#include "engine/backend/cpu/kernel_table.h"
#include "engine/ops/ops.h"
#include "tests/ops/cases.h"

namespace engine::ops_test {
namespace {

TEST_CASE("every op has a kernel and a case") {
  std::set<std::string_view> covered;
  for (const Case& test : AllCases()) covered.insert(test.op->name);
  for (const graph::OpDef* op : ops::AllOps()) {
    CAPTURE(std::string(op->name));
    CHECK(covered.count(op->name) == 1);
    const backend::cpu::KernelEntry* kernel = backend::cpu::FindKernel(op->name);
    REQUIRE(kernel != nullptr);
    CHECK((kernel->f32 != nullptr && kernel->f64 != nullptr));
  }
}

// A sum of n terms in any order is off by at most (n − 1)·ε·Σ|terms| (Higham, Accuracy and Stability, §4.2).
// The terms here are below 16 in magnitude and themselves the result of a few operations, of an exp or an erf
// (2 ulp) at most.
double FloatBound(const Case& test, const Tensor& output) {
  return 1.2e-7 * (static_cast<double>(test.terms) + 16.0) * 4.0 * Scale(output);
}

TEST_CASE("float kernels agree with double ones") {
  for (const Case& test : AllCases()) {
    CAPTURE(std::string(test.op->name));
    CAPTURE(test.label);
    const Tensors inputs = MakeInputs(test, DType::kF32);
    Tensors wide;
    for (const Tensor& input : inputs) wide.push_back(input.Widened());
    graph::Attributes attributes = test.attributes;
    const Tensors narrow_outputs = RunOp(*test.op, attributes, inputs);
    if (test.op == &ops::kLossWeight) attributes.Set("f64", std::int64_t{1});
    const Tensors wide_outputs = RunOp(*test.op, attributes, wide);
    for (size_t o = 0; o < wide_outputs.size(); ++o) {
      CAPTURE(o);
      CHECK(Distance(narrow_outputs[o], wide_outputs[o]) <= FloatBound(test, wide_outputs[o]));
    }
  }
}

TEST_CASE("outputs that accumulate add to what they hold") {
  for (const Case& test : AllCases()) {
    if (test.op->accumulates == 0) continue;
    CAPTURE(std::string(test.op->name));
    CAPTURE(test.label);
    const Tensors inputs = MakeInputs(test, DType::kF32);
    const Tensors plain = RunOp(*test.op, test.attributes, inputs);
    Tensors sums = plain;
    for (size_t o = 0; o < sums.size(); ++o) {
      for (std::int64_t i = 0; i < sums[o].elements(); ++i)
        sums[o].Set(i, 0.125 * static_cast<double>(1 + i % 9));
    }
    RunInto(test.op->name, test.attributes, inputs, &sums, {.accumulate = test.op->accumulates});
    for (size_t o = 0; o < sums.size(); ++o) {
      CAPTURE(o);
      Tensor expected = plain[o];
      if ((test.op->accumulates >> o & 1U) != 0) {
        for (std::int64_t i = 0; i < expected.elements(); ++i) {
          expected.Set(i, plain[o].Get(i) + 0.125 * static_cast<double>(1 + i % 9));
        }
      }
      CHECK(Distance(sums[o], expected) <= FloatBound(test, expected));
    }
  }
}

TEST_CASE("output 0 may share the bytes of its in-place input") {
  for (const Case& test : AllCases()) {
    if (test.op->in_place_input < 0) continue;
    CAPTURE(std::string(test.op->name));
    CAPTURE(test.label);
    const Tensors inputs = MakeInputs(test, DType::kF32);
    const Tensors apart = RunOp(*test.op, test.attributes, inputs);
    Tensors shared = apart;
    shared[0] = inputs[static_cast<size_t>(test.op->in_place_input)];
    for (size_t o = 1; o < shared.size(); ++o) {
      for (std::int64_t i = 0; i < shared[o].elements(); ++i) shared[o].Set(i, -1);
    }
    RunInto(test.op->name, test.attributes, inputs, &shared, {.in_place_input = test.op->in_place_input});
    for (size_t o = 0; o < shared.size(); ++o) {
      CAPTURE(o);
      CHECK(shared[o].SameBytes(apart[o]));
    }
  }
}

TEST_CASE("1 and 3 threads give the same bits") {
  for (const Case& test : AllCases()) {
    CAPTURE(std::string(test.op->name));
    CAPTURE(test.label);
    const Tensors inputs = MakeInputs(test, DType::kF32);
    const Tensors one = RunOp(*test.op, test.attributes, inputs);
    const Tensors three = RunOp(*test.op, test.attributes, inputs, {.threads = 3});
    for (size_t o = 0; o < one.size(); ++o) {
      CAPTURE(o);
      CHECK(one[o].SameBytes(three[o]));
    }
  }
}

TEST_CASE("a linear with bias is linear, then bias_add") {
  for (const Case& test : AllCases()) {
    if (test.op != &ops::kLinear || test.inputs.size() != 3) continue;
    CAPTURE(test.label);
    const Tensors inputs = MakeInputs(test, DType::kF32);
    const Tensors fused = RunOp(ops::kLinear, test.attributes, inputs);
    const Tensors product = RunOp(ops::kLinear, test.attributes, {inputs[0], inputs[1]});
    const Tensors composed = RunOp(ops::kBiasAdd, {}, {product[0], inputs[2]});
    CHECK(Distance(fused[0], composed[0]) <= FloatBound(test, composed[0]));
  }
}

}  // namespace
}  // namespace engine::ops_test
