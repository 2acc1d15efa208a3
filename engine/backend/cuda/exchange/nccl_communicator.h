// Exchange between GPUs by NCCL: one communicator for each distinct group of ranks, and one for each
// direction between two ranks of the pipeline. Everything is enqueued; nothing here waits but Connect.
#pragma once

#include <nccl.h>

#include <functional>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/backend/backend.h"
#include "engine/backend/cuda/launch/cuda_backend.h"
#include "engine/base/store.h"

namespace engine::backend::cuda {

// Told of each group before it is connected: "connecting ranks 0, 1 by NCCL".
using OnConnecting = std::function<void(const std::string& what)>;

// One group's connection; null before Connect.
struct NcclGroup {
  ncclComm_t communicator = nullptr;
};

class NcclCommunicator final : public Communicator {
 public:
  // `backend` and `store`, which all ranks of the run share, must outlive it. NCCL is loaded (libraries.h).
  NcclCommunicator(CudaBackend* backend, Store* store, std::int64_t rank, OnConnecting on_connecting)
      : backend_(*backend),
        device_(backend->device()),
        store_(*store),
        rank_(rank),
        on_connecting_(std::move(on_connecting)) {}
  ~NcclCommunicator() override;

  absl::StatusOr<std::unique_ptr<Launch>> Prepare(CollectiveArgs args) override;
  absl::Status PrepareTransfer(std::int64_t peer, std::int32_t stream, bool push) override;
  // Makes the communicators in one order for all ranks, that of their members, and sends something over each:
  // so no rank waits for one that waits for it, and the first iteration finds every connection made. Waits
  // end where the backend's health does.
  absl::Status Connect() override;
  bool recordable() const override { return true; }

  absl::StatusOr<std::int64_t> Send(std::int64_t peer, std::int32_t channel, const std::byte* data,
                                    std::int64_t bytes, std::int32_t stream, std::int64_t there) override;
  absl::Status WaitSent(std::int64_t peer, std::int32_t channel, std::int64_t ticket) override;
  absl::Status Receive(std::int64_t peer, std::int32_t channel, std::byte* data, std::int64_t bytes,
                       std::int32_t stream) override;

  // What NCCL found out about failed peers and links since the last call.
  absl::Status Health() const;
  // Begins to end what the GPU still does for other ranks, which may be gone. NCCL is done with it when no graph is left that it was
  // recorded in; the destructor waits for that. Of a communicator that is used no more.
  void BeginAbort();

 private:
  // Collectives, or the transfers of one direction of the pipeline. Collectives of a group that the plan puts
  // on two streams share a communicator: NCCL then runs them one after another, in the order of launches.
  enum class Use : std::uint8_t { kCollectives, kNext, kPrevious };
  struct Key {
    std::vector<std::int64_t> ranks;  // ascending; of transfers: the sender, the receiver
    Use use = Use::kCollectives;
    bool operator<(const Key& other) const { return std::tie(ranks, use) < std::tie(other.ranks, other.use); }
  };

  NcclGroup* GroupOf(const Key& key);
  Key TransferKey(std::int64_t peer, std::int32_t stream) const;
  absl::StatusOr<ncclUniqueId> AgreeOnId(const Key& key);
  absl::Status Make(const Key& key, NcclGroup* group);
  absl::Status Warm(const Key& key, const NcclGroup& group);

  CudaBackend& backend_;
  Device& device_;
  Store& store_;
  const std::int64_t rank_;
  const OnConnecting on_connecting_;
  std::map<Key, std::unique_ptr<NcclGroup>> groups_;
  float* warm_memory_ = nullptr;  // device, two numbers
  std::vector<std::future<void>> aborts_;
};

}  // namespace engine::backend::cuda
