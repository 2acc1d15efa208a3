// What the streams of a rank are at, for the message of a run that hangs: the host enqueues far ahead, and
// what was recorded in a CUDA graph is launched as one piece. Each stream writes a word of the host's memory
// as it begins and ends an exchange, by an operation of the stream itself (peer_flags.h): no kernel, and
// nobody waits.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/backend/cuda/exchange/peer_flags.h"
#include "engine/plan/plan.h"

namespace engine::backend::cuda {

struct ExchangeNotes {
  StreamNote begun, ended;
};

class StreamProgress {
 public:
  StreamProgress() = default;
  ~StreamProgress();
  StreamProgress(const StreamProgress&) = delete;
  StreamProgress& operator=(const StreamProgress&) = delete;

  // Of an exchange that a stream (plan::Stream) runs again and again. `what`: "reduce h.3, with ranks 0, 1".
  absl::StatusOr<ExchangeNotes> Add(std::int32_t stream, std::string what);
  // A stream of the pipeline's transfers has one peer and numbered channels.
  absl::Status AddTransfers(std::int32_t stream, std::int64_t peer);
  ExchangeNotes Transfer(std::int32_t stream, std::int32_t channel) const;

  // "its GPU is in reduce h.3, with ranks 0, 1", or after which exchange each stream is; empty before the
  // first. Safe from any thread once everything is added.
  std::string Text() const;

 private:
  absl::Status Make();
  ExchangeNotes NotesOf(std::int32_t stream, std::uint32_t number) const;
  std::string NameOf(std::int32_t stream, std::uint32_t number) const;

  std::uint32_t* words_ = nullptr;  // of the host, one for each stream
  std::array<std::vector<std::string>, plan::kStreams> names_;
  std::array<std::int64_t, plan::kStreams> peers_ = {};  // of transfers
};

}  // namespace engine::backend::cuda
