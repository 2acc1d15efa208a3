// The mesh of ranks: WORLD_SIZE = DP · TP · PP · CP · EP, always, with rank order tp, cp, ep, dp, pp from the
// fastest-varying: tp peers are neighbours, pp peers are farthest (Megatron-LM's default order).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/graph/placement.h"
#include "engine/recipe/recipe.h"

namespace engine::plan {

using graph::Axis;

// A set of mesh axes. `kPp` is an axis here, though tensors have no placement along it.
class AxisSet {
 public:
  constexpr AxisSet() = default;
  static constexpr AxisSet Of(Axis axis) { return AxisSet(1U << static_cast<unsigned>(axis)); }
  static constexpr AxisSet Pp() { return AxisSet(16); }
  static constexpr AxisSet World() { return AxisSet(31); }
  // dp, ep and cp: the axes that all split samples or sequences, over which dense parameters are copies.
  static constexpr AxisSet Replicas() { return AxisSet(14); }

  constexpr bool Has(Axis axis) const { return ((bits_ >> static_cast<unsigned>(axis)) & 1U) != 0; }
  constexpr bool HasPp() const { return (bits_ & 16U) != 0; }
  constexpr bool empty() const { return bits_ == 0; }
  constexpr AxisSet operator|(AxisSet other) const { return AxisSet(bits_ | other.bits_); }
  constexpr bool operator==(const AxisSet& other) const = default;
  constexpr unsigned bits() const { return bits_; }
  std::string ToString() const;  // "dp+cp", "world"; "-" where empty

 private:
  constexpr explicit AxisSet(unsigned bits) : bits_(static_cast<std::uint8_t>(bits)) {}
  std::uint8_t bits_ = 0;
};

// Who takes part in a collective: the ranks along axes of the mesh, or the holders of a tied parameter.
struct Group {
  AxisSet axes;
  // Stages that hold copies of a tied parameter, ascending: their ranks with equal other coordinates take part.
  // Empty: a group of axes.
  std::vector<std::int32_t> holders = {};

  Group() = default;
  Group(AxisSet along) : axes(along) {}  // NOLINT(google-explicit-constructor): most groups are of axes
  // Of stages in any order.
  static Group OfHolders(std::vector<std::int32_t> stages);

  bool IsTie() const { return !holders.empty(); }
  bool SpansStages() const { return IsTie() || axes.HasPp(); }
  bool empty() const { return axes.empty() && holders.empty(); }
  bool operator==(const Group& other) const = default;
};

struct Coordinates {
  std::array<std::int64_t, 4> axis = {0, 0, 0, 0};  // by graph::Axis
  std::int64_t pp = 0;
};

struct Mesh {
  std::array<std::int64_t, 4> sizes = {1, 1, 1, 1};  // by graph::Axis
  std::int64_t pp = 1;

  static Mesh Of(const recipe::Parallelism& parallelism);

  std::int64_t size(Axis axis) const { return sizes[static_cast<size_t>(axis)]; }
  std::int64_t world() const { return ranks_per_stage() * pp; }
  std::int64_t ranks_per_stage() const { return sizes[0] * sizes[1] * sizes[2] * sizes[3]; }
  Coordinates CoordinatesOf(std::int64_t rank) const;
  std::int64_t RankOf(const Coordinates& coordinates) const;

  // Ranks in the group of `rank`, ascending. The stage of the rank is one of the holders of a tie.
  std::vector<std::int64_t> Group(std::int64_t rank, const plan::Group& group) const;
  std::int64_t GroupSize(const plan::Group& group) const;
  // Position of `rank` in Group(rank, group). For axes without pp it is the same on every stage.
  std::int64_t IndexInGroup(const Coordinates& coordinates, const plan::Group& group) const;
  // "dp+cp", "world"; "tie" of the first and the last stage, "tie(0, 1, 2)" of others.
  std::string NameOf(const plan::Group& group) const;
  // What tells these holders of a tied parameter from the usual ones: empty of the first and the last stage, else
  // "(0, 1, 2)".
  std::string HoldersSuffix(const std::vector<std::int32_t>& holders) const;
  // The axes of the set along which the mesh is larger than 1.
  AxisSet Active(AxisSet axes) const;
};

}  // namespace engine::plan
