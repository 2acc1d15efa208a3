// What a dim of a tensor means, and what follows: along which mesh axes it may be split. Placement asks for meanings,
// never for positions.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "engine/graph/placement.h"

namespace engine::graph {

enum class Dim : std::uint8_t {
  kOther,  // never split: the elements of a head, the two halves of a gate
  kSample,
  kSequence,
  // A sequence under a causal mask, whose late queries see more keys than early ones: cp cuts it into 2·cp pieces and
  // gives rank r the pieces r and 2·cp−1−r, so that attention is even work (Megatron-LM's zigzag).
  kCausalSequence,
  kHead,
  kFeature,
  kVocab,  // classes, or rows of a table
  kExpert,
  // Places of experts' tokens. How many a rank has follows from what it holds (graph/rows.h), so that such a tensor is
  // never converted.
  kSlot,
};

constexpr bool IsSequence(Dim dim) { return dim == Dim::kSequence || dim == Dim::kCausalSequence; }

// By dim of a tensor, of 8 dims at most. Those not named are kOther.
class Dims {
 public:
  constexpr Dims() = default;
  constexpr Dims(std::initializer_list<Dim> dims) {
    for (Dim dim : dims) push_back(dim);
  }
  constexpr void push_back(Dim dim) { of_.at(count_++) = dim; }
  constexpr void Set(int dim, Dim means) {
    of_.at(static_cast<std::size_t>(dim)) = means;
    count_ = std::max(count_, static_cast<std::size_t>(dim) + 1);
  }
  constexpr Dim operator[](int dim) const { return of_.at(static_cast<std::size_t>(dim)); }
  constexpr const Dim* begin() const { return of_.data(); }
  constexpr const Dim* end() const { return of_.data() + count_; }
  // Of a tensor whose size on a rank is no part of a whole.
  constexpr bool HasSlots() const { return std::find(begin(), end(), Dim::kSlot) != end(); }
  bool operator==(const Dims& other) const { return of_ == other.of_; }

 private:
  std::array<Dim, 8> of_ = {};
  std::size_t count_ = 0;
};

class DimSet {
 public:
  constexpr DimSet() = default;
  constexpr DimSet(std::initializer_list<Dim> dims) {
    for (Dim dim : dims) bits_ |= 1U << static_cast<unsigned>(dim);
  }
  static constexpr DimSet All() {
    DimSet all;
    all.bits_ = ~0U;
    return all;
  }
  constexpr bool Has(Dim dim) const { return ((bits_ >> static_cast<unsigned>(dim)) & 1U) != 0; }

 private:
  std::uint32_t bits_ = 0;
};

// What an axis may split.
struct AxisRule {
  DimSet activations;
  DimSet
      parameters;  // and their gradients; an op whose weight has such a dim splits it where that is possible
};

inline constexpr std::array<AxisRule, 4> kAxisRules = {
    AxisRule{{Dim::kSample, Dim::kSequence, Dim::kCausalSequence, Dim::kHead, Dim::kFeature, Dim::kVocab,
              Dim::kSlot},
             {Dim::kHead, Dim::kFeature, Dim::kVocab}},                            // tp
    AxisRule{{Dim::kSequence, Dim::kCausalSequence, Dim::kHead, Dim::kSlot}, {}},  // cp
    AxisRule{{Dim::kSample, Dim::kExpert, Dim::kSlot}, {Dim::kExpert}},            // ep
    AxisRule{{Dim::kSample, Dim::kSlot}, {}},                                      // dp
};

constexpr const AxisRule& RuleOf(Axis axis) { return kAxisRules[static_cast<std::size_t>(axis)]; }

}  // namespace engine::graph
