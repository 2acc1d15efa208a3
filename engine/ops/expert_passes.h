// What the ops of experts in passes (expert_passes.cpp) share with those who plan and predict them.
#pragma once

#include <cstdint>

#include "engine/graph/op.h"
#include "engine/graph/windows.h"

namespace engine::ops {

// Their inputs; the gradient's last one is dy.
enum PassInput : std::uint8_t {
  kPassX,
  kPassWeight,
  kPassChoice,
  kPassChoiceOf,
  kPassRowOf,
  kPassGroups,
  kPassW1,
  kPassW2,
  kPassDy,
};

// Kernels that a pass launches on a GPU, whether or not its window has rows: two for spread, two products, activation and
// combine; backward four for two spreads, five products with the order of the experts for two of them, activation and combine.
inline constexpr double kForwardLaunches = 6;
inline constexpr double kBackwardLaunches = 13;

// Of an instruction or node of these ops, by its inputs' types.
graph::WindowSizes WindowsOf(graph::TypeSpan inputs, const graph::Attributes& attributes);

}  // namespace engine::ops
