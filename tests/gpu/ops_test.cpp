// Every kernel of an op against the CPU's in float64: outputs that overwrite, add up, share the bytes of an
// input; a second run gives the same bits. Outputs are NaN and scratch is garbage before every run.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "engine/backend/cuda/launch/prepare.h"
#include "engine/backend/cuda/profile/profile.h"
#include "engine/graph/rows.h"
#include "engine/ops/fused.h"
#include "engine/ops/ops.h"
#include "tests/gpu/cases.h"

namespace engine::gpu_test {
namespace {

// fp32 sums: of n terms in any order, off by at most (n − 1)·ε·Σ|terms| (Higham, Accuracy and Stability,
// §4.2), as FloatBound of tests/ops/numerics_test.cpp has it; products of 16-bit numbers are exact in fp32.
// Then one rounding to the output's dtype, 2⁻²⁵ being half of f16's smallest number. Sums in f64 are of terms
// that are exact, and integers are exact.
Tolerance ToleranceOf(const GpuCase& test, size_t output, DType of_output, DType of_case,
                      const Tensors& inputs, const Tensors& expected) {
  if (of_output == DType::kI32 || of_output == DType::kE4M3)
    return {};  // of a cache, numbers that are rounded once
  const double scale = ops_test::Scale(expected[output]);
  if (test.base.op == &ops::kLossSum) return {1e-12, 1e-12 * static_cast<double>(inputs[0].elements())};
  Tolerance tolerance;
  tolerance.relative = 1.01 * UnitRoundoff(of_output);
  tolerance.absolute = 1.2e-7 * (static_cast<double>(test.base.terms) + 16.0) * 4.0 * scale;
  if (of_output == DType::kF16) tolerance.absolute += 0x1p-25;
  if (test.extra) tolerance.absolute += test.extra(output, of_case, inputs, expected);
  return tolerance;
}

bool IsGrouped(const graph::OpDef& op) {
  return &op == &ops::kGroupedLinear || &op == &ops::kGroupedLinearDgrad || &op == &ops::kGroupedLinearWgrad;
}

std::int64_t FilledUp(std::int64_t rows) {
  return (rows + graph::kRowAlignment - 1) / graph::kRowAlignment * graph::kRowAlignment;
}

// Behind the last group of rows of experts (graph/rows.h).
std::int64_t EndOfGroups(const Tensor& groups) {
  std::int64_t end = 0;
  for (std::int64_t e = 0; e < groups.type().shape[0]; ++e) {
    const auto rows = static_cast<std::int64_t>(groups.Get(2 * e + 1));
    if (rows > 0) end = static_cast<std::int64_t>(groups.Get(2 * e)) + FilledUp(rows);
  }
  return end;
}

// Of a grouped product: rows that fill up a group become zeros, as they are in a run; those behind the last group NaN, as
// nothing reads them.
void FillUnusedRows(Tensors* inputs) {
  const Tensor groups = (*inputs)[2];
  const std::int64_t rows = (*inputs)[0].type().shape[0];
  std::vector<double> filling(static_cast<size_t>(rows), 0.0);
  std::vector<bool> used(static_cast<size_t>(rows), false);
  std::fill(filling.begin() + EndOfGroups(groups), filling.end(), std::nan(""));
  for (std::int64_t e = 0; e < groups.type().shape[0]; ++e) {
    std::fill_n(used.begin() + static_cast<std::int64_t>(groups.Get(2 * e)),
                static_cast<std::int64_t>(groups.Get(2 * e + 1)), true);
  }
  for (Tensor& input : *inputs) {
    if (input.type().dtype == DType::kI32 || input.type().shape[0] != rows) continue;
    const std::int64_t width = input.elements() / rows;
    for (std::int64_t i = 0; i < input.elements(); ++i) {
      if (!used[static_cast<size_t>(i / width)]) input.Set(i, filling[static_cast<size_t>(i / width)]);
    }
  }
}

Tensors InputsOf(const GpuCase& test, DType dtype, std::vector<DType>* dtypes) {
  Tensors inputs = ops_test::MakeInputs(test.base, DType::kF64);
  if (test.adjust) test.adjust(&inputs);
  if (IsGrouped(*test.base.op)) FillUnusedRows(&inputs);
  for (size_t i = 0; i < inputs.size(); ++i) {
    const DType own = inputs[i].type().dtype;  // of integers and of narrow caches
    const DType on_gpu = own != DType::kF64 ? own : IsStatistic(test.base, i) ? DType::kF32 : dtype;
    dtypes->push_back(on_gpu);
    inputs[i] = Rounded(inputs[i], on_gpu);
  }
  return inputs;
}

// Ops whose fp32 sums may be kept in bf16 where the tensors are: those that make gradients of matrices.
bool MakesMatrixGradients(const graph::OpDef& op) {
  return &op == &ops::kLinearWgrad || &op == &ops::kGroupedLinearWgrad || &op == &ops::kEmbeddingGrad ||
         &op == &ops::kLinearCrossEntropy || &op == &ops::kExpertPassesGrad;
}

// The head's weight gradient in bf16 is rounded after each chunk of tokens but the last, whose rounding is in
// every tolerance: the sums up to there, of the reference with all later labels ignored, and what was there
// before.
double ChunkRoundings(const GpuCase& test, const Problem& problem) {
  const std::int64_t tokens = problem.inputs[2].elements();
  const std::int64_t chunk = test.base.attributes.Int("chunk");
  std::vector<graph::TensorType> types;
  for (const Output& output : problem.outputs) types.push_back(output.type);
  double error = 0;
  for (std::int64_t end = chunk; end < tokens; end += chunk) {
    Tensors inputs = problem.inputs;
    for (std::int64_t i = end; i < tokens; ++i) inputs[2].Set(i, -1);
    const double before = (problem.accumulate >> 1U & 1U) != 0 ? Before(8) : 0.0;
    error += UnitRoundoff(DType::kBF16) * (ops_test::Scale(Reference(test, inputs, types)[1]) + before);
  }
  return error;
}

// The inputs that output 0 may share bytes with.
std::vector<int> InPlaceInputs(const graph::OpDef& op) {
  if (&op == &ops::kAddLayerNorm || &op == &ops::kAddRmsNorm || &op == &ops::kAddDropoutLayerNorm ||
      &op == &ops::kAddDropoutRmsNorm) {
    return {0, 1};
  }
  if (op.in_place_input < 0) return {};
  return {op.in_place_input};
}

// Of an op whose outputs 0 and 2 are rows of experts (graph/rows.h), those that it writes: up to the end of the last group.
// Negative: all.
std::int64_t WrittenRows(const Problem& problem) {
  if (problem.op == &ops::kGroupedLinear || problem.op == &ops::kGroupedLinearDgrad)
    return EndOfGroups(problem.inputs[2]);
  const bool spread = problem.op == &ops::kSpread;
  if (!spread && !IsExpertActivation(*problem.op)) return -1;
  const Tensor& choice_of = problem.inputs[spread ? 1 : 2];
  std::int64_t end = choice_of.elements();
  while (end > 0 && choice_of.Get(end - 1) < 0) --end;
  return FilledUp(end);
}

// Rows behind them hold anything: they become what is expected.
void ForgetOtherRows(const Problem& problem, const Tensors& expected, Outcome* outcome) {
  const std::int64_t rows = WrittenRows(problem);
  if (rows < 0) return;
  for (size_t o = 0; o < expected.size(); o += 2) {
    const Tensor& all = expected[o];
    for (std::int64_t i = rows * (all.elements() / all.type().shape[0]); i < all.elements(); ++i)
      outcome->outputs[o].Set(i, all.Get(i));
  }
}

void CheckOutputs(const GpuCase& test, const Problem& problem, DType dtype, const Tensors& expected) {
  absl::StatusOr<Outcome> outcome = Launch(problem);
  if (!outcome.ok()) {
    FAIL_CHECK(fmt::format("{}: {}", problem.where, Message(outcome.status())));
    return;
  }
  ForgetOtherRows(problem, expected, &*outcome);
  for (size_t o = 0; o < expected.size(); ++o) {
    Tensor sum = expected[o];
    const bool adds = (problem.accumulate >> o & 1U) != 0;
    for (std::int64_t i = 0; adds && i < sum.elements(); ++i) sum.Set(i, expected[o].Get(i) + Before(i));
    Tolerance tolerance =
        ToleranceOf(test, o, problem.outputs[o].type.dtype, dtype, problem.inputs, expected);
    const bool narrow =
        (problem.op->accumulates >> o & 1U) != 0 && problem.outputs[o].type.dtype == DType::kBF16;
    if (narrow && problem.op == &ops::kLinearCrossEntropy)
      tolerance.absolute += ChunkRoundings(test, problem);
    // Some of cuBLASLt's kernels, and ours of experts, round the product to the gradient's format before they add it.
    if (narrow && adds && (problem.op == &ops::kLinearWgrad || problem.op == &ops::kGroupedLinearWgrad))
      tolerance.absolute += UnitRoundoff(DType::kBF16) * ops_test::Scale(expected[o]);
    Compare(fmt::format("{}, output {}{}", problem.where, o, adds ? ", adding" : ""), sum,
            outcome->outputs[o], tolerance);
  }
}

// Whether two launches wrote the same bits: rows of experts that no launch writes are what they were, which is another
// tensor's where they share bytes.
bool SameWritten(const Problem& problem, size_t output, const Outcome& a, const Outcome& b) {
  const std::int64_t rows = output % 2 == 0 ? WrittenRows(problem) : -1;
  if (rows < 0) return a.bytes[output] == b.bytes[output];
  const auto all = static_cast<std::int64_t>(a.bytes[output].size());
  const std::int64_t written = all / problem.outputs[output].type.shape[0] * rows;
  return std::equal(a.bytes[output].begin(), a.bytes[output].begin() + written, b.bytes[output].begin());
}

// Once more with other garbage in scratch, and once for each input that output 0 may share bytes with: the
// bits of the first run.
void CheckBits(Problem problem) {
  const absl::StatusOr<Outcome> first = Launch(problem);
  if (!first.ok()) return;  // reported
  const auto check = [&](const std::string& how) {
    const absl::StatusOr<Outcome> again = Launch(problem);
    if (!again.ok()) {
      FAIL_CHECK(fmt::format("{}, {}: {}", problem.where, how, Message(again.status())));
      return;
    }
    for (size_t o = 0; o < problem.outputs.size(); ++o) {
      if (SameWritten(problem, o, *first, *again)) continue;
      std::int64_t i = 0;
      while (again->outputs[o].Get(i) == first->outputs[o].Get(i) && i + 1 < again->outputs[o].elements())
        ++i;
      FAIL_CHECK(fmt::format("{}, output {}, {}: other bits, first at element {} of {}: {:.9g}, then {:.9g}",
                             problem.where, o, how, i, problem.outputs[o].type.shape.ToString(),
                             first->outputs[o].Get(i), again->outputs[o].Get(i)));
    }
  };
  problem.poison = 0x5A;
  check("second run");
  for (int input : InPlaceInputs(*problem.op)) {
    problem.outputs[0].alias = input;
    check(fmt::format("in place of input {}", input));
  }
}

// Where the kernel adds another rank's part to an input: the outputs are those of the whole input, and have
// the same bits on the other rank, which has the two parts the other way round.
void CheckPart(const GpuCase& test, Problem problem, DType dtype,
               const std::vector<graph::TensorType>& types) {
  const auto profile = backend::cuda::CudaProfile();
  for (size_t input = 0; input < problem.inputs.size(); ++input) {
    const graph::TensorType type = {problem.inputs[input].type().shape, problem.input_dtypes[input]};
    if (profile.adds_part(*problem.op, type, problem.attributes) == static_cast<int>(input))
      problem.part_of = static_cast<int>(input);
  }
  if (problem.part_of < 0) return;
  const auto input = static_cast<size_t>(problem.part_of);
  problem.where += ", in two parts";
  problem.part = problem.inputs[input];
  const std::int64_t elements = problem.part.elements();
  for (std::int64_t i = 0; i < elements; ++i)
    problem.part.Set(i, 0.75 * problem.inputs[input].Get(elements - 1 - i));
  problem.part = Rounded(problem.part, dtype);
  Tensors whole = problem.inputs;
  for (std::int64_t i = 0; i < elements; ++i)
    whole[input].Set(i, problem.inputs[input].Get(i) + problem.part.Get(i));
  CheckOutputs(test, problem, dtype, Reference(test, whole, types));
  CheckBits(problem);
  const absl::StatusOr<Outcome> here = Launch(problem);
  std::swap(problem.inputs[input], problem.part);
  const absl::StatusOr<Outcome> there = Launch(problem);
  if (!here.ok() || !there.ok()) return;  // reported
  CHECK_MESSAGE(here->bytes == there->bytes, problem.where);
}

// gradients: in place of fp32, the dtype of matrices that accumulate.
void Run(const GpuCase& test, DType dtype, DType gradients = DType::kF32) {
  const graph::OpDef& op = *test.base.op;
  Problem problem;
  problem.where = fmt::format("{} ({}) {}{}", op.name, test.base.label, Name(dtype),
                              gradients == DType::kF32 ? "" : ", gradient in bf16");
  problem.kernel = std::string(op.name);
  problem.op = &op;
  problem.attributes = test.base.attributes;
  problem.inputs = InputsOf(test, dtype, &problem.input_dtypes);
  std::vector<graph::TensorType> input_types;
  for (size_t i = 0; i < problem.inputs.size(); ++i)
    input_types.push_back({problem.inputs[i].type().shape, problem.input_dtypes[i]});
  auto types = op.infer(input_types, test.base.attributes);
  REQUIRE_MESSAGE(types.ok(), fmt::format("{}: {}", problem.where, Message(types.status())));
  for (size_t o = 0; o < types->size(); ++o) {
    graph::TensorType& type = (*types)[o];
    const bool matrix = (op.accumulates >> o & 1U) != 0 && type.shape.rank() > 1;
    if (matrix && type.dtype == DType::kF32) type.dtype = gradients;
  }
  for (const graph::TensorType& type : *types) problem.outputs.push_back(Output::Whole(type));
  if (test.slice) {
    problem.outputs[0].extent.dims[static_cast<size_t>(test.slice_dim)] = {*test.slice};
    problem.outputs[0].logical[test.slice_dim] = test.logical_rows;
  }
  const Tensors expected = Reference(test, problem.inputs, *types);
  CheckOutputs(test, problem, dtype, expected);
  CheckBits(problem);
  CheckPart(test, problem, dtype, *types);
  if (op.accumulates == 0) return;
  problem.accumulate = op.accumulates & ((1U << problem.outputs.size()) - 1U);
  CheckOutputs(test, problem, dtype, expected);
}

void RunAll(const GpuCases& cases) {
  for (const GpuCase& test : cases) {
    for (DType dtype : test.dtypes) {
      Run(test, dtype);
      if (dtype == DType::kBF16 && MakesMatrixGradients(*test.base.op)) Run(test, dtype, DType::kBF16);
    }
  }
}

}  // namespace

TEST_CASE("gpu op: linear") { RunAll(LinearCases()); }
TEST_CASE("gpu op: elementwise") { RunAll(ElementwiseCases()); }
TEST_CASE("gpu op: norms") { RunAll(NormCases()); }
TEST_CASE("gpu op: embedding and qkv") { RunAll(TokenCases()); }
TEST_CASE("gpu op: attention") { RunAll(AttentionCases()); }
TEST_CASE("gpu op: own attention of 64") { RunAll(OwnAttentionCases(64)); }
TEST_CASE("gpu op: own attention of 96") { RunAll(OwnAttentionCases(96)); }
TEST_CASE("gpu op: own attention of 128") { RunAll(OwnAttentionCases(128)); }
TEST_CASE("gpu op: own attention filled up") { RunAll(FilledAttentionCases()); }
TEST_CASE("gpu op: own attention of documents") { RunAll(DocumentAttentionCases()); }
TEST_CASE("gpu op: own attention of other heads") { RunAll(OtherOwnAttentionCases()); }
TEST_CASE("gpu op: latent attention") { RunAll(LatentAttentionCases()); }
TEST_CASE("gpu op: caches") { RunAll(CacheCases()); }
TEST_CASE("gpu op: cross entropy") { RunAll(LossCases()); }
TEST_CASE("gpu op: experts") { RunAll(ExpertCases()); }
TEST_CASE("gpu op: experts in passes") { RunAll(ExpertPassCases()); }
TEST_CASE("gpu op: others") { RunAll(OtherCases()); }

// One test case a fused op, so that one failing library call hides no other.
TEST_CASE("gpu op: fused") {
  const GpuCases cases = FusedCases();
  for (const graph::OpDef* op : ops::AllFusedOps()) {
    if (op == &ops::kExpertActivationGradAgain) continue;  // among those of experts
    SUBCASE(std::string(op->name).c_str()) {
      GpuCases own;
      size_t dtypes = 0;
      for (const GpuCase& test : cases) {
        if (test.base.op != op) continue;
        own.push_back(test);
        dtypes += test.dtypes.size();
      }
      CHECK_MESSAGE(dtypes > 0, fmt::format("{} has no case in a dtype that the profile fuses", op->name));
      RunAll(own);
    }
  }
}

TEST_CASE("gpu op: every op has a kernel and a case") {
  std::set<std::string> covered;
  for (const GpuCases& cases :
       {LinearCases(), ElementwiseCases(), NormCases(), TokenCases(), AttentionCases(), CacheCases(),
        LossCases(), FusedCases(), ExpertCases(), ExpertPassCases(), OtherCases()}) {
    for (const GpuCase& test : cases) covered.insert(std::string(test.base.op->name));
  }
  for (const auto& ops : {ops::AllOps(), ops::AllFusedOps()}) {
    for (const graph::OpDef* op : ops) {
      const std::string name(op->name);
      // Of these the device profile says that it has no kernel yet.
      if (op == &ops::kSelectToken || op == &ops::kSelectTokenGrad) {
        CHECK(!backend::cuda::CudaProfile().lacks(*op, {}, {}).empty());
        continue;
      }
      CHECK_MESSAGE(covered.count(name) == 1, fmt::format("{} has no case", name));
      CHECK_MESSAGE(backend::cuda::FindKernel(name) != nullptr, fmt::format("{} has no kernel", name));
    }
  }
}

// Along an axis that splits heads but no weights, a rank reads its part of all sinks, or biases; of their gradient, the part of other
// ranks' heads is zero.
TEST_CASE("gpu op: sinks and biases of more heads than are here") {
  int cases = 0;
  for (GpuCase test : AttentionCases()) {
    const bool biased = test.base.label == kBiasedSliceOfHeads;
    if (!biased && test.base.label != kSliceOfHeads) continue;
    const auto of_heads = [&](std::int64_t heads) {
      return biased ? Shape{heads, test.base.inputs.back().shape[1]} : Shape{heads};
    };
    ++cases;
    test.adjust = [place = test.adjust, shape = of_heads(12)](Tensors* inputs) {
      place(inputs);
      Tensor all({shape, DType::kF64});
      for (std::int64_t i = 0; i < all.elements(); ++i) all.Set(i, std::sin(static_cast<double>(i)));
      inputs->back() = all;
    };
    for (DType dtype : kFloats) {
      Problem problem;
      problem.op = test.base.op;
      problem.kernel = std::string(problem.op->name);
      problem.where =
          fmt::format("{} of part of the {}, {}", problem.kernel, biased ? "biases" : "sinks", Name(dtype));
      problem.attributes = test.base.attributes;
      problem.inputs = InputsOf(test, dtype, &problem.input_dtypes);
      std::vector<graph::TensorType> types;
      for (size_t i = 0; i < problem.inputs.size(); ++i)
        types.push_back({problem.inputs[i].type().shape, problem.input_dtypes[i]});
      types.back().shape = of_heads(3);  // those of the heads here
      auto outputs = problem.op->infer(types, problem.attributes);
      REQUIRE_MESSAGE(outputs.ok(), Message(outputs.status()));
      if (outputs->size() == 4) outputs->back().shape = of_heads(12);
      Tensors expected;
      for (const graph::TensorType& type : *outputs) {
        problem.outputs.push_back(Output::Whole(type));
        expected.emplace_back(graph::TensorType{type.shape, DType::kF64});
      }
      ops_test::RunInto(problem.op->name, problem.attributes, problem.inputs, &expected);
      CheckOutputs(test, problem, dtype, expected);
      problem.accumulate = outputs->size() == 4 ? problem.op->accumulates : 0U;
      CheckOutputs(test, problem, dtype, expected);
    }
  }
  CHECK(cases == 4);
}

// control[kLossScale] and control[kLabelFactor] multiply gradients and no loss; a power of two is exact.
TEST_CASE("gpu op: the loss scale and the label factor") {
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    for (const graph::OpDef* op : {&ops::kLossWeight, &ops::kLinearCrossEntropy}) {
      const bool head = op == &ops::kLinearCrossEntropy;
      Problem problem;
      problem.where =
          fmt::format("{} {} with a loss scale of 2 and a label factor of 4", op->name, Name(dtype));
      problem.kernel = std::string(op->name);
      problem.op = op;
      problem.attributes = {{"in_dims", std::int64_t{1}},
                            {"classes", std::int64_t{47}},
                            {"scale", 0.25},
                            {"chunk", std::int64_t{8}}};
      GpuCase test;
      test.base.op = op;
      ops_test::Input labels;
      labels.shape = {2, 12};
      labels.kind = ops_test::Input::kLabels;
      labels.limit = 47;
      if (head) test.base.inputs = {{{2, 12, 64}}, {{48, 64}}};
      test.base.inputs.push_back(labels);
      problem.inputs = InputsOf(test, dtype, &problem.input_dtypes);
      std::vector<graph::TensorType> input_types;
      for (size_t i = 0; i < problem.inputs.size(); ++i)
        input_types.push_back({problem.inputs[i].type().shape, problem.input_dtypes[i]});
      const auto types = op->infer(input_types, problem.attributes);
      REQUIRE(types.ok());
      for (const graph::TensorType& type : *types) problem.outputs.push_back(Output::Whole(type));
      const absl::StatusOr<Outcome> one = Launch(problem);
      problem.loss_scale = 2;
      problem.label_factor = 4;
      const absl::StatusOr<Outcome> eight = Launch(problem);
      REQUIRE_MESSAGE(one.ok(), Message(one.status()));
      REQUIRE_MESSAGE(eight.ok(), Message(eight.status()));
      for (size_t o = 0; o < problem.outputs.size(); ++o) {
        Tensor expected = one->outputs[o];
        const double factor = o == 2 ? 1.0 : 8.0;
        for (std::int64_t i = 0; i < expected.elements(); ++i) expected.Set(i, factor * expected.Get(i));
        Compare(fmt::format("{}, output {}", problem.where, o), expected, eight->outputs[o], {});
      }
    }
  }
}

