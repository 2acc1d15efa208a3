#include "engine/backend/cuda/device/probe.h"

namespace engine::backend::cuda {
namespace {

__global__ void DoNothing() {}

}  // namespace

cudaError_t FindKernelImage() {
  cudaFuncAttributes attributes{};
  return cudaFuncGetAttributes(&attributes, DoNothing);
}

std::string ProbeText() {
  std::string text = std::to_string(CUDART_VERSION / 1000) + "." + std::to_string(CUDART_VERSION % 1000 / 10);
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  // No driver, or a driver without devices: a machine that only compiles.
  if (error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver ||
      (error == cudaSuccess && count == 0)) {
    return text + ", no device";
  }
  if (error != cudaSuccess) return text + ", no device: " + cudaGetErrorString(error);
  text += ", " + std::to_string(count) + (count == 1 ? " device: " : " devices: ");
  for (int device = 0; device < count; ++device) {
    cudaDeviceProp properties{};
    if (cudaGetDeviceProperties(&properties, device) != cudaSuccess) continue;
    text += (device > 0 ? ", " : "") + std::string(properties.name) + " (compute " +
            std::to_string(properties.major) + "." + std::to_string(properties.minor) + ")";
  }
  return text;
}

}  // namespace engine::backend::cuda
