// Placements: where the elements of a tensor live along one mesh axis (design: the algebra of OneFlow's SBP
// and PyTorch's DTensor).
//   R      every rank holds the whole tensor
//   S(d)   split along dim d, rank i holds the i-th part
//   P(sum) every rank holds a full-size term; the true value is their sum
//   P(lse) every rank holds a full-size term; the true value is the log of the sum of their exponentials
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace engine::graph {

// kMax: of collectives over flat buffers alone; no tensor is partial under it.
enum class Reduction : std::uint8_t { kSum, kLogSumExp, kMax };

struct Placement {
  enum class Kind : std::uint8_t { kReplicated, kSplit, kPartial };
  Kind kind = Kind::kReplicated;
  std::int8_t dim = 0;                    // of kSplit
  Reduction reduction = Reduction::kSum;  // of kPartial

  static constexpr Placement R() { return {}; }
  static constexpr Placement S(int dim) {
    return {Kind::kSplit, static_cast<std::int8_t>(dim), Reduction::kSum};
  }
  static constexpr Placement P(Reduction reduction = Reduction::kSum) {
    return {Kind::kPartial, 0, reduction};
  }

  bool replicated() const { return kind == Kind::kReplicated; }
  bool split() const { return kind == Kind::kSplit; }
  bool partial() const { return kind == Kind::kPartial; }

  bool operator==(const Placement& other) const {
    if (kind != other.kind) return false;
    if (split()) return dim == other.dim;
    return !partial() || reduction == other.reduction;
  }
  bool operator!=(const Placement& other) const { return !(*this == other); }

  std::string ToString() const {  // "R", "S(1)", "P", "P(lse)"
    if (replicated()) return "R";
    if (split()) return "S(" + std::to_string(dim) + ")";
    return reduction == Reduction::kSum ? "P" : "P(lse)";
  }
};

// The mesh axes along which placements are defined (pp cuts the graph instead), fastest-varying rank first.
enum class Axis : std::uint8_t { kTp, kCp, kEp, kDp };
inline constexpr std::array<Axis, 4> kAxes = {Axis::kTp, Axis::kCp, Axis::kEp, Axis::kDp};
inline constexpr std::array<const char*, 4> kAxisNames = {"tp", "cp", "ep", "dp"};
constexpr int Index(Axis axis) { return static_cast<int>(axis); }

}  // namespace engine::graph
