// 200 random loads of experts through a feed-forward part, forward and backward: each op on what the GPU made of the ops
// before it. Every choice has its row, whatever the load; each result is the CPU's in float64 on the same inputs, and a
// second launch on other garbage gives the same bits.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "engine/graph/rows.h"
#include "engine/ops/ops.h"
#include "tests/gpu/cases.h"

namespace engine::gpu_test {
namespace {

// Choices of the tokens of a batch, of which a rank has the experts [first, first + here).
struct RandomLoad {
  int number = 0;
  std::int64_t samples = 1, tokens = 1, k = 1, experts = 1, first = 0, here = 1, d = 8, f = 8;
  std::vector<int> choices = {};  // −1: dropped
  DType dtype = DType::kBF16;

  std::string where() const {
    return fmt::format("load {}: {} tokens to {} of {} experts, {} here from {} on, d {}, f {}, {}", number,
                       samples * tokens, k, experts, here, first, d, f, Name(dtype));
  }
  Shape of_tokens(std::int64_t width) const { return {samples, tokens, width}; }
};

class Draws {
 public:
  int Below(std::int64_t limit) { return static_cast<int>(random_() % static_cast<std::uint64_t>(limit)); }
  double Real() { return static_cast<double>(Below(2001)) / 1000 - 1; }
  template <typename T>
  const T& Of(const std::vector<T>& values) {
    return values[static_cast<size_t>(Below(static_cast<std::int64_t>(values.size())))];
  }
  void Shuffle(std::vector<int>* values) { std::shuffle(values->begin(), values->end(), random_); }

 private:
  std::mt19937_64 random_{23};
};

// The kinds in turn: all tokens to the same experts, alike to all, none to most experts, one expert in nearly every
// choice, and alike with up to nine of ten choices dropped.
RandomLoad DrawLoad(int number, Draws* draws) {
  RandomLoad load{.number = number};
  load.samples = 1 + draws->Below(3);
  load.tokens = draws->Below(4) == 0 ? 1 + draws->Below(5) : 1 + draws->Below(260);
  load.experts = draws->Of(std::vector<std::int64_t>{1, 2, 3, 8, 17, 64});
  load.k = 1 + draws->Below(std::min<std::int64_t>(load.experts, 8));
  load.d = draws->Of(std::vector<std::int64_t>{8, 20, 64, 72, 136});
  load.f = draws->Of(std::vector<std::int64_t>{8, 24, 70, 128});
  load.here = load.experts;
  if (draws->Below(3) == 0) {
    load.here = 1 + draws->Below(load.experts);
    load.first = draws->Below(load.experts - load.here + 1);
  }
  load.dtype = number % 5 == 4 ? DType::kF32 : DType::kBF16;

  const int kind = number / 2 % 5;
  const double dropped = kind == 4 ? 0.9 * std::abs(draws->Real()) : 0.0;
  std::vector<int> all(static_cast<size_t>(load.experts));
  std::iota(all.begin(), all.end(), 0);
  draws->Shuffle(&all);
  const std::int64_t few = std::min<std::int64_t>(load.experts, load.k + draws->Below(3));
  for (std::int64_t token = 0; token < load.samples * load.tokens; ++token) {
    std::vector<int> order = all;
    if (kind == 0) order.resize(static_cast<size_t>(load.k));
    if (kind == 2) order.resize(static_cast<size_t>(few));
    draws->Shuffle(&order);
    if (kind == 3 && draws->Below(10) != 0)
      std::iter_swap(order.begin(), std::find(order.begin(), order.end(), all[0]));
    for (std::int64_t j = 0; j < load.k; ++j) {
      const bool drop = std::abs(draws->Real()) < dropped;
      load.choices.push_back(drop ? -1 : order[static_cast<size_t>(j)]);
    }
  }
  return load;
}

// Runs ops of one load. What one launch makes is the input of the next, rows that no launch writes (NaN) included.
class LoadRun {
 public:
  LoadRun(RandomLoad load, Draws* draws) : load_(std::move(load)), draws_(draws) {}

