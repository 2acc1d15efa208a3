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

std::int32_t LayoutConverter::Convert(std::int32_t from, const plan::Layout& want, const graph::Node& reader,
                                      bool share) {
  std::int32_t at = from;
  if (local_->value(at).layout == want) return at;
  // Taking splits back and summing first, innermost (tp) before outer; then cutting.
  for (const bool cut : {false, true}) {
    for (graph::Axis axis : graph::kAxes) {
      const graph::Placement have = local_->value(at).layout.At(axis);
      const graph::Placement to = want.At(axis);
      if (have == to || have.replicated() != cut) continue;
      at = ConvertAxis(at, axis, to, reader, share);
    }
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
