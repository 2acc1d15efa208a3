// Exchange between GPUs of one host by their copy engines: each rank pushes what another needs straight into
// that rank's memory, which it has mapped, and flags say when (peer_flags.h). It takes no SMs, so it runs at
// full speed beside computation. Conversions (Instruction::push) and transfers of the pipeline
// (Transfer::push) that the plan has marked go this way; all else, and ranks that do not reach each other's
// memory, go by NCCL.
//
// A launch of a conversion: every member says that its output and its scratch may be written; pushes; says
// that it has pushed; and does the rest on its own: a sum in order of rank, or the copy of its own part.
// Of a direct sum (plan::Instruction::direct) nothing is pushed: its reader stands between the two meetings.
//
// A transfer: the receiver says that its buffer may be written; the sender pushes, and says that it has.
#pragma once

#include <array>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/backend/backend.h"
#include "engine/backend/cuda/exchange/nccl_communicator.h"
#include "engine/backend/cuda/exchange/peer_flags.h"
#include "engine/backend/cuda/exchange/push_exchange.h"
#include "engine/backend/cuda/exchange/stream_progress.h"
#include "engine/backend/cuda/launch/cuda_backend.h"
#include "engine/base/store.h"

namespace engine::backend::cuda {

// A conversion as NCCL does it; `launch` is null where the group pushes.
struct NcclFallback {
  CollectiveArgs args;
  ExchangeNotes notes;
  std::unique_ptr<Launch> launch;
};

// Ranks that push to each other if all of them reach each other's memory, and all go by NCCL if not.
struct PushGroup {
  bool pushes = false;  // from Connect on
  // The streams of what is waited for at once, and of what runs behind all that follows.
  std::set<std::int32_t> awaited, detached;
  std::vector<std::unique_ptr<NcclFallback>> conversions;
  std::set<std::pair<std::int64_t, std::int32_t>> transfers;  // peers, streams
};

// Lets streams of a GPU go on that wait for flags of other ranks. From any thread, also when the communicator is gone; a thread that
// launches kernels may stand still until there is room behind those that wait.
class PushRelease {
 public:
  // `flags`: of the rank, so many bytes.
  absl::Status Open(CudaBackend* backend, std::byte* flags, std::size_t bytes);
  void Close();
  // Lets go whatever waits now; the flags are reset then, so that what waits next has to be let go again. Nothing that the GPU makes
  // counts any more (CudaBackend::Spoil). False: it is closed, or the GPU has failed.
  bool LetGo();

 private:
  std::mutex mutex_;
  CudaBackend* backend_ = nullptr;
  std::byte* flags_ = nullptr;
  std::vector<std::uint32_t> ones_;
  cudaStream_t beside_ = nullptr;  // no stream of the run
};

struct PushOptions {
  // False is wrong; for the tests that show it.
  bool ready = true;    // what a rank pushes to, or reads, is the peer's to give then
  bool release = true;  // no rank goes on before its peer has read its part of a direct sum
  OnConnecting on_connecting = nullptr;
};

class PushCommunicator final : public Communicator {
 public:
  // `backend` and `store`, which all ranks of the run share, must outlive it. NCCL is loaded (libraries.h).
  PushCommunicator(CudaBackend* backend, Store* store, std::int64_t rank, PushOptions options = {})
      : backend_(*backend),
        store_(*store),
        rank_(rank),
        options_(std::move(options)),
        nccl_(backend, store, rank, options_.on_connecting) {}
  ~PushCommunicator() override;

  // After AllocateArena. Tensors and scratch of what is pushed lie in the arena, on all members at the same
  // offsets.
  absl::StatusOr<std::unique_ptr<Launch>> Prepare(CollectiveArgs args) override;
  absl::Status PrepareTransfer(std::int64_t peer, std::int32_t stream, bool push) override;
  // Maps the peers' memory. The members of a group agree on whether all of them reach each other; NCCL, whose
  // communicators take hundreds of MB, connects only those that do not and what the plan itself gives it.
  absl::Status Connect() override;
  bool recordable() const override { return true; }

  absl::StatusOr<std::int64_t> Send(std::int64_t peer, std::int32_t channel, const std::byte* data,
                                    std::int64_t bytes, std::int32_t stream, std::int64_t there) override;
  absl::Status WaitSent(std::int64_t peer, std::int32_t channel, std::int64_t ticket) override {
    return nccl_.WaitSent(peer, channel, ticket);
  }
  absl::Status Receive(std::int64_t peer, std::int32_t channel, std::byte* data, std::int64_t bytes,
                       std::int32_t stream) override;

  std::string At() const override { return progress_.Text(); }
  absl::Status Health() const { return nccl_.Health(); }
  // After the run has failed: ends waits for other ranks, whatever becomes of the numbers, and waits so long until nothing is under way on
  // this GPU. False: something still is, and this and the backend have to stay as long as the process; or the GPU's work has failed. Of a
  // communicator that is used no more.
  bool Quieten(std::chrono::milliseconds within);
  std::shared_ptr<PushRelease> release() const { return release_; }

 private:
  bool LetAllGo();
  absl::StatusOr<std::unique_ptr<Launch>> PrepareNccl(CollectiveArgs args, const ExchangeNotes& notes);
  // Of what NCCL does on a stream.
  absl::Status Note(const StreamNote& note, std::int32_t stream) const;
  PushGroup* GroupOf(const std::vector<std::int64_t>& ranks);
  // The peer, where transfers with it are pushed, else null.
  const PushPeer* PushedPeer(std::int64_t rank) const;
  absl::Status ReachPeers();
  absl::Status MakeLocal();
  absl::StatusOr<cudaEvent_t> MakeEvent();
  absl::Status MakeFlags();
  std::string Shared() const;
  absl::Status Open(PushPeer* peer);
  absl::Status OneStreamOfNccl() const;
  absl::Status Agree(const std::vector<std::int64_t>& ranks, PushGroup* group);
  absl::Status UseNccl(const PushGroup& group);

  CudaBackend& backend_;
  Store& store_;
  const std::int64_t rank_;
  const PushOptions options_;
  NcclCommunicator nccl_;
  StreamFlags stream_flags_;
  StreamProgress progress_;
  std::byte* flags_ = nullptr;  // of this rank
  const std::shared_ptr<PushRelease> release_ = std::make_shared<PushRelease>();
  bool signals_ = false;  // whether streams can write flags and wait for them
  cudaStream_t local_ = nullptr;
  // Each launch records its events anew, on streams that run in order: a wait is for the record before it.
  std::vector<cudaEvent_t> events_;
  cudaEvent_t fork_ = nullptr;
  std::map<std::int64_t, PushPeer> peers_;                                  // by rank
  std::map<std::vector<std::int64_t>, std::unique_ptr<PushGroup>> groups_;  // by members, ascending
  // Of what the plan itself gives to NCCL behind all that follows, by members: its streams.
  std::map<std::vector<std::int64_t>, std::set<std::int32_t>> behind_by_nccl_;
  std::map<std::int64_t, const PushGroup*> transfers_;  // by peer
};

}  // namespace engine::backend::cuda
