// Flags by which streams of different processes wait for each other: 32-bit words in a GPU's memory that
// peers have mapped. A flag is 0 or 1. Its sender writes 1, its owner waits for the 1 and resets it at once,
// both by operations of the streams themselves: no kernel, no SM.
//
// Fixed values need no count that the host would have to keep, so what was recorded in a CUDA graph can be
// replayed. They are safe where no sender writes a flag a second time before the owner has reset it. In an
// exchange between the same ranks on the same stream (push_communicator.h), each rank
//   writes ready to its peers; awaits and resets the peers' ready; pushes;
//   writes done to its peers; awaits and resets the peers' done;
// of a direct sum with a kernel that reads from the peer instead of pushes.
// A rank writes ready again only after it has seen the peer's done of this exchange, which the peer wrote
// after it had reset ready. It writes done again only after it has seen the peer's next ready, which the peer
// wrote after it had reset done. The same holds for kGathered, which stands after done, and a third flag
// because a peer may write it before done is reset. A transfer of the pipeline goes one way: the receiver
// writes ready and awaits done, the sender awaits ready, pushes and writes done. The receiver writes the next
// ready after it has seen done, before which the sender had reset ready; the sender writes the next done
// after it has seen that ready, before which the receiver had reset done. Both ends run a direction's
// transfers in one order, on streams of their own; a flag is that of its owner's stream. A write waits for
// all that precedes it in its stream, memory included. Groups that share two ranks share their flags: both
// ranks run what they share in the same order. Streams have flags of their own, as they are in no order.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/backend/cuda/libraries/status.h"
#include "engine/plan/plan.h"

namespace engine::backend::cuda {

enum class Flag : std::int64_t { kReady, kDone, kGathered, kKinds };

// Bytes from the beginning of a rank's flags to the one that `sender` writes.
constexpr std::int64_t OffsetOfFlag(std::int64_t sender, std::int32_t stream, Flag flag) {
  constexpr std::int64_t kApart = 64;
  constexpr auto kKinds = static_cast<std::int64_t>(Flag::kKinds);
  return ((sender * plan::kStreams + stream) * kKinds + static_cast<std::int64_t>(flag)) * kApart;
}

// A word that a stream writes for the host to read (stream_progress.h); without a word: nothing.
struct StreamNote {
  std::byte* word = nullptr;
  std::uint32_t value = 0;
};

class StreamFlags {
 public:
  // Error: a driver without these operations.
  absl::Status Load();

  // Writes 1 to each of `write`, after all that precedes in the stream. What follows in the stream starts
  // when each of `await` is 1; then they are 0. `before` and `after` all this, the notes are written.
  absl::Status Enqueue(const std::vector<std::byte*>& write, const std::vector<std::byte*>& await,
                       cudaStream_t stream, const StreamNote& before = {},
                       const StreamNote& after = {}) const;

 private:
  decltype(&cuStreamBatchMemOp) batch_ = nullptr;
};

}  // namespace engine::backend::cuda
