// Products of experts in FP8, and quantising their rows, against float64 on the numbers that the operands hold; and a small
// model with experts beside bf16.
#include <doctest/doctest.h>

#include <cmath>
#include <numeric>

#include "engine/graph/rows.h"
#include "engine/ops/ops.h"
#include "tests/gpu/fp8_testing.h"
#include "tests/gpu/world.h"
#include "tests/train/text_testing.h"

namespace engine::gpu_test {
namespace {

constexpr float kScaleA = 100.0F;
constexpr float kScaleB = 230.0F;
const double kUnit = static_cast<double>(1.0F / kScaleA) * static_cast<double>(1.0F / kScaleB);

// Rows of experts (graph/rows.h): of each so many, and so many in all that a buffer has room for.
struct Rows {
  std::vector<std::int64_t> loads;
  std::int64_t behind = graph::kRowAlignment;  // the last group

  static std::int64_t FilledUp(std::int64_t rows) {
    return (rows + graph::kRowAlignment - 1) / graph::kRowAlignment * graph::kRowAlignment;
  }
  std::int64_t experts() const { return static_cast<std::int64_t>(loads.size()); }
  std::int64_t first(size_t expert) const {
    std::int64_t row = 0;
    for (size_t e = 0; e < expert; ++e) row += FilledUp(loads[e]);
    return row;
  }
  std::int64_t end() const { return first(loads.size()); }
  std::int64_t bound() const { return end() + behind; }

  Tensor Groups() const {
    Tensor groups({{experts(), 2}, DType::kI32});
    for (size_t e = 0; e < loads.size(); ++e) {
      groups.Set(static_cast<std::int64_t>(2 * e), static_cast<double>(first(e)));
      groups.Set(static_cast<std::int64_t>(2 * e + 1), static_cast<double>(loads[e]));
    }
    return groups;
  }
  // Rows that fill up a group become zeros, as they are in a run; those behind the last group NaN, as nothing reads them.
  void FillUnused(Tensor* rows) const {
    const std::int64_t width = rows->elements() / bound();
    const auto fill = [&](std::int64_t from, std::int64_t to, double value) {
      for (std::int64_t i = from * width; i < to * width; ++i) rows->Set(i, value);
    };
    for (size_t e = 0; e < loads.size(); ++e) fill(first(e) + loads[e], first(e + 1), 0);
    fill(end(), bound(), NAN);
  }
};

// What is [rows, columns] as it lies transposed, with the dims that it had.
Tensor Transposed(const Tensor& x, std::int64_t rows) {
  const std::int64_t columns = x.elements() / rows;
  Tensor transposed = x;
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < columns; ++c) transposed.Set(c * rows + r, x.Get(r * columns + c));
  }
  return transposed;
}

struct Grouped {
  const graph::OpDef* op;
  Rows rows;
  std::int64_t out = 0, in = 0;
  DType a = DType::kE4M3, d = DType::kBF16;
  bool adds = false;

  std::string where() const {
    return fmt::format("{} of {} experts, {} rows, {} out of {}, {} to {}{}", op->name, rows.experts(),
                       rows.end(), out, in, Name(a), Name(d), adds ? ", added" : "");
  }
};

// A result's element, and the sum of its terms' magnitudes.
struct Sum {
  double value = 0, magnitude = 0;
  void Add(double term) {
    value += term;
    magnitude += std::fabs(term);
  }
};

// Calls set(element of d, its sum, number of terms) for each that is written.
template <typename Set>
void ForEachSum(const Grouped& of, const Tensor& a, const Tensor& b, const Set& set) {
  for (size_t e = 0; e < of.rows.loads.size(); ++e) {
    const auto expert = static_cast<std::int64_t>(e);
    const std::int64_t first = of.rows.first(e);
    const std::int64_t last = of.op == &ops::kGroupedLinearWgradFp8 ? first : of.rows.first(e + 1);
    for (std::int64_t r = first; r < last; ++r) {
      const bool forward = of.op == &ops::kGroupedLinearFp8;
      for (std::int64_t j = 0; j < (forward ? of.out : of.in); ++j) {
        Sum sum;
        for (std::int64_t k = 0; k < (forward ? of.in : of.out); ++k) {
          const std::int64_t w =
              forward ? (expert * of.out + j) * of.in + k : (expert * of.out + k) * of.in + j;
          sum.Add(a.Get(r * (forward ? of.in : of.out) + k) * b.Get(w));
        }
        set(r * (forward ? of.out : of.in) + j, sum, forward ? of.in : of.out);
      }
    }
    if (of.op != &ops::kGroupedLinearWgradFp8) continue;
    for (std::int64_t o = 0; o < of.out; ++o) {
      for (std::int64_t i = 0; i < of.in; ++i) {
        Sum sum;
        for (std::int64_t r = first; r < first + of.rows.loads[e]; ++r)
          sum.Add(a.Get(r * of.out + o) * b.Get(r * of.in + i));
        set((expert * of.out + o) * of.in + i, sum, of.rows.loads[e]);
      }
    }
  }
}

