// Where a run stands: what a checkpoint's metadata hands from one run to the next.
#pragma once

#include <cstdint>
#include <string>

#include "engine/base/status.h"
#include "engine/checkpoint/metadata.h"

namespace engine::train {

struct Position {
  std::int64_t iteration = 0;  // done
  std::int64_t consumed_samples = 0;
  std::int64_t optimizer_steps = 0;   // as far as results are known
  std::int64_t schedule_samples = 0;  // likewise: of the iterations that were steps
  checkpoint::GuardState guard = {};  // likewise

  // Of a checkpoint. Older ones do not say how large their skipped iterations were: they count as batches of
  // now, `global_batch` samples each.
  static Position Of(const checkpoint::Metadata& metadata, std::int64_t global_batch);

  // A line of text, and back, without what the guard remembers (train/guard_notes.h) but updates that were skipped. Error: it is no such line.
  std::string ToText() const;
  static absl::StatusOr<Position> FromText(const std::string& text);
};

}  // namespace engine::train
