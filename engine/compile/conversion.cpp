#include "engine/compile/conversion.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace engine::compile {
namespace {

plan::Collective ConversionOf(graph::Placement from, graph::Placement to) {
  if (from == to) return plan::Collective::kNone;
  if (from.partial()) return to.split() ? plan::Collective::kReduceScatter : plan::Collective::kAllReduce;
  if (from.replicated()) return plan::Collective::kSlice;
  return to.split() ? plan::Collective::kAllToAll : plan::Collective::kAllGather;
}

bool Convertible(graph::Placement from, graph::Placement to) { return from == to || !to.partial(); }

bool Splits(graph::Placement placement, int dim) { return placement.split() && placement.dim == dim; }

// Whether `axis` may cut its dim now: all splits of the dim that are to lie outside of its own are there, and none that has to leave the
// dim is left.
bool MayCut(const plan::Layout& have, const plan::Layout& want, graph::Axis axis) {
  const int dim = want.At(axis).dim;
  for (const plan::Split& split : want.splits()) {  // outer ones of a dim before inner ones
    if (split.axis == axis) break;
    if (split.dim == dim && !Splits(have.At(split.axis), dim)) return false;
  }
  return std::none_of(have.splits().begin(), have.splits().end(), [&](const plan::Split& split) {
    return split.dim == dim && !Splits(want.At(split.axis), dim);
  });
}

// Whether `split` cuts within the split that `axis` has of the same dim.
bool IsWithin(const plan::Split& split, const plan::Layout& layout, graph::Axis axis) {
  const auto& splits = layout.splits();
  const auto outer = std::find(splits.begin(), splits.end(), plan::Split{axis, split.dim});
  return outer != splits.end() && std::find(outer, splits.end(), split) != splits.end();
}

// The layout with `to` along `axis`.
plan::Layout Changed(const plan::Layout& layout, graph::Axis axis, graph::Placement to) {
  plan::Layout after(layout.dims());
  for (const graph::Axis other : graph::kAxes) after.Set(other, other == axis ? to : layout.At(other));
  return after;
}

// Whether `split` cuts within the split of another axis that is to go or to come.
bool IsInTheWay(const plan::Split& split, const plan::Layout& have, const plan::Layout& want) {
  return std::any_of(graph::kAxes.begin(), graph::kAxes.end(), [&](graph::Axis axis) {
    if (axis == split.axis) return false;
    const bool is_there = Splits(have.At(axis), split.dim);
    if (is_there == Splits(want.At(axis), split.dim)) return false;
    return IsWithin(split, is_there ? have : Changed(have, axis, want.At(axis)), axis);
  });
}

}  // namespace

std::optional<double> ConversionBytes(graph::Placement from, graph::Placement to, double bytes,
                                      std::int64_t size) {
  if (!Convertible(from, to)) return std::nullopt;
  const double n = static_cast<double>(size);
  switch (ConversionOf(from, to)) {
    case plan::Collective::kNone:
    case plan::Collective::kSlice:
      return 0.0;
    case plan::Collective::kAllReduce:
      return 2.0 * bytes * (n - 1) / n;
    case plan::Collective::kReduceScatter:
    case plan::Collective::kAllGather:
      return bytes * (n - 1) / n;
    case plan::Collective::kAllToAll:
      return bytes / n * (n - 1) / n;
  }
  return std::nullopt;
}

bool CanConvert(const plan::Layout& layout, const Shape& shape, graph::Axis axis, graph::Placement to,
                const plan::Mesh& mesh) {
  if (layout.dims().HasSlots()) return false;
  plan::Layout after = layout;
  if (!after.Set(axis, to)) return false;
  if (!to.split()) return true;
  const auto& splits = after.splits();
  const auto at = std::find(splits.begin(), splits.end(), plan::Split{axis, to.dim});
  const bool inner = std::any_of(at + 1, splits.end(), [&](const plan::Split& s) { return s.dim == to.dim; });
  return !inner && after.Divides(shape, mesh);
}

std::optional<plan::Layout> WithPlacement(const plan::Layout& layout, const Shape& shape, graph::Axis axis,
                                          graph::Placement to, const plan::Mesh& mesh) {
  plan::Layout after = Changed(layout, axis, to);
  if (!after.Divides(shape, mesh)) return std::nullopt;
  return after;
}

