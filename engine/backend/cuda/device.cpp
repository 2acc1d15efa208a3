#include "engine/backend/cuda/device.h"

#include <utility>

#include "engine/backend/cuda/attention.h"
#include "engine/backend/cuda/gemm.h"
#include "engine/backend/cuda/gemm_tuner.h"

namespace engine::backend::cuda {
namespace {

constexpr int kLeastComputeMajor = 8;           // bf16 in the tensor cores
constexpr std::size_t kLeastCudnn = 91400;      // 9.14: attention's pattern graph is tried from here on
constexpr std::size_t kLeastCublasLt = 130000;  // 13.0: what this program is compiled for

// "13.0" of CUDA's 13000.
std::string CudaVersion(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

// "9.19.0" of cuDNN's 91900.
std::string CudnnVersion(std::size_t version) {
  return fmt::format("{}.{}.{}", version / 10000, version % 10000 / 100, version % 100);
}

absl::StatusOr<int> CountDevices() {
  int driver = 0;
  RETURN_IF_CUDA_ERROR(cudaDriverGetVersion(&driver));
  if (driver == 0) {
    return FailedPrecondition("this machine has no NVIDIA driver; one for CUDA {} or later is needed",
                              CudaVersion(CUDART_VERSION));
  }
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaErrorInsufficientDriver) {
    return FailedPrecondition("the NVIDIA driver knows CUDA {}; one for CUDA {} or later is needed",
                              CudaVersion(driver), CudaVersion(CUDART_VERSION));
  }
  if (error == cudaErrorNoDevice) return 0;
  RETURN_IF_ERROR(ToStatus(error, "cudaGetDeviceCount"));
  return count;
}

absl::Status CheckDevice(const cudaDeviceProp& properties, int index) {
  if (properties.major >= kLeastComputeMajor) return absl::OkStatus();
  return FailedPrecondition("GPU {} ({}) has compute capability {}.{}; {}.0 or later is needed", index,
                            properties.name, properties.major, properties.minor, kLeastComputeMajor);
}

}  // namespace

Device::Device(DeviceOptions options) : options_(std::move(options)) {}

absl::StatusOr<std::unique_ptr<Device>> Device::Open(const DeviceOptions& options) {
  ASSIGN_OR_RETURN(const int count, CountDevices());
  if (options.index < 0 || options.index >= count) {
    return FailedPrecondition("GPU {} is needed, this machine has {}", options.index,
                              count == 0   ? "none"
                              : count == 1 ? "GPU 0 only"
                                           : fmt::format("GPUs 0 to {}", count - 1));
  }
  std::unique_ptr<Device> device(new Device(options));
  RETURN_IF_ERROR(device->Start());
  return device;
}

absl::Status Device::Start() {
  RETURN_IF_CUDA_ERROR(cudaGetDeviceProperties(&properties_, options_.index));
  RETURN_IF_ERROR(CheckDevice(properties_, options_.index));
  if (cublasLtGetVersion() < kLeastCublasLt) {
    return FailedPrecondition("libcublasLt is version {}; {} or later is needed", cublasLtGetVersion(),
                              kLeastCublasLt);
  }
  RETURN_IF_CUDA_ERROR(cudaSetDevice(options_.index));
  // Non-blocking: nothing of ours waits for the legacy stream.
  RETURN_IF_CUDA_ERROR(cudaStreamCreateWithFlags(&compute_, cudaStreamNonBlocking));
  RETURN_IF_CUDA_ERROR(cudaStreamCreateWithFlags(&copy_, cudaStreamNonBlocking));
  RETURN_IF_CUBLAS_ERROR(cublasLtCreate(&cublas_lt_));
  gemm_tuner_ = std::make_unique<GemmTuner>(cublas_lt_, compute_,
                                            GemmTunerOptions{.file = options_.gemm_cache,
                                                             .device_name = properties_.name,
                                                             .deterministic = options_.deterministic});
  attention_plans_ = std::make_unique<AttentionPlans>();
  return absl::OkStatus();
}

Device::~Device() {
  attention_plans_.reset();
  gemm_tuner_.reset();
  if (cudnn_ != nullptr) cudnnDestroy(cudnn_);
  if (cublas_lt_ != nullptr) cublasLtDestroy(cublas_lt_);
  if (copy_ != nullptr) cudaStreamDestroy(copy_);
  if (compute_ != nullptr) cudaStreamDestroy(compute_);
}

absl::StatusOr<cudnnHandle_t> Device::cudnn() {
  if (cudnn_ != nullptr) return cudnn_;
  if (cudnnGetVersion() < kLeastCudnn) {
    return FailedPrecondition("libcudnn is version {}; attention needs {} or later",
                              CudnnVersion(cudnnGetVersion()), CudnnVersion(kLeastCudnn));
  }
  cudnnHandle_t handle = nullptr;
  RETURN_IF_CUDNN_ERROR(cudnnCreate(&handle));
  if (const absl::Status status = ToStatus(cudnnSetStream(handle, compute_), "cudnnSetStream");
      !status.ok()) {
    cudnnDestroy(handle);
    return status;
  }
  cudnn_ = handle;
  return handle;
}

}  // namespace engine::backend::cuda