  void Run() {
    const std::int64_t width = load_.d;
    const Tensor choice = Choices();
    if (load_.here == load_.experts && std::count(load_.choices.begin(), load_.choices.end(), -1) == 0)
      Launched(ops::kTally, {{"experts", load_.experts}}, {choice}, 1);
    const Tensors places = Launched(ops::kPlace, {}, {choice, Counts()}, 1);
    CheckPlaces(places);
    const Tensor &choice_of = places[0], &row_of = places[1], &groups = places[2];
    end_ = EndOf(groups);

    const graph::Attributes planes = {{"in_dims", kOne}, {"out_split", kOne}};
    const graph::Attributes one = {{"in_dims", kOne}};
    const graph::Attributes silu = {{"act", std::string("silu")}, {"gated", kOne}};
    const Tensor w1 = Drawn({load_.here, 2, load_.f, width}, load_.dtype);
    const Tensor w2 = Drawn({load_.here, width, load_.f}, load_.dtype);
    const Tensor weight = Drawn(choice.type().shape, DType::kF32);
    const std::int64_t most = load_.samples * load_.tokens;

    const Tensor x = Drawn(load_.of_tokens(width), load_.dtype);
    const Tensor rows = Launched(ops::kSpread, {}, {x, choice_of, row_of, choice}, 1)[0];
    const Tensor h = Launched(ops::kGroupedLinear, planes, {rows, w1, groups}, width)[0];
    const Tensor a = Launched(ops::kExpertActivation, silu, {h, weight, choice_of}, 1)[0];
    const Tensor made = Launched(ops::kGroupedLinear, one, {a, w2, groups}, load_.f)[0];
    Launched(ops::kCombine, {}, {made, choice_of, row_of, choice}, load_.k);

    const Tensor dy = Drawn(load_.of_tokens(width), load_.dtype);
    const Tensor d_made = Launched(ops::kSpread, {}, {dy, choice_of, row_of, choice}, 1)[0];
    const Tensor d_a = Launched(ops::kGroupedLinearDgrad, one, {d_made, w2, groups}, width)[0];
    Launched(ops::kGroupedLinearWgrad, one, {d_made, a, groups}, most);
    const Tensor d_h = Launched(ops::kExpertActivationGrad, silu, {h, weight, choice_of, d_a}, load_.f)[0];
    const Tensor d_rows = Launched(ops::kGroupedLinearDgrad, planes, {d_h, w1, groups}, 2 * load_.f)[0];
    Launched(ops::kGroupedLinearWgrad, planes, {d_h, rows, groups}, most);
    Launched(ops::kCombine, {}, {d_rows, choice_of, row_of, choice}, load_.k);
  }

 private:
  Tensor Choices() const {
    Tensor choice({load_.of_tokens(load_.k), DType::kI32});
    for (std::int64_t c = 0; c < choice.elements(); ++c) choice.Set(c, load_.choices[static_cast<size_t>(c)]);
    return choice;
  }
  // Of which place takes nothing but the experts that are here.
  Tensor Counts() const {
    Extent extent;
    extent.dims = {{Interval{0, load_.samples}}, {Interval{load_.first, load_.here}}};
    Tensor counts({{load_.samples, load_.here}, DType::kF64}, extent, {load_.samples, load_.experts});
    for (std::int64_t i = 0; i < counts.elements(); ++i) counts.Set(i, 1.0);
    return counts;
  }
  Tensor Drawn(const Shape& shape, DType dtype) {
    Tensor tensor({shape, DType::kF64});
    for (std::int64_t i = 0; i < tensor.elements(); ++i) tensor.Set(i, draws_->Real());
    return Rounded(tensor, dtype);
  }
  static std::int64_t EndOf(const Tensor& groups) {
    std::int64_t end = 0;
    for (std::int64_t e = 0; e < groups.type().shape[0]; ++e) {
      const auto rows = static_cast<std::int64_t>(groups.Get(2 * e + 1));
      const std::int64_t filled = (rows + graph::kRowAlignment - 1) / graph::kRowAlignment;
      if (rows > 0) end = static_cast<std::int64_t>(groups.Get(2 * e)) + filled * graph::kRowAlignment;
    }
    return end;
  }

  // No choice of an expert that is here is without a row of that expert's group, and no row has two.
  void CheckPlaces(const Tensors& places) const {
    std::vector<int> taken(static_cast<size_t>(places[0].elements()), 0);
    std::int64_t wrong = 0;
    for (std::int64_t c = 0; c < places[1].elements(); ++c) {
      const std::int64_t expert = load_.choices[static_cast<size_t>(c)] - load_.first;
      const auto row = static_cast<std::int64_t>(places[1].Get(c));
      const bool is_here = load_.choices[static_cast<size_t>(c)] >= 0 && expert >= 0 && expert < load_.here;
      if (!is_here) {
        wrong += row == -1 ? 0 : 1;
        continue;
      }
      const auto first = static_cast<std::int64_t>(places[2].Get(2 * expert));
      const auto rows = static_cast<std::int64_t>(places[2].Get(2 * expert + 1));
      const bool in_group = row >= first && row < first + rows;
      wrong += in_group && taken[static_cast<size_t>(row)]++ == 0 ? 0 : 1;
    }
    CHECK_MESSAGE(wrong == 0, fmt::format("{}: {} choices without a row of their own", load_.where(), wrong));
  }

