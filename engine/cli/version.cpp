#include "engine/cli/version.h"

#include "engine/base/version.h"

#ifdef ENGINE_CUDA
#include "engine/backend/cuda/device/probe.h"
#endif

namespace engine::cli {

std::string VersionText() {
#ifdef ENGINE_CUDA
  return std::string("engine ") + Version() + " (CPU and CUDA executors; CUDA " + backend::cuda::ProbeText() +
         ")";
#else
  return std::string("engine ") + Version() + " (CPU executor; compiled without CUDA)";
#endif
}

}  // namespace engine::cli
