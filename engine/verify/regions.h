// The map of a stage's arena that the verifier draws anew: which bytes outlive a segment, and whose they are.
#pragma once

#include <absl/container/flat_hash_map.h>

#include <cstdint>
#include <string>
#include <utility>
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

// Where the program's steps send a transfer's value from, and receive it to; by transfer and half.
struct PipelineBuffers {
  using ByHalf = absl::flat_hash_map<std::pair<std::int32_t, plan::Half>, plan::BufferRef>;
  ByHalf send, receive;
};

// The half of a pair that a microbatch of the program is; of one that runs alone, the first.
plan::Half HalfOf(const plan::Plan& plan, ProgramId id, std::int64_t microbatch);

// An error if a transfer has more than one place for the microbatches of a half.
absl::StatusOr<PipelineBuffers> PipelineBuffersOf(const plan::Plan& plan, ProgramId id);

}  // namespace engine::verify
