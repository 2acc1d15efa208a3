// One pushed conversion: what goes where, and in which order it is enqueued (push_communicator.h).
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/backend/backend.h"
#include "engine/backend/boxes.h"
#include "engine/backend/cuda/exchange/peer_flags.h"
#include "engine/backend/cuda/exchange/stream_progress.h"
#include "engine/backend/cuda/profile/scratch_exchange.h"

namespace engine::backend::cuda {

// Another rank's memory as it is mapped here; null before PushCommunicator::Connect.
struct PushPeer {
  std::int64_t rank = 0;
  std::byte* arena = nullptr;
  std::byte* flags = nullptr;
  std::int64_t arena_bytes = 0;
  bool alike = false;       // of the same stage: its arena is as long as this rank's
  std::string unreachable;  // why not
};

// Where a conversion runs, and with whom.
struct PushPlace {
  std::int64_t rank = 0;
  std::span<std::byte> arena;
  std::int32_t stream_index = 0;  // plan::Stream
  cudaStream_t stream = nullptr;
  cudaStream_t compute = nullptr;  // for what is left when everything has arrived
  // Copies within the rank, beside the pushes: CUDA makes them with kernels, which wait where products hold
  // the multiprocessors, so only what reads the result waits for them.
  cudaStream_t local = nullptr;
  cudaEvent_t fork = nullptr;    // to `local`
  cudaEvent_t copied = nullptr;  // of this exchange
  const StreamFlags* operations = nullptr;
  std::byte* const* flags = nullptr;   // of this rank
  std::vector<const PushPeer*> peers;  // the other members, in the order in which they are pushed to
  ExchangeNotes notes;
  bool ready = true, release = true;  // PushOptions
};

// A copy into another rank's arena: from this one's memory, to an offset there.
struct Push {
  const PushPeer* peer = nullptr;
  const std::byte* from = nullptr;
  std::int64_t to = 0;
  PitchedCopy copy;
};

// Counts are elements.
struct PushExchange {
  using Enqueue = absl::Status (*)(const PushExchange&);
  Enqueue enqueue = nullptr;
  // Kernels are not for the stream of the exchange: they would wait there for multiprocessors that products
  // hold, and the exchange behind them with them. Null: nothing is left.
  Enqueue finish = nullptr;
  PushPlace place;
  std::int64_t members = 1;
  std::int64_t index = 0;  // of this rank among them
  DType dtype = DType::kF32;
  std::int64_t element_bytes = 4;
  std::byte* input = nullptr;
  std::byte* output = nullptr;
  std::byte* scratch = nullptr;
  std::int64_t count = 0;          // of the output
  const std::byte* own = nullptr;  // this rank's part of a sum
  // input → output, of what this rank keeps: rows that are long meanwhile; else when the exchange is done, as
  // CUDA copies short rows so slowly that all else is slowed.
  std::vector<PitchedCopy> own_copies;
  std::vector<Box> own_boxes;
  PushLayout layout;
  std::vector<Push> pushes;
  std::vector<Push> gather;  // of an all-reduce in parts: the sum, when it is there
};

// Whether this is a conversion that is pushed: the plan wants it, and there is a sum of this dtype.
bool Pushes(const plan::Instruction& instruction, DType dtype);

// What is left to compute when the exchange is done, on the computation's stream.
absl::Status FinishPush(const PushExchange& exchange);

// Of a direct sum, whose exchange is that both ranks have made their parts: where the other's lies, and,
// behind the reader of both, that it may be overwritten. Both ranks wait there: each has read the other's by
// then.
const std::byte* OtherPart(const PushExchange& exchange);
absl::Status ReleasePart(const PushExchange& exchange);

// Errors: too little scratch; tensors outside of the arena.
absl::StatusOr<PushExchange> PlanPush(const CollectiveArgs& args, PushPlace place);

}  // namespace engine::backend::cuda
