// What [guard] remembers beside copies of the state in memory, which have no room for a window of losses: small files in the run's folder, by rank 0.
//
//   DIR/guard/iteration_0000123.json   what it remembers after that iteration; of the newest few, up to the one that the run is at
//   DIR/guard/returns.json             how often the run has gone back to a checkpoint, in all its attempts: copies from before the last return are of
//                                      iterations that it has left, and are not gone on from (by their tag, train/memory_checkpoints.cpp)
//
// Written before the copy is begun, and not synced: a file that a host took with it when it went down is missing or torn, and then the copy does not count.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <string>

#include "engine/checkpoint/metadata.h"
#include "engine/recipe/recipe.h"

namespace engine::train {

// Whether a run with this guard judges by more than one iteration, or goes back.
bool Remembers(const recipe::Guard& guard);

class GuardNotes {
 public:
  // Of the run in folder `out`.
  explicit GuardNotes(const std::string& out);

  absl::Status Write(std::int64_t iteration, const checkpoint::GuardState& state) const;
  // As checkpoint::ParseGuard takes it. NotFound, or DataLoss where it is none.
  absl::StatusOr<std::string> Read(std::int64_t iteration) const;
  // 0 where nothing is known of any.
  std::int64_t Returns() const;
  // The run has gone back, for the `returns`-th time: what was written of iterations before is removed.
  absl::Status WentBack(std::int64_t returns) const;

 private:
  std::string folder_;
};

}  // namespace engine::train
