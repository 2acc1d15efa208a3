// What CUDA this program was compiled with, and what devices this machine has. The only part of the CUDA
// backend so far: it has no kernels yet, so no plan runs on it.
#pragma once

#include <string>

namespace engine::backend::cuda {

// "13.0, no device" or "13.0, 2 devices: NVIDIA H200 (compute 9.0), …". Never fails: what the driver refuses
// is said in the text.
std::string ProbeText();

}  // namespace engine::backend::cuda
