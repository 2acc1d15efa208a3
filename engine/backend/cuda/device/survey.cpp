#include "engine/backend/cuda/device/survey.h"

#include "engine/backend/cuda/device/probe.h"
#include "engine/backend/cuda/libraries/status.h"

namespace engine::backend::cuda {
namespace {

constexpr int kLeastComputeMajor = 8;  // bf16 in the tensor cores

// "13.0" of CUDA's 13000.
std::string CudaVersion(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

absl::Status CheckCode(int index, const cudaDeviceProp& properties) {
  const cudaError_t error = FindKernelImage();
  if (error != cudaErrorNoKernelImageForDevice && error != cudaErrorInvalidDeviceFunction) {
    return ToStatus(error, "cudaFuncGetAttributes");
  }
  cudaGetLastError();
  return NotFound(
      "GPU {} ({}) has compute capability {}.{}, but this program was compiled for {} only; configure the "
      "build with -DENGINE_CUDA_ARCHITECTURES={}{}",
      index, properties.name, properties.major, properties.minor, CompiledArchitectures(),
      10 * properties.major + properties.minor, properties.major >= 9 ? "a" : "");
}

}  // namespace

std::string ToolkitVersion() { return CudaVersion(CUDART_VERSION); }

std::string CompiledArchitectures() { return ENGINE_CUDA_ARCHITECTURES; }

absl::StatusOr<std::string> DriverVersion() {
  int driver = 0;
  RETURN_IF_CUDA_ERROR(cudaDriverGetVersion(&driver));
  if (driver == 0) {
    return NotFound("this machine has no NVIDIA driver; one for CUDA {} or later is needed",
                    ToolkitVersion());
  }
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaErrorInsufficientDriver) {
    return FailedPrecondition("the NVIDIA driver knows CUDA {}; one for CUDA {} or later is needed",
                              CudaVersion(driver), ToolkitVersion());
  }
  return CudaVersion(driver);
}

absl::StatusOr<int> CountGpus() {
  RETURN_IF_ERROR(DriverVersion().status());
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaErrorNoDevice) return 0;
  RETURN_IF_ERROR(ToStatus(error, "cudaGetDeviceCount"));
  return count;
}

absl::StatusOr<PeerAccess> LookAtPeers(int count) {
  absl::Status status = absl::OkStatus();
  PeerAccess access = AccessOf(count, [&](int from, int to) {
    int reaches = 0;
    const cudaError_t error = cudaDeviceCanAccessPeer(&reaches, from, to);
    if (status.ok()) status = ToStatus(error, "cudaDeviceCanAccessPeer");
    return reaches != 0;
  });
  if (!status.ok()) return status;
  return access;
}

absl::StatusOr<Gpu> LookAtGpu(int index) {
  cudaDeviceProp properties{};
  RETURN_IF_CUDA_ERROR(cudaGetDeviceProperties(&properties, index));
  Gpu gpu{.name = properties.name, .capability = fmt::format("{}.{}", properties.major, properties.minor)};
  if (properties.major < kLeastComputeMajor) {
    return FailedPrecondition("GPU {} ({}) has compute capability {}; {}.0 or later is needed", index,
                              gpu.name, gpu.capability, kLeastComputeMajor);
  }
  RETURN_IF_CUDA_ERROR(cudaSetDevice(index));
  RETURN_IF_ERROR(CheckCode(index, properties));
  std::size_t free = 0;
  std::size_t total = 0;
  RETURN_IF_CUDA_ERROR(cudaMemGetInfo(&free, &total));
  gpu.free_bytes = static_cast<std::int64_t>(free);
  gpu.total_bytes = static_cast<std::int64_t>(total);
  return gpu;
}

}  // namespace engine::backend::cuda
