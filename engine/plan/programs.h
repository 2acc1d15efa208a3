// The programs of a plan: what each is for, and how large. All share one arena, as large as the largest asks, and
// programs of one kind share their segments: they differ in how many microbatches pass through these.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string_view>

namespace engine::plan {

enum class ProgramKind : std::uint8_t { kTrain, kEvaluate };
inline constexpr ProgramKind kProgramKinds[] = {ProgramKind::kTrain, ProgramKind::kEvaluate};

struct KindFacts {
  std::string_view name;
  // Microbatches pass backward too, so that their values wait in slots; two halves may run in turns; and the last
  // segment updates the parameters. Else they pass forward only, one at a time, and are fed and forgotten.
  bool trains = false;
};

constexpr KindFacts FactsOf(ProgramKind kind) {
  constexpr KindFacts kFacts[] = {{.name = "train", .trains = true}, {.name = "evaluate", .trains = false}};
  return kFacts[static_cast<std::size_t>(kind)];
}

// One value for each kind.
template <typename T>
struct ByKind {
  std::array<T, std::size(kProgramKinds)> values = {};
  T& operator[](ProgramKind kind) { return values[static_cast<std::size_t>(kind)]; }
  const T& operator[](ProgramKind kind) const { return values[static_cast<std::size_t>(kind)]; }
};

// A program as all stages see it; its steps are StagePlan::programs, in the same order.
struct ProgramSpec {
  ProgramKind kind = ProgramKind::kTrain;
  std::int64_t microbatches = 1;  // of one iteration
  std::int64_t global_batch =
      1;  // samples of one iteration, over all ranks: microbatches × Plan::microbatch_samples
};

}  // namespace engine::plan