std::optional<double> DetourBytes(const plan::Layout& layout, const Shape& shape, graph::Axis axis,
                                  graph::Placement to, double bytes, const plan::Mesh& mesh) {
  if (layout.dims().HasSlots()) return std::nullopt;
  const std::optional<plan::Layout> want = WithPlacement(layout, shape, axis, to, mesh);
  std::optional<double> all = ConversionBytes(layout.At(axis), to, bytes, mesh.size(axis));
  if (!want || !all) return std::nullopt;
  for (const plan::Split& split : layout.splits()) {
    if (split.axis == axis || !IsInTheWay(split, layout, *want)) continue;
    const auto back =
        ConversionBytes(graph::Placement::S(split.dim), graph::Placement::R(), bytes, mesh.size(split.axis));
    *all += *back;
  }
  return all;
}

LayoutConverter::Step LayoutConverter::NextStep(const plan::Layout& have, const plan::Layout& want,
                                                const Shape& shape) const {
  for (const bool cuts : {false, true}) {
    for (const graph::Axis axis : graph::kAxes) {
      const graph::Placement to = want.At(axis);
      if (have.At(axis) == to || have.At(axis).replicated() != cuts) continue;
      // A split that would have to be taken back again is not made.
      if (to.split() && !MayCut(have, want, axis)) continue;
      if (CanConvert(have, shape, axis, to, mesh_)) return {axis, to};
    }
  }
  const auto& splits = have.splits();
  for (auto split = splits.rbegin(); split != splits.rend(); ++split) {  // inner ones first
    if (IsInTheWay(*split, have, want)) return {split->axis, graph::Placement::R()};
  }
  for (auto split = splits.rbegin(); split != splits.rend(); ++split) {  // of two that are to change places
    if (have.At(split->axis) != want.At(split->axis)) return {split->axis, graph::Placement::R()};
  }
  ENGINE_CHECK(false, "{} to {}", have.ToString(), want.ToString());
  return {};
}

std::int32_t LayoutConverter::Convert(std::int32_t from, const plan::Layout& want, const graph::Node& reader,
                                      bool share) {
  constexpr int kMostSteps =
      2 * static_cast<int>(graph::kAxes.size());  // an axis takes two at most: back, and to
  std::int32_t at = from;
  for (int steps = 0; !(local_->value(at).layout == want); ++steps) {
    ENGINE_CHECK(steps < kMostSteps, "{} to {}", local_->value(at).layout.ToString(), want.ToString());
    const Step step = NextStep(local_->value(at).layout, want, local_->value(at).shape);
    at = ConvertAxis(at, step.axis, step.to, reader, share);
  }
  return at;
}

std::int32_t LayoutConverter::FindShared(const Key& key, plan::Collective collective) const {
  if (const auto it = shared_.find(key); it != shared_.end()) return it->second;
  // What the forward pass exchanged takes no more memory than what it was made of, so it is saved.
  if (collective != plan::Collective::kAllToAll) return -1;
  Key forward = key;
  std::get<graph::Phase>(forward) = graph::Phase::kForward;
  const auto before = shared_.find(forward);
  return before != shared_.end() ? before->second : -1;
}

std::int32_t LayoutConverter::ConvertAxis(std::int32_t from, graph::Axis axis, graph::Placement to,
                                          const graph::Node& reader, bool share) {
  const plan::LocalValue source = local_->value(from);  // a copy: AddValue may move the values
  plan::Layout layout = source.layout;
  const plan::Collective collective = ConversionOf(layout.At(axis), to);
  const graph::Reduction reduction = layout.At(axis).reduction;
  const bool possible = layout.Set(axis, to);
  ENGINE_CHECK(possible, "{}: {} to {} along {}", reader.name, source.layout.ToString(), to.ToString(),
               graph::kAxisNames[static_cast<size_t>(axis)]);
  Key key = {from, layout.ToString(), reader.phase, reader.unit};
  if (share) {
    if (const std::int32_t found = FindShared(key, collective); found >= 0) return found;
  }
  const std::int32_t made =
      local_->AddValue(fmt::format("{}@{}", source.name, layout.ToString()),
                       {.shape = source.shape, .dtype = source.dtype, .dims = layout.dims()}, layout,
                       graph::ValueKind::kActivation, source.source);
  local_->AddNode({.op = nullptr,
                   .collective = collective,
                   .axis = axis,
                   .reduction = reduction,
                   .name = fmt::format("{}.{}", source.name, Name(collective)),
                   .inputs = {from},
                   .outputs = {made},
                   .attributes = {},
                   .accumulate = 0,
                   .phase = reader.phase,
                   .unit = reader.unit,
                   .component = reader.component});
  if (share) shared_[std::move(key)] = made;
  return made;
}

}  // namespace engine::compile
