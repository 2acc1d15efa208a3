#include "engine/cli/version.h"

#ifdef ENGINE_CUDA
#include "engine/backend/cuda/probe.h"
#endif

namespace engine::cli {

std::string VersionText() {
#ifdef ENGINE_CUDA
  return "engine 0.1.0 (CPU executor; CUDA: compiled with " + backend::cuda::ProbeText() + ")";
#else
  return "engine 0.1.0 (CPU executor; CUDA: not compiled)";
#endif
}

}  // namespace engine::cli
