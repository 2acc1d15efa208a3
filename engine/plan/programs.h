// The programs of a plan: what each is for, and how large. All share one arena, as large as the largest asks, and
// programs of one form share their segments: they differ in how many microbatches pass through these.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace engine::plan {

enum class ProgramKind : std::uint8_t { kTrain, kEvaluate, kPrefill, kDecode };

struct KindFacts {
  std::string_view name;
  // Microbatches pass backward too, so that their values wait in slots; two halves may run in turns; and the last
  // segment updates the parameters. Else they pass forward only, one at a time, and are fed and forgotten.
  bool trains = false;
  // It is a step of generation: sequences go on from what states keep of their tokens, and their logits are read.
  bool generates = false;
};

constexpr KindFacts FactsOf(ProgramKind kind) {
  constexpr KindFacts kFacts[] = {{.name = "train", .trains = true},
                                  {.name = "evaluate"},
                                  {.name = "prefill", .generates = true},
                                  {.name = "decode", .generates = true}};
  return kFacts[static_cast<std::size_t>(kind)];
}

// What passes through the model in programs of one form. Plan::forms has them; every plan has those of training and of
// evaluation, in front of others.
using FormId = std::int32_t;
inline constexpr FormId kTrainForm = 0;
inline constexpr FormId kEvaluateForm = 1;
inline constexpr FormId kFirstGenerationForm = 2;

struct Form {
  ProgramKind kind = ProgramKind::kTrain;
  // Of one microbatch, where it generates: sequences, and tokens of each. Else Plan::microbatch_samples of
  // Plan::sequence tokens.
  std::int64_t samples = 0, tokens = 0;
};

// One value for each form; one that was never set is T().
template <typename T>
class ByForm {
 public:
  T& operator[](FormId form) {
    const auto at = static_cast<std::size_t>(form);
    if (at >= values_.size()) values_.resize(at + 1);
    return values_[at];
  }
  const T& operator[](FormId form) const {
    static const T unset = {};
    const auto at = static_cast<std::size_t>(form);
    return at < values_.size() ? values_[at] : unset;
  }

 private:
  std::vector<T> values_;
};

// A program as all stages see it; its steps are StagePlan::programs, in the same order.
struct ProgramSpec {
  FormId form = kTrainForm;
  std::int64_t microbatches = 1;  // of one iteration
  // Samples of one iteration, over all ranks: microbatches × samples of a microbatch, but for those of the last ones that are empty.
  std::int64_t global_batch = 1;
};

}  // namespace engine::plan