  // Elements of an output of the op that it writes: of rows, those up to the end of the last group.
  std::int64_t Written(const graph::OpDef& op, size_t output, const graph::TensorType& type) const {
    const bool rows = &op == &ops::kSpread || &op == &ops::kGroupedLinear ||
                      &op == &ops::kGroupedLinearDgrad || (IsExpertActivation(op) && output % 2 == 0);
    return rows ? end_ * type.shape.elements(1, type.shape.rank()) : type.shape.elements();
  }

  // The outputs of a launch, which are checked. `terms`: of the longest sum behind an element.
  Tensors Launched(const graph::OpDef& op, const graph::Attributes& attributes, const Tensors& inputs,
                   std::int64_t terms) {
    Problem problem;
    problem.where = fmt::format("{}, {}", load_.where(), op.name);
    problem.kernel = std::string(op.name);
    problem.op = &op;
    problem.attributes = attributes;
    problem.inputs = inputs;
    std::vector<graph::TensorType> types;
    const ops_test::Case base{.op = &op, .label = "", .inputs = {}, .attributes = attributes};
    for (size_t i = 0; i < inputs.size(); ++i) {
      const bool integer = inputs[i].type().dtype == DType::kI32;
      problem.input_dtypes.push_back(integer                ? DType::kI32
                                     : IsStatistic(base, i) ? DType::kF32
                                                            : load_.dtype);
      types.push_back({inputs[i].type().shape, problem.input_dtypes[i]});
    }
    const auto outputs = op.infer(types, attributes);
    REQUIRE_MESSAGE(outputs.ok(), fmt::format("{}: {}", problem.where, Message(outputs.status())));
    for (const graph::TensorType& type : *outputs) problem.outputs.push_back(Output::Whole(type));
    if (load_.number % 2 == 1) problem.accumulate = op.accumulates & ((1U << outputs->size()) - 1U);

    const absl::StatusOr<Outcome> outcome = Launch(problem);
    REQUIRE_MESSAGE(outcome.ok(), fmt::format("{}: {}", problem.where, Message(outcome.status())));
    const Tensors expected = ops_test::RunOp(op, attributes, inputs, {.threads = 4});
    for (size_t o = 0; o < outputs->size(); ++o)
      CheckOutput(problem, o, terms, expected[o], outcome->outputs[o]);
    CheckBits(problem, *outcome);
    return outcome->outputs;
  }

  // The bound is that of ops_test.cpp: sums of `terms` in fp32 in any order, and one rounding to the output's dtype.
  void CheckOutput(const Problem& problem, size_t o, std::int64_t terms, const Tensor& expected,
                   const Tensor& actual) const {
    const graph::TensorType& type = problem.outputs[o].type;
    const std::int64_t written = Written(*problem.op, o, type);
    const bool adds = (problem.accumulate >> o & 1U) != 0;
    Tensor sum({type.shape, type.dtype == DType::kI32 ? DType::kI32 : DType::kF64});
    Tensor seen = sum;
    double scale = 1;
    for (std::int64_t i = 0; i < sum.elements(); ++i) {
      const bool counts = i < written;
      sum.Set(i, counts ? expected.Get(i) + (adds ? Before(i) : 0.0) : 0.0);
      seen.Set(i, counts ? actual.Get(i) : 0.0);
      scale = std::max(scale, std::abs(sum.Get(i)));
    }
    Tolerance tolerance;
    if (type.dtype != DType::kI32) {
      tolerance.relative = 1.01 * UnitRoundoff(type.dtype);
      tolerance.absolute = 1.2e-7 * (static_cast<double>(terms) + 16.0) * 4.0 * scale;
    }
    Compare(fmt::format("{}, output {}", problem.where, o), sum, seen, tolerance);
  }

  void CheckBits(Problem problem, const Outcome& first) const {
    problem.poison = 0x5A;
    const absl::StatusOr<Outcome> again = Launch(problem);
    REQUIRE_MESSAGE(again.ok(), fmt::format("{} again: {}", problem.where, Message(again.status())));
    for (size_t o = 0; o < problem.outputs.size(); ++o) {
      const graph::TensorType& type = problem.outputs[o].type;
      const auto bytes = static_cast<std::ptrdiff_t>(Written(*problem.op, o, type) * SizeOf(type.dtype));
      CHECK_MESSAGE(
          std::equal(first.bytes[o].begin(), first.bytes[o].begin() + bytes, again->bytes[o].begin()),
          fmt::format("{}, output {}: other bits in a second launch", problem.where, o));
    }
  }

  RandomLoad load_;
  Draws* draws_;
  std::int64_t end_ = 0;  // of the rows that are written
};

}  // namespace

TEST_CASE("gpu op: 200 random loads") {
  Draws draws;
  for (int number = 0; number < 200; ++number) LoadRun(DrawLoad(number, &draws), &draws).Run();
}

}  // namespace engine::gpu_test
