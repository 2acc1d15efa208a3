#ifdef ENGINE_CUDA
#include "engine/cli/cuda_device.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <utility>

#include "engine/backend/cuda/device/survey.h"
#include "engine/backend/cuda/exchange/delay_communicator.h"
#include "engine/backend/cuda/exchange/nccl_communicator.h"
#include "engine/backend/cuda/exchange/push_communicator.h"
#include "engine/backend/cuda/launch/cuda_backend.h"
#include "engine/backend/cuda/libraries/libraries.h"
#include "engine/base/cache_folder.h"
#include "engine/base/memory_store.h"
#include "engine/health/nvml.h"

namespace engine::cli {
namespace {

// A rank that is alone exchanges nothing, and its plan says so.
class NoCommunicator final : public backend::Communicator {
 public:
  absl::StatusOr<std::unique_ptr<backend::Launch>> Prepare(backend::CollectiveArgs args) override {
    return Internal("{}: one GPU has nobody to talk to", args.instruction->name);
  }
  absl::StatusOr<std::int64_t> Send(std::int64_t, std::int32_t, const std::byte*, std::int64_t, std::int32_t,
                                    std::int64_t) override {
    return Internal("one GPU has nobody to send to");
  }
  absl::Status WaitSent(std::int64_t, std::int32_t, std::int64_t) override {
    return Internal("one GPU has nobody to send to");
  }
  absl::Status Receive(std::int64_t, std::int32_t, std::byte*, std::int64_t, std::int32_t) override {
    return Internal("one GPU has nobody to receive from");
  }
};

// The file's name, its folder made; empty where that cannot be. What is timed while others are at work on the
// GPU is kept apart.
std::string OpenGemmCache(const DeviceChoice& choice) {
  std::error_code error;
  std::string file = GemmCacheFile();
  if (file.empty()) return "";
  if (choice.share_gpus) file += ".shared";
  std::filesystem::create_directories(CacheFolder(), error);
  return error ? "" : file;
}

struct OpenedGpu {
  state::Device device;                           // all but what concerns other ranks
  backend::cuda::CudaBackend* backend = nullptr;  // what the device's make_backend gives away
};

absl::StatusOr<OpenedGpu> OpenGpu(const recipe::Recipe& recipe, const DeviceChoice& choice, int index) {
  backend::cuda::DeviceOptions options;
  options.index = index;
  options.choices = OpenGemmCache(choice);
  options.deterministic = IsDeterministic(recipe, choice);
  ASSIGN_OR_RETURN(std::unique_ptr<backend::cuda::CudaBackend> backend,
                   backend::cuda::CudaBackend::Create(options));
  // Known before anything starts; in fp32, attention is ours.
  if (recipe.precision.compute != "fp32") RETURN_IF_ERROR(backend::cuda::LoadCudnn().status());
  OpenedGpu gpu;
  gpu.backend = backend.get();
  gpu.device.profile = backend->Profile();
  ASSIGN_OR_RETURN(gpu.device.memory_bytes, backend->FreeBytes());
  gpu.device.used_bytes = [backend = gpu.backend]() -> std::optional<std::int64_t> {
    const absl::StatusOr<std::int64_t> used = backend->UsedBytes();
    return used.ok() ? std::optional(*used) : std::nullopt;
  };
  const auto opened = std::make_shared<std::unique_ptr<backend::Backend>>(std::move(backend));
  gpu.device.make_backend = [opened](std::int64_t, std::int64_t) { return std::move(*opened); };
  return gpu;
}

// Null where the driver's library does not tell of it: a run does without.
std::shared_ptr<health::Gpu> OpenHealth(backend::cuda::CudaBackend& backend) {
  absl::StatusOr<std::unique_ptr<health::Gpu>> gpu =
      health::Gpu::Open(health::UuidOf(backend.device().Uuid()));
  return gpu.ok() ? *std::move(gpu) : nullptr;
}

std::optional<state::DeviceHealth> HealthOf(health::Gpu& gpu) {
  const absl::StatusOr<health::GpuHealth> health = gpu.Health();
  if (!health.ok()) return std::nullopt;
  return state::DeviceHealth{.clock_mhz = static_cast<double>(health->clock_mhz),
                             .temperature_c = static_cast<double>(health->temperature_c),
                             .text = health->Text()};
}

// To NCCL, which refuses two ranks on one GPU of a host, each rank is a host of its own.
void ShareGpu(const launch::Placement& placement, int visible, state::Device* device) {
  setenv("NCCL_HOSTID", fmt::format("engine-rank-{}", placement.rank).c_str(), /*overwrite=*/1);
  device->memory_bytes /= (placement.local_size + visible - 1) / visible;
}

}  // namespace

std::string GemmCacheFile() {
  const std::string folder = CacheFolder();
  return folder.empty() ? "" : (std::filesystem::path(folder) / "gemm.txt").string();
}

absl::StatusOr<state::Device> MakeCudaDevice(const recipe::Recipe& recipe, const DeviceChoice& choice) {
  if (!recipe.has_one_rank()) {
    return FailedPrecondition("the recipe's layout has {} ranks, and each GPU needs a process of its own",
                              recipe.world_size());
  }
  ASSIGN_OR_RETURN(OpenedGpu gpu, OpenGpu(recipe, choice, 0));
  if (const std::shared_ptr<health::Gpu> health = OpenHealth(*gpu.backend))
    gpu.device.health = [health] { return HealthOf(*health); };
  gpu.device.make_communicator = [](std::int64_t) { return std::make_unique<NoCommunicator>(); };
  gpu.device.abort = [] {};
  return std::move(gpu.device);
}

absl::StatusOr<state::Device> MakeCudaThreads(const recipe::Recipe& recipe, const DeviceChoice& choice) {
  const auto world = static_cast<int>(recipe.world_size());
  ASSIGN_OR_RETURN(const int visible, backend::cuda::CountGpus());
  if (visible < world) {
    return FailedPrecondition("the layout has {} ranks, one a GPU, and there {} here", world,
                              visible == 1 ? "is 1 GPU" : fmt::format("are {} GPUs", visible));
  }
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0);  // as of MakeCudaRank
  RETURN_IF_ERROR(backend::cuda::LoadNccl().status());
  struct Group {
    MemoryStore store;
    std::vector<std::unique_ptr<backend::Backend>> unused;  // by rank; null: it was given away
    std::vector<backend::cuda::CudaBackend*> backends;
  };
  const auto group = std::make_shared<Group>();
  std::optional<state::Device> device;
  for (int rank = 0; rank < world; ++rank) {
    ASSIGN_OR_RETURN(OpenedGpu gpu, OpenGpu(recipe, choice, rank));
    gpu.backend->WatchHealth([group] { return group->store.status(); });
    group->backends.push_back(gpu.backend);
    group->unused.push_back(gpu.device.make_backend(rank, world));
    if (!device) device = std::move(gpu.device);
  }
  device->profile.pushes =
      false;  // addresses of one process are not shared as those of several are: NCCL exchanges
  device->make_backend = [group](std::int64_t rank, std::int64_t) {
    return std::move(group->unused[static_cast<std::size_t>(rank)]);
  };
  device->make_communicator = [group](std::int64_t rank) {
    return std::make_unique<backend::cuda::NcclCommunicator>(group->backends[static_cast<std::size_t>(rank)],
                                                             &group->store, rank, nullptr);
  };
  device->enter = [group](std::int64_t rank) {
    return group->backends[static_cast<std::size_t>(rank)]->Enter();
  };
  device->abort = [group] { group->store.End(absl::AbortedError("another rank failed")); };
  return *std::move(device);
}

