#include "engine/plan/mesh.h"

#include "engine/base/status.h"

namespace engine::plan {

std::string AxisSet::ToString() const {
  if (empty()) return "-";
  if (*this == World()) return "world";
  if (IsTie()) return "tie";
  std::string text;
  // Slowest-varying first, as layouts are usually said: dp, then what is inside.
  for (Axis axis : {Axis::kDp, Axis::kEp, Axis::kCp, Axis::kTp}) {
    if (Has(axis))
      text += (text.empty() ? "" : "+") + std::string(graph::kAxisNames[static_cast<size_t>(axis)]);
  }
  if (HasPp()) text += text.empty() ? "pp" : "+pp";
  return text;
}

Mesh Mesh::Of(const recipe::Parallelism& parallelism) {
  return {.sizes = {parallelism.tp, parallelism.cp, parallelism.ep, parallelism.dp}, .pp = parallelism.pp};
}

Coordinates Mesh::CoordinatesOf(std::int64_t rank) const {
  Coordinates coordinates;
  for (size_t i = 0; i < sizes.size(); ++i) {
    coordinates.axis[i] = rank % sizes[i];
    rank /= sizes[i];
  }
  coordinates.pp = rank;
  return coordinates;
}

std::int64_t Mesh::RankOf(const Coordinates& coordinates) const {
  std::int64_t rank = coordinates.pp;
  for (size_t i = sizes.size(); i-- > 0;) rank = rank * sizes[i] + coordinates.axis[i];
  return rank;
}

std::vector<std::int64_t> Mesh::Group(std::int64_t rank, AxisSet axes) const {
  Coordinates at = CoordinatesOf(rank);
  if (axes.IsTie()) {
    ENGINE_CHECK(at.pp == 0 || at.pp == pp - 1, "rank {} holds no tied tensor", rank);
    at.pp = 0;
    const std::int64_t first = RankOf(at);
    at.pp = pp - 1;
    return {first, RankOf(at)};
  }
  std::vector<std::int64_t> group;
  const auto visit = [&](auto&& self, int level) -> void {
    if (level < 0) {
      group.push_back(RankOf(at));
      return;
    }
    const bool is_pp = level == 4;
    const bool varies = is_pp ? axes.HasPp() : axes.Has(static_cast<Axis>(level));
    std::int64_t& coordinate = is_pp ? at.pp : at.axis[static_cast<size_t>(level)];
    if (!varies) return self(self, level - 1);
    const std::int64_t saved = coordinate;
    const std::int64_t size = is_pp ? pp : sizes[static_cast<size_t>(level)];
    for (coordinate = 0; coordinate < size; ++coordinate) self(self, level - 1);
    coordinate = saved;
  };
  visit(visit, 4);
  return group;
}

std::int64_t Mesh::GroupSize(AxisSet axes) const {
  if (axes.IsTie()) return 2;
  std::int64_t size = axes.HasPp() ? pp : 1;
  for (Axis axis : graph::kAxes) {
    if (axes.Has(axis)) size *= this->size(axis);
  }
  return size;
}

std::int64_t Mesh::IndexInGroup(const Coordinates& coordinates, AxisSet axes) const {
  if (axes.IsTie()) return coordinates.pp == 0 ? 0 : 1;
  std::int64_t index = axes.HasPp() ? coordinates.pp : 0;
  for (size_t i = sizes.size(); i-- > 0;) {
    if (axes.Has(static_cast<Axis>(i))) index = index * sizes[i] + coordinates.axis[i];
  }
  return index;
}

AxisSet Mesh::Active(AxisSet axes) const {
  AxisSet active;
  for (Axis axis : graph::kAxes) {
    if (axes.Has(axis) && size(axis) > 1) active = active | AxisSet::Of(axis);
  }
  if (axes.HasPp() && pp > 1) active = active | AxisSet::Pp();
  return active;
}

}  // namespace engine::plan
