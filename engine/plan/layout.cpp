#include "engine/plan/layout.h"

#include <algorithm>

#include "engine/base/status.h"

namespace engine::plan {
namespace {

// Nesting of splits of one dim, outermost first. Samples: dp, ep; a sequence: cp, then tp (sequence
// parallelism cuts what cp left); heads and other dims: tp (weights are cut by tp), then cp; the slots of experts: ep
// innermost, which exchanges them for whole experts.
int NestingRank(const Split& split) {
  switch (split.axis) {
    case Axis::kDp:
      return 0;
    case Axis::kEp:
      return split.meaning == graph::Dim::kSlot ? 5 : 1;
    case Axis::kCp:
      return graph::IsSequence(split.meaning) ? 2 : 4;
    case Axis::kTp:
      return 3;
  }
  return 6;
}

AxisSet Without(AxisSet set, Axis axis) {
  AxisSet result;
  for (Axis other : graph::kAxes) {
    if (other != axis && set.Has(other)) result = result | AxisSet::Of(other);
  }
  return result;
}

// Local indices [offset, offset + length) of a dim extent.
void AppendSlice(const DimExtent& from, std::int64_t offset, std::int64_t length, DimExtent* to) {
  for (const Interval& interval : from) {
    const std::int64_t begin = std::max<std::int64_t>(offset, 0);
    const std::int64_t end = std::min(offset + length, interval.length);
    if (begin < end) {
      const Interval piece{interval.start + begin, end - begin};
      if (!to->empty() && to->back().start + to->back().length == piece.start) {
        to->back().length += piece.length;
      } else {
        to->push_back(piece);
      }
    }
    offset -= interval.length;
  }
}

}  // namespace

bool Layout::Set(Axis axis, Placement placement) {
  for (auto it = splits_.begin(); it != splits_.end(); ++it) {
    if (it->axis != axis) continue;
    if (placement == Placement::S(it->dim)) return true;
    const bool innermost =
        std::none_of(it + 1, splits_.end(), [&](const Split& inner) { return inner.dim == it->dim; });
    if (!innermost) return false;
    splits_.erase(it);
    break;
  }
  partial_ = Without(partial_, axis);
  log_sum_exp_ = Without(log_sum_exp_, axis);
  if (placement.partial()) {
    partial_ = partial_ | AxisSet::Of(axis);
    if (placement.reduction == graph::Reduction::kLogSumExp) log_sum_exp_ = log_sum_exp_ | AxisSet::Of(axis);
  }
  if (placement.split()) {
    const Split split{axis, placement.dim, dims_[placement.dim]};
    const auto inner = std::find_if(splits_.begin(), splits_.end(), [&](const Split& other) {
      return NestingRank(other) > NestingRank(split) && other.dim == split.dim;
    });
    splits_.insert(inner, split);
  }
  return true;
}

bool Layout::Divides(const Shape& shape, const Mesh& mesh) const {
  Shape local = shape;
  for (const Split& split : splits_) {
    const std::int64_t parts = mesh.size(split.axis) * (split.zigzag() ? 2 : 1);
    if (mesh.size(split.axis) == 1 || split.meaning == graph::Dim::kSlot) continue;
    if (local[split.dim] % parts != 0) return false;
    local[split.dim] /= mesh.size(split.axis);
  }
  return true;
}

Shape Layout::LocalShape(const Shape& shape, const Mesh& mesh) const {
  Shape local = shape;
  for (const Split& split : splits_) local[split.dim] /= mesh.size(split.axis);
  return local;
}

Extent Layout::ExtentOf(const Shape& shape, const Mesh& mesh, const Coordinates& coordinates) const {
  Extent extent = Extent::Whole(shape);
  for (const Split& split : splits_) {
    const std::int64_t parts = mesh.size(split.axis);
    if (parts == 1) continue;
    const std::int64_t at = coordinates.axis[static_cast<size_t>(split.axis)];
    const DimExtent whole = extent.dims[static_cast<size_t>(split.dim)];
    const std::int64_t length = Length(whole);
    DimExtent part;
    if (split.zigzag()) {
      const std::int64_t chunk = length / (2 * parts);
      AppendSlice(whole, at * chunk, chunk, &part);
      AppendSlice(whole, (2 * parts - 1 - at) * chunk, chunk, &part);
    } else {
      AppendSlice(whole, at * (length / parts), length / parts, &part);
    }
    extent.dims[static_cast<size_t>(split.dim)] = part;
  }
  return extent;
}

bool Layout::operator==(const Layout& other) const {
  if (!(partial_ == other.partial_ && log_sum_exp_ == other.log_sum_exp_)) return false;
  if (splits_ == other.splits_) return true;
  return std::all_of(graph::kAxes.begin(), graph::kAxes.end(),
                     [&](Axis axis) { return At(axis) == other.At(axis); });
}

std::string Layout::ToString() const {
  std::string text;
  for (Axis axis : graph::kAxes) {
    const Placement placement = At(axis);
    if (placement.replicated()) continue;
    text += fmt::format("{}{}:{}", text.empty() ? "" : " ", graph::kAxisNames[static_cast<size_t>(axis)],
                        placement.ToString());
  }
  return text.empty() ? "R" : text;
}

}  // namespace engine::plan
