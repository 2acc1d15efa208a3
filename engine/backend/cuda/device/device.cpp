#include "engine/backend/cuda/device/device.h"

#include <utility>

#include "engine/backend/cuda/attention/attention.h"
#include "engine/backend/cuda/device/survey.h"
#include "engine/backend/cuda/gemm/gemm.h"
#include "engine/backend/cuda/gemm/gemm_tuner.h"
#include "engine/backend/cuda/libraries/libraries.h"

namespace engine::backend::cuda {

Device::Device(DeviceOptions options) : options_(std::move(options)), choices_(options_.choices) {}

absl::StatusOr<std::unique_ptr<Device>> Device::Open(const DeviceOptions& options) {
  ASSIGN_OR_RETURN(const int count, CountGpus());
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
  RETURN_IF_ERROR(LookAtGpu(options_.index).status());
  RETURN_IF_CUDA_ERROR(cudaGetDeviceProperties(&properties_, options_.index));
  RETURN_IF_ERROR(LoadCublasLt().status());
  // Non-blocking: nothing of ours waits for the legacy stream.
  // What others wait for comes first: exchange and transfers are let in at the next border of a block.
  int lowest = 0;
  int highest = 0;
  RETURN_IF_CUDA_ERROR(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
  RETURN_IF_CUDA_ERROR(cudaStreamCreateWithPriority(&compute_, cudaStreamNonBlocking, lowest));
  RETURN_IF_CUDA_ERROR(cudaStreamCreateWithFlags(&copy_, cudaStreamNonBlocking));
  for (cudaStream_t& stream : transfer_) {
    RETURN_IF_CUDA_ERROR(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, highest));
  }
  RETURN_IF_CUBLAS_ERROR(cublasLtCreate(&cublas_lt_));
  gemm_tuner_ = std::make_unique<GemmTuner>(
      cublas_lt_, compute_,
      GemmTunerOptions{
          .choices = &choices_, .device_name = properties_.name, .deterministic = options_.deterministic});
  attention_plans_ = std::make_unique<AttentionPlans>();
  return absl::OkStatus();
}

Device::~Device() {
  attention_plans_.reset();
  gemm_tuner_.reset();
  if (cudnn_ != nullptr) cudnnDestroy(cudnn_);
  if (cublas_lt_ != nullptr) cublasLtDestroy(cublas_lt_);
  for (cudaStream_t stream : transfer_) {
    if (stream != nullptr) cudaStreamDestroy(stream);
  }
  if (copy_ != nullptr) cudaStreamDestroy(copy_);
  if (compute_ != nullptr) cudaStreamDestroy(compute_);
}

std::string Device::Uuid() const {
  std::string text;
  for (const char byte : properties_.uuid.bytes)
    text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return text;
}

void Device::BorrowMemory(std::span<std::byte> memory) {
  borrowed_ = memory;
  gemm_tuner_->BorrowMemory(memory.data(), static_cast<std::int64_t>(memory.size()));
}

absl::StatusOr<cudnnHandle_t> Device::cudnn() {
  if (cudnn_ != nullptr) return cudnn_;
  RETURN_IF_ERROR(LoadCudnn().status());
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
