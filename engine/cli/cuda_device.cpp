#ifdef ENGINE_CUDA
#include "engine/cli/cuda_device.h"

#include <cstdlib>
#include <filesystem>
#include <utility>

#include "engine/backend/cuda/cuda_backend.h"
#include "engine/backend/cuda/libraries.h"

namespace engine::cli {
namespace {

// A rank that is alone exchanges nothing, and its plan says so.
class NoCommunicator final : public backend::Communicator {
 public:
  absl::StatusOr<std::unique_ptr<backend::Launch>> Prepare(backend::CollectiveArgs args) override {
    return Internal("{}: one GPU has nobody to talk to", args.instruction->name);
  }
  absl::StatusOr<std::int64_t> Send(std::int64_t, std::int32_t, const std::byte*, std::int64_t,
                                    std::int32_t) override {
    return Internal("one GPU has nobody to send to");
  }
  absl::Status WaitSent(std::int64_t, std::int32_t, std::int64_t) override {
    return Internal("one GPU has nobody to send to");
  }
  absl::Status Receive(std::int64_t, std::int32_t, std::byte*, std::int64_t, std::int32_t) override {
    return Internal("one GPU has nobody to receive from");
  }
};

// The file's name, its folder made; empty where that cannot be.
std::string OpenGemmCache() {
  std::error_code error;
  const std::string file = GemmCacheFile();
  if (file.empty()) return "";
  std::filesystem::create_directories(CacheFolder(), error);
  return error ? "" : file;
}

}  // namespace

std::string CacheFolder() {
  if (const char* folder = std::getenv("ENGINE_CACHE")) return folder;
  if (const char* folder = std::getenv("XDG_CACHE_HOME")) return std::filesystem::path(folder) / "engine";
  if (const char* home = std::getenv("HOME")) return std::filesystem::path(home) / ".cache" / "engine";
  return "";
}

std::string GemmCacheFile() {
  const std::string folder = CacheFolder();
  return folder.empty() ? "" : (std::filesystem::path(folder) / "gemm.txt").string();
}

absl::StatusOr<train::Device> MakeCudaDevice(const recipe::Recipe& recipe, const DeviceChoice& choice) {
  if (recipe.world_size() > 1) {
    return FailedPrecondition("the recipe's layout has {} ranks, but the CUDA executor runs one GPU",
                              recipe.world_size());
  }
  backend::cuda::DeviceOptions options;
  options.gemm_cache = OpenGemmCache();
  options.deterministic = IsDeterministic(recipe, choice);
  ASSIGN_OR_RETURN(std::unique_ptr<backend::cuda::CudaBackend> backend,
                   backend::cuda::CudaBackend::Create(options));
  // Known before anything starts; in fp32, attention is ours.
  if (recipe.precision.compute != "fp32") RETURN_IF_ERROR(backend::cuda::LoadCudnn().status());
  train::Device device;
  device.profile = backend->Profile();
  ASSIGN_OR_RETURN(device.memory_bytes, backend->FreeBytes());
  // The backend that was opened is the first one asked for.
  const auto opened = std::make_shared<std::unique_ptr<backend::Backend>>(std::move(backend));
  device.make_backend = [opened](std::int64_t, std::int64_t) { return std::move(*opened); };
  device.make_communicator = [](std::int64_t) { return std::make_unique<NoCommunicator>(); };
  device.abort = [] {};
  return device;
}

}  // namespace engine::cli
#endif