// The bound is that of dense products (fp8_product_test.cpp).
void CheckGrouped(const Grouped& of) {
  const bool forward = of.op == &ops::kGroupedLinearFp8;
  const bool weights = of.op == &ops::kGroupedLinearWgradFp8;
  const std::int64_t bound = of.rows.bound();
  const Shape matrices = {of.rows.experts(), of.out, of.in};
  Tensor a = Stored({bound, forward ? of.in : of.out}, of.a, 0, kScaleA);
  Tensor b = Stored(weights ? Shape{bound, of.in} : matrices, DType::kE4M3, 1, kScaleB);
  of.rows.FillUnused(&a);
  if (weights) of.rows.FillUnused(&b);

  Problem problem;
  problem.where = of.where();
  problem.kernel = std::string(of.op->name);
  problem.op = of.op;
  problem.attributes = {{"in_dims", kOne}};
  problem.inputs = {weights ? Transposed(a, bound) : a,
                    forward ? b : Transposed(b, weights ? bound : of.rows.experts() * of.out),
                    State(of.a, kScaleA), State(DType::kE4M3, kScaleB), of.rows.Groups()};
  problem.input_dtypes = {of.a, DType::kE4M3, DType::kF32, DType::kF32, DType::kI32};
  const Shape shape = weights ? matrices : Shape{bound, forward ? of.out : of.in};
  problem.outputs = {Output::Whole({shape, of.d})};
  problem.accumulate = of.adds ? 1 : 0;

  Outcome outcome = MustLaunch(problem);
  Tensor& actual = outcome.outputs[0];
  Tensor expected = Zeros(shape);
  double allowed = 0;
  double largest = 0;
  std::vector<bool> written(static_cast<size_t>(expected.elements()), false);
  ForEachSum(of, a, b, [&](std::int64_t i, const Sum& sum, std::int64_t terms) {
    const double steps = std::sqrt(static_cast<double>(terms) / 32 + 1);
    allowed = std::max(allowed, 4 * 0x1p-13 * steps * sum.magnitude * kUnit);
    largest = std::max(largest, std::fabs(sum.value * kUnit));
    expected.Set(i, sum.value * kUnit + (of.adds ? Before(i) : 0.0));
    written[static_cast<size_t>(i)] = true;
  });
  std::int64_t touched = 0;
  for (std::int64_t i = 0; i < expected.elements(); ++i) {
    if (written[static_cast<size_t>(i)]) continue;
    touched += std::isnan(actual.Get(i)) ? 0 : 1;  // as it was
    actual.Set(i, 0);
  }
  CHECK_MESSAGE(touched == 0, fmt::format("{}: {} elements behind the last group", problem.where, touched));
  const double before_adding = of.adds && of.d != DType::kF32 ? UnitRoundoff(of.d) * largest : 0.0;
  Compare(problem.where, expected, actual, {1.01 * UnitRoundoff(of.d), allowed + before_adding});
}

// Groups with one row, with none, that end with a tile and one row behind it; then enough of them for clusters of two blocks.
const std::vector<Rows>& Loads() {
  static const std::vector<Rows> loads = {{{37}}, {{0, 130, 1, 0, 128, 61}}, {{257, 0, 640}, 0}, {{0, 0}}};
  return loads;
}
struct RowSizes {
  std::int64_t out, in;
};
// One piece, tails of tiles and of blocks, several tiles of both and more blocks than a ring has.
const std::vector<RowSizes> kRowSizes = {{16, 16}, {48, 80}, {272, 144}, {288, 528}};

