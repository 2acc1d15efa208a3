// Layout: the placements of one tensor along all mesh axes, and what they mean for a rank: local shape and
// extent.
#pragma once

#include <absl/container/inlined_vector.h>

#include <string>

#include "engine/base/extent.h"
#include "engine/base/shape.h"
#include "engine/graph/dims.h"
#include "engine/graph/placement.h"
#include "engine/plan/mesh.h"

namespace engine::plan {

using graph::Placement;

// Where one axis splits one dim: into contiguous parts, but for a sequence under a causal mask along cp
// (graph::Dim::kCausalSequence).
struct Split {
  Axis axis;
  std::int8_t dim;
  graph::Dim meaning = graph::Dim::kOther;
  bool zigzag() const { return axis == Axis::kCp && meaning == graph::Dim::kCausalSequence; }
  bool operator==(const Split& other) const { return axis == other.axis && dim == other.dim; }
};

class Layout {
 public:
  Layout() = default;
  explicit Layout(const graph::Dims& dims) : dims_(dims) {}

  const graph::Dims& dims() const { return dims_; }
  Placement At(Axis axis) const {
    if (partial_.Has(axis)) {
      return Placement::P(log_sum_exp_.Has(axis) ? graph::Reduction::kLogSumExp : graph::Reduction::kSum);
    }
    for (const Split& split : splits_) {
      if (split.axis == axis) return Placement::S(split.dim);
    }
    return Placement::R();
  }

  // Replaces the placement along `axis`. False (and unchanged) where that would have to reach inside another
  // axis' split of the same dim: splits of one dim nest, and only the innermost can be taken back.
  bool Set(Axis axis, Placement placement);

  const absl::InlinedVector<Split, 3>& splits() const { return splits_; }  // of one dim: outermost first
  bool HasPartial() const { return !partial_.empty(); }
  AxisSet PartialAxes() const { return partial_; }

  // Whether every split divides its dim evenly (a zigzag split cuts into twice as many parts). Slots are not divided: how
  // many a rank has, LocalShape does not know.
  bool Divides(const Shape& shape, const Mesh& mesh) const;
  Shape LocalShape(const Shape& shape, const Mesh& mesh) const;
  Extent ExtentOf(const Shape& shape, const Mesh& mesh, const Coordinates& coordinates) const;

  bool operator==(const Layout& other) const;
  std::string ToString() const;  // "tp:S(2) dp:S(0)", "R" where replicated everywhere

 private:
  graph::Dims dims_;  // what those of the tensor mean
  absl::InlinedVector<Split, 3> splits_;
  AxisSet partial_;
  AxisSet log_sum_exp_;  // those of partial_ that are partial under log-sum-exp
};

}  // namespace engine::plan