TEST_CASE("gpu op: the loss scale multiplies the gradients of a router's losses and not their values") {
  int cases = 0;
  for (const GpuCase& test : ExpertCases()) {
    const graph::OpDef* op = test.base.op;
    const bool gradient = op == &ops::kBalanceLossGrad || op == &ops::kRouterZLossGrad;
    if (!gradient && op != &ops::kBalanceLoss && op != &ops::kRouterZLoss) continue;
    ++cases;
    Problem problem;
    problem.where = fmt::format("{} ({}) with a loss scale of 8", op->name, test.base.label);
    problem.kernel = std::string(op->name);
    problem.op = op;
    problem.attributes = test.base.attributes;
    problem.inputs = InputsOf(test, DType::kF32, &problem.input_dtypes);
    std::vector<graph::TensorType> types;
    for (size_t i = 0; i < problem.inputs.size(); ++i)
      types.push_back({problem.inputs[i].type().shape, problem.input_dtypes[i]});
    const auto outputs = op->infer(types, problem.attributes);
    REQUIRE(outputs.ok());
    problem.outputs.push_back(Output::Whole(outputs->front()));
    const absl::StatusOr<Outcome> one = Launch(problem);
    problem.loss_scale = 8;
    const absl::StatusOr<Outcome> eight = Launch(problem);
    REQUIRE_MESSAGE(one.ok(), Message(one.status()));
    REQUIRE_MESSAGE(eight.ok(), Message(eight.status()));
    Tensor expected = one->outputs[0];
    for (std::int64_t i = 0; gradient && i < expected.elements(); ++i) expected.Set(i, 8 * expected.Get(i));
    Compare(problem.where, expected, eight->outputs[0], {});
  }
  CHECK(cases > 0);
}

}  // namespace engine::gpu_test