// Rows of experts, quantised: what is behind the last group is neither read nor written.
void CheckQuantisedRows(const Rows& rows, std::int64_t columns, DType format, bool current) {
  Quantisation of{.op = current ? &ops::kQuantizeRowsCurrent : &ops::kQuantizeRows,
                  .format = format,
                  .rows = rows.bound(),
                  .columns = columns};
  Tensor x = Wide({of.rows, columns}, of.narrow);
  rows.FillUnused(&x);
  Tensor of_groups({{rows.end(), columns}, DType::kF64});
  double largest = 0;
  for (std::int64_t i = 0; i < of_groups.elements(); ++i) {
    of_groups.Set(i, x.Get(i));
    largest = std::max(largest, std::fabs(x.Get(i)));
  }
  if (current)
    of.scale =
        largest > 0 ? (format == DType::kE4M3 ? 448.0F : 57344.0F) / static_cast<float>(largest) : 1.0F;
  Problem problem = Make(of, {x});
  problem.inputs.insert(problem.inputs.begin() + 1, rows.Groups());
  problem.input_dtypes.insert(problem.input_dtypes.begin() + 1, DType::kI32);
  problem.state = current ? -1 : 2;
  AddQuantised(of, &problem);
  if (current) {
    problem.inputs.pop_back();
    problem.input_dtypes.pop_back();
    problem.outputs.push_back(Output::Whole({{8}, DType::kF32}));
  }
  const Outcome outcome = MustLaunch(problem);
  const Wanted wanted(of_groups);
  const std::vector<std::byte>& q = outcome.bytes[0];
  const std::vector<std::byte>& qt = outcome.bytes[1];
  CheckQuantised(problem.where, wanted, of.narrow, format, of.scale,
                 {q.begin(), q.begin() + static_cast<std::ptrdiff_t>(rows.end() * columns)});
  constexpr std::byte kUntouched{0xFF};
  std::int64_t wrong = 0;
  for (std::int64_t r = 0; r < of.rows; ++r) {
    for (std::int64_t c = 0; c < columns; ++c) {
      const std::byte stored = q[static_cast<size_t>(r * columns + c)];
      wrong += stored == qt[static_cast<size_t>(c * of.rows + r)] ? 0 : 1;
      wrong += r < rows.end() || stored == kUntouched ? 0 : 1;
    }
  }
  CHECK_MESSAGE(wrong == 0, fmt::format("{}: {} elements", problem.where, wrong));
  if (current) {
    CHECK(outcome.outputs[2].Get(kFp8Scale) == of.scale);
    CHECK(outcome.outputs[2].Get(kFp8Format) == (format == DType::kE5M2 ? 1 : 0));
  } else {
    CheckState(problem.where, wanted, of.narrow, problem.inputs.back(), outcome.state);
  }
}

}  // namespace

TEST_CASE("gpu fp8: quantize_rows") {
  for (const Rows& rows : Loads()) {
    for (const std::int64_t columns : {std::int64_t{16}, std::int64_t{144}, std::int64_t{1280}}) {
      for (const DType format : kFormats) {
        for (const bool current : {false, true}) CheckQuantisedRows(rows, columns, format, current);
      }
    }
  }
}

TEST_CASE("gpu fp8: grouped_linear_fp8") {
  for (const Rows& rows : Loads()) {
    for (const RowSizes& size : kRowSizes) {
      for (const DType d : kNarrow)
        CheckGrouped({.op = &ops::kGroupedLinearFp8, .rows = rows, .out = size.out, .in = size.in, .d = d});
    }
  }
}

TEST_CASE("gpu fp8: grouped_linear_dgrad_fp8") {
  for (const Rows& rows : Loads()) {
    for (const RowSizes& size : kRowSizes) {
      for (const DType d : kNarrow) {
        for (const DType gradients : kFormats) {
          CheckGrouped({.op = &ops::kGroupedLinearDgradFp8,
                        .rows = rows,
                        .out = size.out,
                        .in = size.in,
                        .a = gradients,
                        .d = d});
        }
      }
    }
  }
}

// What results in f16 is made by the portable kernel.
TEST_CASE("gpu fp8: grouped_linear_wgrad_fp8") {
  for (const Rows& rows : Loads()) {
    for (const RowSizes& size : kRowSizes) {
      for (const DType gradients : kFormats) {
        for (const bool adds : {false, true}) {
          for (const DType d : {DType::kF32, DType::kBF16, DType::kF16}) {
            CheckGrouped({.op = &ops::kGroupedLinearWgradFp8,
                          .rows = rows,
                          .out = size.out,
                          .in = size.in,
                          .a = gradients,
                          .d = d,
                          .adds = adds});
          }
        }
      }
    }
  }
}

// Enough rows an expert that two blocks share what they read of b (GroupedClusterOf), the last of them with a tile alone.
TEST_CASE("gpu fp8: grouped products of clusters") {
  const Rows rows = {{2050, 2300}};
  for (const graph::OpDef* op :
       {&ops::kGroupedLinearFp8, &ops::kGroupedLinearDgradFp8, &ops::kGroupedLinearWgradFp8})
    CheckGrouped({.op = op, .rows = rows, .out = 256, .in = 272});
}

// ---------------------------------------------------------------------------------------------------- model

