// One GPU and the libraries that work on it.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <cudnn.h>

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "engine/backend/cuda/libraries/status.h"
#include "engine/backend/cuda/profile/choice_file.h"
#include "engine/plan/plan.h"

namespace engine::backend::cuda {

class AttentionPlans;
class GemmTuner;

struct DeviceOptions {
  int index = 0;
  std::string choices;        // file of what was chosen by timing (profile/choice_file.h); empty: not kept
  bool deterministic = true;  // only kernels whose result is the same bits in every run
};

class Device {
 public:
  // Makes the GPU the calling thread's. Errors: no such GPU, no driver, a GPU that will not do (survey.h),
  // cuBLASLt missing or too old (each says what was found and what is needed).
  static absl::StatusOr<std::unique_ptr<Device>> Open(const DeviceOptions& options);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const cudaDeviceProp& properties() const { return properties_; }
  std::string Uuid() const;  // 32 hex digits, of the GPU itself
  int multiprocessors() const { return properties_.multiProcessorCount; }
  bool deterministic() const { return options_.deterministic; }
  cudaStream_t compute() const { return compute_; }  // kernels
  cudaStream_t copy() const { return copy_; }        // staged inputs
  // Of a program (plan::Stream); the compute stream is one of them.
  cudaStream_t stream(std::int32_t of_program) const {
    return of_program == plan::kComputeStream ? compute_
                                              : transfer_[static_cast<std::size_t>(of_program - 1)];
  }
  cublasLtHandle_t cublas_lt() const { return cublas_lt_; }
  // Bound to `compute`. Made on first use: a plan without attention does not load cuDNN.
  // Error: cuDNN missing or too old.
  absl::StatusOr<cudnnHandle_t> cudnn();
  GemmTuner& gemm_tuner() { return *gemm_tuner_; }
  ChoiceFile& choices() { return choices_; }
  // Memory to time kernels in, until the next call: empty, none is lent.
  void BorrowMemory(std::span<std::byte> memory);
  std::span<std::byte> borrowed() const { return borrowed_; }
  AttentionPlans& attention_plans() { return *attention_plans_; }

 private:
  explicit Device(DeviceOptions options);
  absl::Status Start();
  DeviceOptions options_;
  cudaDeviceProp properties_{};
  cudaStream_t compute_ = nullptr;
  cudaStream_t copy_ = nullptr;
  std::array<cudaStream_t, plan::kStreams - 1> transfer_ = {};  // of exchange and pipeline traffic
  cublasLtHandle_t cublas_lt_ = nullptr;
  cudnnHandle_t cudnn_ = nullptr;
  ChoiceFile choices_;
  std::span<std::byte> borrowed_;
  std::unique_ptr<GemmTuner> gemm_tuner_;
  std::unique_ptr<AttentionPlans> attention_plans_;
};

}  // namespace engine::backend::cuda
