// Faults that are made on purpose (`engine run --fault`), to see what a run does of them: docs/faults.md. They are data
// here; train/fault_kit.h makes them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/status.h"
#include "engine/plan/plan.h"
#include "engine/recipe/recipe.h"

namespace engine::train {

struct Fault {
  enum class At : std::uint8_t {
    kData,      // before the rank reads the iteration's inputs
    kForward,   // before its first pass
    kExchange,  // before its first exchange with another rank
    kUpdate,    // after its passes, before the update
    kSave,      // in the middle of writing its part of the iteration's checkpoint
  };
  enum class Kind : std::uint8_t {
    kKill,            // SIGKILL to the rank's process
    kStop,            // SIGSTOP
    kExit,            // ends the process with `number` as its exit code, without a word
    kThrow,           // an exception that nobody catches
    kNan,             // an element of a tensor becomes NaN
    kBitflip,         // a bit of a tensor is turned
    kSlow,            // the passes take `number` times as long
    kHang,            // the rank's thread does nothing for `number` seconds, while the process lives on
    kEnospc,          // a write fails: no space left on the device
    kDropConnection,  // every TCP connection of the process is shut down
  };

  std::int64_t rank = 0;
  std::int64_t iteration = 1;  // from 1
  At at = At::kForward;
  Kind kind = Kind::kKill;
  double number = 0;        // of kExit, kSlow and kHang
  std::string tensor = {};  // a parameter's name, of kNan and kBitflip, or kReceived; empty: the rank's first
  bool of_gradient = false;  // that parameter's gradient, not its weights
  std::int64_t every = 0;    // again each so many iterations; 0: once, over all restarts of a run
  std::int64_t seed = 0;     // which element, and which bit

  bool IsOfTensor() const { return kind == Kind::kNan || kind == Kind::kBitflip; }
  // Of what the rank gets next from another one, as if it had been altered on its way.
  static constexpr const char* kReceived = "received";
  bool IsOfReceived() const { return tensor == kReceived && !of_gradient; }
  // Whether it is due in this iteration, from 1.
  bool IsDue(std::int64_t of_iteration) const {
    if (every == 0 || of_iteration < iteration) return of_iteration == iteration;
    return (of_iteration - iteration) % every == 0;
  }
};

// rank=3,iteration=40,at=forward,kind=kill[,every=N][,seed=N], in any order. Error: what is wrong, and what would be right.
absl::StatusOr<Fault> ParseFault(const std::string& text);
// As ParseFault reads it; the same text for the same fault.
std::string TextOf(const Fault& fault);

// Error: the recipe does not allow faults; there is no such rank or iteration, or nothing is exchanged or saved then; two are the
// same; a fault of what is received where it is not traced (guard.trace).
absl::Status CheckFaults(const std::vector<Fault>& faults, const recipe::Recipe& recipe);
// Error: the rank holds no such tensor.
absl::Status CheckFaultTensors(const std::vector<Fault>& faults, const plan::Plan& plan);

}  // namespace engine::train
