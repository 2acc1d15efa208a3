// Every lawful signature of every op: the inputs split over two ranks by hand, the kernel run on each, the
// outputs put together again, against the kernel run on the whole.
#include <doctest/doctest.h>

#include <array>
#include <cmath>

#include "engine/base/philox.h"
#include "engine/ops/ops.h"
#include "tests/ops/cases.h"

namespace engine::ops_test {
namespace {

using graph::Placement;
constexpr int kRanks = 2;

// The logical indices of dim `dim` on one rank: halves, or (zigzag) chunks 0 and 3 against 1 and 2 of four.
DimExtent SplitOf(std::int64_t size, int rank, bool zigzag) {
  if (!zigzag) {
    const std::int64_t first = size / kRanks;
    return {rank == 0 ? Interval{0, first} : Interval{first, size - first}};
  }
  const std::int64_t chunk = size / 4;
  return rank == 0 ? DimExtent{{0, chunk}, {3 * chunk, chunk}}
                   : DimExtent{{chunk, chunk}, {2 * chunk, chunk}};
}

// An empty shard of a tensor.
Tensor ShardOf(const graph::TensorType& type, Placement placement, int rank, bool zigzag) {
  if (!placement.split()) return Tensor(type);
  graph::TensorType local = type;
  Extent extent = Extent::Whole(type.shape);
  extent.dims[static_cast<size_t>(placement.dim)] = SplitOf(type.shape[placement.dim], rank, zigzag);
  local.shape[placement.dim] = Length(extent.dims[static_cast<size_t>(placement.dim)]);
  return Tensor(local, extent, type.shape);
}

// Calls visit(local, whole) for every element of a shard: its index there and in the whole tensor.
template <typename Visit>
void ForEachElement(const graph::TensorType& whole, const Tensor& shard, const Visit& visit) {
  const backend::TensorView view = shard.View();
  for (std::int64_t i = 0; i < shard.elements(); ++i) {
    std::int64_t rest = i;
    std::int64_t index = 0;
    std::int64_t stride = 1;
    for (int dim = view.shape.rank() - 1; dim >= 0; --dim) {
      index += LogicalIndex(view.extent.dims[static_cast<size_t>(dim)], rest % view.shape[dim]) * stride;
      rest /= view.shape[dim];
      stride *= whole.shape[dim];
    }
    visit(i, index);
  }
}

// A rank's part of an input; the two terms of a partial one are a random tensor and the rest.
Tensor Scatter(const Tensor& whole, Placement placement, int rank, bool zigzag) {
  Tensor shard = ShardOf(whole.type(), placement, rank, zigzag);
  const PhiloxKey key = MakePhiloxKey(9, "partial");
  ForEachElement(whole.type(), shard, [&](std::int64_t local, std::int64_t index) {
    double value = whole.Get(index);
    if (placement.partial()) {
      const double term = UniformFromWord(PhiloxWord(key, static_cast<std::uint64_t>(index)));
      value = rank == 0 ? term : value - term;
    }
    shard.Set(local, value);
  });
  return shard;
}

// Slots count from the first that the rank has.
void CountFrom(std::int64_t first, Tensor* slots) {
  for (std::int64_t i = 0; i < slots->elements(); ++i) {
    if (slots->Get(i) >= 0) slots->Set(i, slots->Get(i) - static_cast<double>(first));
  }
}

double Combine(Placement placement, double a, double b) {
  if (placement.reduction == graph::Reduction::kSum) return a + b;
  return std::max(a, b) + std::log1p(std::exp(-std::fabs(a - b)));
}

// The tensor that the ranks' outputs stand for. For a replicated one, that of rank 0.
Tensor Gather(const graph::TensorType& type, Placement placement, const std::array<Tensor, kRanks>& shards) {
  Tensor whole(type);
  for (std::int64_t i = 0; !placement.split() && i < whole.elements(); ++i) {
    const double a = shards[0].Get(i);
    whole.Set(i, placement.partial() ? Combine(placement, a, shards[1].Get(i)) : a);
  }
  for (int rank = 0; placement.split() && rank < kRanks; ++rank) {
    const Tensor& shard = shards[static_cast<size_t>(rank)];
    ForEachElement(type, shard,
                   [&](std::int64_t local, std::int64_t index) { whole.Set(index, shard.Get(local)); });
  }
  return whole;
}

// Zigzag is how a sequence (dim 1 of every activation) is split; the signature must split nothing else.
bool CanZigzag(const Case& test, const graph::Signature& signature) {
  if (test.op == &ops::kTally) return false;  // dim 1 of the counts is the experts
  for (size_t i = 0; i < signature.inputs.size(); ++i) {
    const Placement placement = signature.inputs[i];
    if (placement.split() && (placement.dim != 1 || test.inputs[i].shape[1] % 4 != 0)) return false;
  }
  for (const Placement& placement : signature.outputs) {
    if (placement.split() && placement.dim != 1) return false;
  }
  return true;
}

void CheckSignature(const Case& test, const graph::Signature& signature, bool zigzag) {
  const Tensors inputs = MakeInputs(test, DType::kF64);
  graph::Attributes attributes = test.attributes;
  attributes.Set("f64", std::int64_t{1});
  const Tensors whole = RunOp(*test.op, attributes, inputs);
  REQUIRE(signature.inputs.size() == inputs.size());
  REQUIRE(signature.outputs.size() == whole.size());
  std::vector<std::array<Tensor, kRanks>> outputs(whole.size());
  for (int rank = 0; rank < kRanks; ++rank) {
    Tensors local;
    for (size_t i = 0; i < inputs.size(); ++i) {
      local.push_back(Scatter(inputs[i], signature.inputs[i], rank, zigzag));
      if (test.inputs[i].kind == Input::kSlots && signature.inputs[i].split())
        CountFrom(SplitOf(test.inputs[i].limit, rank, zigzag).front().start, &local.back());
    }
    Tensors results;
    for (size_t o = 0; o < whole.size(); ++o) {
      results.push_back(ShardOf(whole[o].type(), signature.outputs[o], rank, zigzag));
    }
    RunInto(test.op->name, attributes, local, &results);
    for (size_t o = 0; o < whole.size(); ++o) outputs[o][static_cast<size_t>(rank)] = results[o];
  }
  for (size_t o = 0; o < whole.size(); ++o) {
    CAPTURE(o);
    const Placement placement = signature.outputs[o];
    // Only the order of a sum differs between the two: terms · ε · the sum's magnitude.
    const double bound = 2.2e-16 * (static_cast<double>(test.terms) + 8.0) * 8.0 * Scale(whole[o]);
    CHECK(Distance(Gather(whole[o].type(), placement, outputs[o]), whole[o]) <= bound);
    if (placement.replicated()) CHECK(Distance(outputs[o][1], whole[o]) <= bound);
  }
}

TEST_CASE("every signature gives the unsharded result") {
  int splits = 0;
  for (const Case& test : AllCases()) {
    if (test.large || test.rows) continue;
    CAPTURE(std::string(test.op->name));
    CAPTURE(test.label);
    const auto types = TypesOf(MakeInputs(test, DType::kF64));
    for (const bool splits_weights : {false, true}) {
      CAPTURE(splits_weights);
      const graph::AxisRule rule = {graph::DimSet::All(),
                                    splits_weights ? graph::DimSet::All() : graph::DimSet()};
      for (const graph::Signature& signature : test.op->signatures(types, test.attributes, rule)) {
        std::string text;
        for (const Placement& placement : signature.inputs) text += placement.ToString() + " ";
        text += "->";
        for (const Placement& placement : signature.outputs) text += " " + placement.ToString();
        CAPTURE(text);
        CheckSignature(test, signature, false);
        if (CanZigzag(test, signature)) CheckSignature(test, signature, true);
        ++splits;
      }
    }
  }
  CHECK(splits > 200);
}

}  // namespace
}  // namespace engine::ops_test
