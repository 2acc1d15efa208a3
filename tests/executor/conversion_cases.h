// Random conversions between placements, for the tests of every communicator.
#pragma once

#include <cstdint>
#include <random>
#include <utility>

#include "engine/backend/backend.h"
#include "engine/plan/layout.h"

namespace engine::backend::cpu {

using graph::Axis;
using graph::Reduction;
using plan::AxisSet;
using plan::Collective;
using plan::Layout;
using plan::Mesh;
using plan::Placement;

using Random = std::mt19937_64;

inline std::int64_t Draw(Random& random, std::int64_t from, std::int64_t to) {
  return std::uniform_int_distribution<std::int64_t>(from, to)(random);
}

// One conversion of a tensor along one axis, on all ranks of a mesh.
struct Case {
  Mesh mesh;
  Shape shape;
  Axis axis = Axis::kTp;
  Collective collective = Collective::kAllReduce;
  Reduction reduction = Reduction::kSum;
  Layout from, to;
};

// The two placements along the axis that make a collective.
inline std::pair<Placement, Placement> PlacementsOf(Collective collective, Reduction reduction, int a,
                                                    int b) {
  switch (collective) {
    case Collective::kAllReduce:
      return {Placement::P(reduction), Placement::R()};
    case Collective::kReduceScatter:
      return {Placement::P(reduction), Placement::S(a)};
    case Collective::kAllGather:
      return {Placement::S(a), Placement::R()};
    case Collective::kAllToAll:
      return {Placement::S(a), Placement::S(b)};
    default:
      return {Placement::R(), Placement::S(a)};
  }
}

// Splits of one dim nest, and one collective reaches the innermost only.
inline bool Exchangeable(const Case& c, Placement before, Placement after) {
  Layout forth = c.from;
  Layout back = c.to;
  return forth.Set(c.axis, after) && back.Set(c.axis, before) && forth.splits() == c.to.splits() &&
         back.splits() == c.from.splits();
}

// A case of at most that many ranks that some random splits along the other axes allow, zigzag ones of the
// sequence (cp, dim 1) among them.
inline Case DrawCase(Collective collective, Random& random, std::int64_t ranks = 12) {
  for (;;) {
    Case c;
    for (std::int64_t& size : c.mesh.sizes) size = Draw(random, 1, 3) == 3 ? 3 : Draw(random, 1, 2);
    c.axis = graph::kAxes[static_cast<size_t>(Draw(random, 0, 3))];
    if (c.mesh.size(c.axis) == 1 || c.mesh.world() > ranks) continue;
    c.shape = {Draw(random, 1, 2) * 6, 12 * Draw(random, 1, 2), Draw(random, 1, 3) * 2, 6};
    c.collective = collective;
    const Layout whole({graph::Dim::kSample, graph::Dim::kCausalSequence, graph::Dim::kHead});
    c.from = whole;
    const bool reduces = collective == Collective::kAllReduce || collective == Collective::kReduceScatter;
    if (reduces && Draw(random, 0, 2) == 0) c.reduction = Reduction::kLogSumExp;
    const auto [before, after] = PlacementsOf(collective, c.reduction, static_cast<int>(Draw(random, 0, 3)),
                                              static_cast<int>(Draw(random, 0, 3)));
    if (before == after) continue;
    for (Axis other : graph::kAxes) {
      if (other == c.axis || Draw(random, 0, 1) == 0) continue;
      const Placement split = Placement::S(static_cast<int>(Draw(random, 0, 3)));
      c.from.Set(other, split);
    }
    c.to = c.from;
    if (!c.from.Set(c.axis, before) || !c.to.Set(c.axis, after) || !Exchangeable(c, before, after)) continue;
    if (!c.from.Divides(c.shape, c.mesh) || !c.to.Divides(c.shape, c.mesh)) continue;
    return c;
  }
}

// One rank's end of it; the shapes, extents and sizes of its tensors are filled in.
inline CollectiveArgs ArgsOf(const Case& c, const plan::Instruction& instruction, std::int64_t rank) {
  const plan::Coordinates at = c.mesh.CoordinatesOf(rank);
  const auto view = [&](const Layout& layout) {
    TensorView tensor;
    tensor.shape = layout.LocalShape(c.shape, c.mesh);
    tensor.logical = c.shape;
    tensor.extent = layout.ExtentOf(c.shape, c.mesh, at);
    return tensor;
  };
  CollectiveArgs args;
  args.instruction = &instruction;
  args.group = c.mesh.Group(rank, instruction.group());
  args.index = c.mesh.IndexInGroup(at, instruction.group());
  args.input = view(c.from);
  args.output = view(c.to);
  for (std::int64_t member : args.group) {
    const plan::Coordinates there = c.mesh.CoordinatesOf(member);
    args.member_inputs.push_back(c.from.ExtentOf(c.shape, c.mesh, there));
    args.member_outputs.push_back(c.to.ExtentOf(c.shape, c.mesh, there));
  }
  return args;
}

// The exchange of a flat buffer.
inline plan::Instruction FlatOf(Collective collective, Reduction reduction = Reduction::kSum) {
  plan::BucketExchange exchange;
  exchange.collective = collective;
  exchange.reduction = reduction;
  plan::Instruction instruction;
  instruction.what = exchange;
  return instruction;
}

inline plan::Instruction InstructionOf(const Case& c) {
  plan::Instruction instruction;
  plan::Conversion conversion;
  conversion.collective = c.collective;
  conversion.reduction = c.reduction;
  conversion.axis = c.axis;
  instruction.what = conversion;
  return instruction;
}

}  // namespace engine::backend::cpu