namespace {

// A decoder with eight experts in each layer, of which a token goes to two.
constexpr const char* kExperts = R"(
[model]
dims = { D = 256, L = 4, H = 4, K = 2, E = 64, F = 192, X = 8, V = 300 }
inputs = { tokens = "i32[B,S]", labels = "i32[B,S]", positions = "i32[B,S]" }
rotary.rope = { dim = "E", base = 1e4 }
vocab_multiple = 64
init_std = 0.1
main = [
  { do = "embedding", as = "embedding.tokens", of = "tokens", rows = "V", width = "D" },
  { do = "stack", as = "layers", repeat = "L", layer = ["attention as attention", "moe as mlp"] },
  { do = "rms_norm", as = "final_norm" },
  { do = "linear", as = "head", out = ["V"] },
  { do = "cross_entropy", as = "loss" },
]
[block.attention]
steps = [
  { do = "rms_norm", as = "norm", of = "x" },
  { do = "linear", as = "qkv", out = ["K", "H/K+2", "E"] },
  { do = "qkv_split", as = "split", to = ["q", "k", "v"], rotary = "rope" },
  { do = "attention", as = "core", of = ["q", "k", "v"] },
  { do = "linear", as = "proj", out = ["D"], init = "branch" },
  { do = "residual", as = "residual", of = ["x", "proj"], to = "x" },
]
[block.moe]
steps = [
  { do = "rms_norm", as = "norm", of = "x" },
  { do = "route", as = "router", experts = "X", top_k = 2, aux_loss = 0.01, to = ["choice", "weight"] },
  { do = "experts", as = "experts", of = ["norm", "choice", "weight"], hidden = "F" },
  { do = "residual", as = "residual", of = ["x", "experts"], to = "x" },
]
)";

recipe::Recipe ExpertsRecipe(Sets sets) {
  sets.insert(sets.begin(),
              {"data.sequence_length=128", "optimizer.learning_rate=1e-3", "debug.router=even"});
  return train::testing::Loaded(
      model::LoadText(std::string(kExperts) + train::testing::kCommon + train::testing::kAdamW, "test.toml",
                      {.sets = sets, .root = ""}));
}

// The largest |b − a| / a.
double Off(const std::vector<double>& a, const std::vector<double>& b) {
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double error = std::fabs(b[i] - a[i]) / a[i];
    worst = std::isfinite(error) ? std::max(worst, error) : INFINITY;
  }
  return worst;
}

int Kernels(const plan::Plan& plan, std::string_view name) {
  int count = 0;
  for (const plan::Segment& segment : plan.stages[0].segments) {
    for (const plan::Instruction& instruction : segment.instructions)
      count += instruction.kernel() == name ? 1 : 0;
  }
  return count;
}

}  // namespace

// The bands are those of dense models (fp8_model_test.cpp). Choices are forced: what a router chooses between two experts that are as
// good turns with any rounding, and with it what each of them learns.
TEST_CASE("gpu fp8 model: experts in FP8 follow bf16, and two runs give the same bits") {
  constexpr int kIterations = 20;
  const Curve wide = World(ExpertsRecipe({"precision.compute=bf16"}), true).TrainAll(kIterations);
  for (const Sets& more :
       {Sets{}, Sets{"precision.fp8_gradients=e4m3"}, Sets{"precision.fp8_scaling=current"},
        Sets{"recompute.granularity=cheap"}, Sets{"recompute.granularity=full"}}) {
    Sets sets = {"precision.compute=fp8"};
    sets.insert(sets.end(), more.begin(), more.end());
    const World world(ExpertsRecipe(sets), true);
    CHECK(Kernels(world.plan(), "grouped_linear_wgrad_fp8") == 8);
    CHECK(Kernels(world.plan(), "grouped_linear_wgrad") == 0);
    const Curve curve = world.TrainAll(kIterations);
    const double loss = Off(wide.losses, curve.losses);
    const double norm = Off(wide.norms, curve.norms);
    const std::string what = fmt::format(
        "experts {}: losses within {:.3g}, gradient norms within {:.3g} of bf16's", sets.back(), loss, norm);
    MESSAGE(what);
    CHECK_MESSAGE(loss <= 0x1p-6, what);
    CHECK_MESSAGE(norm <= 0x1p-3, what);
    CHECK_MESSAGE(loss > 0, what);  // it is FP8
    const Curve again = World(ExpertsRecipe(sets), true).TrainAll(kIterations);
    CHECK_MESSAGE(again.losses == curve.losses, what);
    CHECK_MESSAGE(again.norms == curve.norms, what);
    CHECK_MESSAGE(again.weights == curve.weights, what);
  }
}

}  // namespace engine::gpu_test
