#include "engine/driver/row_notes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "engine/base/units.h"
#include "engine/ops/expert_passes.h"
#include "engine/ops/ops.h"
#include "engine/predict/experts.h"

namespace engine::driver {
namespace {

struct Loads {
  double even = 0, zipf = 0;  // rows of the rank that has most, the first one, with those that fill up groups
};

Loads LoadsOf(const graph::WindowSizes& sizes, std::int64_t experts) {
  constexpr auto kBlock = static_cast<double>(graph::kRowAlignment);
  const double tokens = static_cast<double>(sizes.choices) / static_cast<double>(sizes.k);
  const auto filled = [](double rows) { return std::ceil(rows / kBlock) * kBlock; };
  double all = 0;
  for (std::int64_t e = 0; e < experts; ++e) all += std::pow(static_cast<double>(e + 1), -predict::kZipf);
  Loads loads;
  for (std::int64_t e = 0; e < sizes.experts; ++e) {
    const double share = std::pow(static_cast<double>(e + 1), -predict::kZipf) / all;
    loads.even += filled(static_cast<double>(sizes.choices) / static_cast<double>(experts));
    loads.zipf += filled(tokens * std::min(1.0, static_cast<double>(sizes.k) * share));
  }
  return loads;
}

// The instruction of that op with the most scratch; null: there is none.
const plan::Instruction* Largest(const plan::Plan& plan, const graph::OpDef& op) {
  const plan::Instruction* largest = nullptr;
  for (const plan::StagePlan& stage : plan.stages) {
    for (const plan::Segment& segment : stage.segments) {
      for (const plan::Instruction& instruction : segment.instructions) {
        if (instruction.op() != &op) continue;
        if (largest == nullptr || instruction.scratch.bytes() > largest->scratch.bytes())
          largest = &instruction;
      }
    }
  }
  return largest;
}

}  // namespace

void AddRowNotes(plan::Plan* plan) {
  const plan::Instruction* const forward = Largest(*plan, ops::kExpertPasses);
  if (forward == nullptr) return;
  const plan::Instruction* const backward = Largest(*plan, ops::kExpertPassesGrad);
  std::vector<graph::TensorType> types;
  for (const plan::BufferRef& ref : forward->inputs) {
    const plan::LocalValue& value = plan->values[static_cast<size_t>(ref.value)];
    types.push_back({value.local, value.dtype, value.layout.dims()});
  }
  const graph::WindowSizes sizes = ops::WindowsOf(types, forward->attributes());
  const Loads loads = LoadsOf(sizes, forward->attributes().Int("experts"));
  const auto passes = [&](double rows) {
    const double needed = std::ceil(rows / static_cast<double>(sizes.rows));
    return std::clamp<std::int64_t>(static_cast<std::int64_t>(needed), 1, sizes.windows);
  };
  const std::int64_t bytes =
      std::max(forward->scratch.bytes(), backward == nullptr ? 0 : backward->scratch.bytes());
  plan->notes.push_back(
      fmt::format("rows of experts: {}, with buffers of {}, where the worst load is {}; passes {} at the "
                  "most, {} at even loads, {} "
                  "at Zipf loads (exponent {:g})",
                  WithThousands(sizes.rows), FormatBytes(bytes), WithThousands(sizes.bound), sizes.windows,
                  passes(loads.even), passes(loads.zipf), predict::kZipf));
}

}  // namespace engine::driver
