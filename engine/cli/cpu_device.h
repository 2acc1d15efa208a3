// The CPU as the device of a run: virtual ranks, the threads of this process.
#pragma once

#include "engine/train/ranks.h"

namespace engine::cli {

// `threads` of all ranks together; 0: as many as the machine has cores.
train::Device MakeCpuDevice(int threads);

}  // namespace engine::cli