absl::StatusOr<state::Device> MakeCudaRank(const recipe::Recipe& recipe, const DeviceChoice& choice,
                                           ProcessGroup* group) {
  // A stream that waits for another rank blocks the hardware queue that it shares with others.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0);
  ASSIGN_OR_RETURN(const int visible, backend::cuda::CountGpus());
  const launch::Placement& placement = group->placement();
  const int local = static_cast<int>(placement.local_rank);
  const bool shares = choice.share_gpus && visible > 0 && placement.local_size > visible;
  const int index = visible == 1 ? 0 : shares ? local % visible : local;
  ASSIGN_OR_RETURN(OpenedGpu gpu, OpenGpu(recipe, choice, index));
  if (const std::shared_ptr<health::Gpu> health = OpenHealth(*gpu.backend)) {
    gpu.device.health = [health] { return HealthOf(*health); };
    group->WatchGpu(health);
  }
  static bool has_shared = false;  // in an attempt before
  if (has_shared && !shares) unsetenv("NCCL_HOSTID");
  has_shared = shares;
  if (shares) {
    ShareGpu(placement, visible, &gpu.device);
  } else if (placement.source == launch::kOwnSource && placement.local_size == placement.world) {
    // All ranks see the same GPUs, and find the same. Elsewhere the communicator finds out.
    ASSIGN_OR_RETURN(backend::cuda::PeerAccess peers,
                     backend::cuda::LookAtPeers(std::min(visible, static_cast<int>(placement.local_size))));
    gpu.device.profile.reach = peers.reach;
    gpu.device.profile.unreachable = std::move(peers.missing);
  }
  RETURN_IF_ERROR(backend::cuda::LoadNccl().status());
  backend::cuda::CudaBackend* const backend = gpu.backend;
  const std::int64_t rank = placement.rank;
  std::optional<std::uint32_t> delay;
  if (const char* seed = std::getenv("ENGINE_TEST_DELAY")) {
    ASSIGN_OR_RETURN(delay, backend::cuda::ParseDelaySeed(seed));
  }
  const auto made = std::make_shared<backend::cuda::PushCommunicator*>(nullptr);
  gpu.device.quieten = [group, made] {
    constexpr auto kWithin = std::chrono::milliseconds(1000);
    group->SetQuiet(*made == nullptr || (*made)->Quieten(kWithin));
    return group->is_quiet();
  };
  return group->Attach(
      gpu.device,
      fmt::format("GPU {}{}", backend->device().Uuid(),
                  choice.share_gpus ? fmt::format(", shared by rank {}", rank) : ""),
      [backend, rank, delay, group, made](launch::Client* client) -> std::unique_ptr<backend::Communicator> {
        group->SetQuiet(false);
        auto communicator = std::make_unique<backend::cuda::PushCommunicator>(
            backend, client, rank,
            backend::cuda::PushOptions{
                .on_connecting = [client](const std::string& what) { client->Progress(what); }});
        *made = communicator.get();
        group->ReleaseBy([release = communicator->release()] { release->LetGo(); });
        backend->WatchHealth([client, watched = communicator.get()]() -> absl::Status {
          RETURN_IF_ERROR(client->status());
          return watched->Health();
        });
        if (!delay) return communicator;
        return std::make_unique<backend::cuda::DelayCommunicator>(std::move(communicator), &backend->device(),
                                                                  *delay, rank);
      });
}

}  // namespace engine::cli
#endif
