#include "engine/plan/mesh.h"

#include <algorithm>

#include "engine/base/status.h"

namespace engine::plan {

std::string AxisSet::ToString() const {
  if (empty()) return "-";
  if (*this == World()) return "world";
  std::string text;
  // Slowest-varying first, as layouts are usually said: dp, then what is inside.
  for (Axis axis : {Axis::kDp, Axis::kEp, Axis::kCp, Axis::kTp}) {
    if (Has(axis))
      text += (text.empty() ? "" : "+") + std::string(graph::kAxisNames[static_cast<size_t>(axis)]);
  }
  if (HasPp()) text += text.empty() ? "pp" : "+pp";
  return text;
}

Group Group::OfHolders(std::vector<std::int32_t> stages) {
  std::sort(stages.begin(), stages.end());
  Group group;
  group.holders = std::move(stages);
  return group;
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

std::vector<std::int64_t> Mesh::Group(std::int64_t rank, const plan::Group& of) const {
  Coordinates at = CoordinatesOf(rank);
  std::vector<std::int64_t> group;
  if (of.IsTie()) {
    ENGINE_CHECK(std::find(of.holders.begin(), of.holders.end(), at.pp) != of.holders.end(),
                 "rank {} holds no copy that stages {} tie", rank, NameOf(of));
    for (std::int32_t stage : of.holders) {
      at.pp = stage;
      group.push_back(RankOf(at));
    }
    return group;
  }
  const AxisSet axes = of.axes;
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

std::int64_t Mesh::GroupSize(const plan::Group& group) const {
  if (group.IsTie()) return static_cast<std::int64_t>(group.holders.size());
  std::int64_t size = group.axes.HasPp() ? pp : 1;
  for (Axis axis : graph::kAxes) {
    if (group.axes.Has(axis)) size *= this->size(axis);
  }
  return size;
}

std::int64_t Mesh::IndexInGroup(const Coordinates& coordinates, const plan::Group& group) const {
  if (group.IsTie())
    return std::find(group.holders.begin(), group.holders.end(), coordinates.pp) - group.holders.begin();
  std::int64_t index = group.axes.HasPp() ? coordinates.pp : 0;
  for (size_t i = sizes.size(); i-- > 0;) {
    if (group.axes.Has(static_cast<Axis>(i))) index = index * sizes[i] + coordinates.axis[i];
  }
  return index;
}

std::string Mesh::NameOf(const plan::Group& group) const {
  return group.IsTie() ? "tie" + HoldersSuffix(group.holders) : group.axes.ToString();
}

std::string Mesh::HoldersSuffix(const std::vector<std::int32_t>& holders) const {
  if (holders.size() == 2 && holders.front() == 0 && holders.back() == pp - 1) return "";
  return fmt::format("({})", fmt::join(holders, ", "));
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
