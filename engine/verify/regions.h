// The map of a stage's arena that the verifier draws anew: which bytes outlive a segment, and whose they are.
#pragma once

#include <absl/container/flat_hash_map.h>

#include <cstdint>
#include <string>
#include <vector>

#include "engine/verify/text.h"

namespace engine::verify {

struct Region {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::string name;
};

// Bytes that a program holds from step to step, sorted. Parameters and what belongs to them, scalars,
// control; slots (training) or fed inputs (evaluation); pipeline buffers outside of slots.
class Regions {
 public:
  // An error if regions overlap, or reach outside of the arena.
  static absl::StatusOr<Regions> Of(const plan::Plan& plan, ProgramId id);

  // A region that shares bytes with [begin, end), or null.
  const Region* Overlapping(std::int64_t begin, std::int64_t end) const;

 private:
  std::vector<Region> regions_;
};

// Where the program's steps send a transfer's value from, and receive it to; by transfer.
struct PipelineBuffers {
  absl::flat_hash_map<std::int32_t, plan::BufferRef> send;
  absl::flat_hash_map<std::int32_t, plan::BufferRef> receive;
};

// An error if a transfer has more than one place.
absl::StatusOr<PipelineBuffers> PipelineBuffersOf(const plan::Plan& plan, ProgramId id);

}  // namespace engine::verify
