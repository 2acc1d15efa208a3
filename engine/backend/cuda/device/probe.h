// What CUDA this program was compiled with, and what devices this machine has.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

namespace engine::backend::cuda {

// "13.0, no device" or "13.0, 2 devices: NVIDIA H200 (compute 9.0), …". Never fails: what the driver refuses
// is said in the text.
std::string ProbeText();

// cudaErrorNoKernelImageForDevice where this program holds no code that the thread's GPU runs.
cudaError_t FindKernelImage();

}  // namespace engine::backend::cuda
