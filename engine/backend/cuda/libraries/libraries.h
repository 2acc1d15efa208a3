// NVIDIA's libraries, loaded when they are first needed: this program starts, and runs on the CPU, where they
// are missing.
#pragma once

#include <string>

#include "engine/base/status.h"

namespace engine::backend::cuda {

struct LoadedLibrary {
  std::string version;  // "9.19.0"
  std::string path;     // as the loader found it
};

// Each loads once and remembers the outcome; any thread may call. Nothing of a library may be called before
// its Load has succeeded. Errors say what was searched, what is needed, and a way out: NotFound where
// the library is missing or does not load, FailedPrecondition where it is too old.
absl::StatusOr<LoadedLibrary> LoadCublasLt();  // matrix products
absl::StatusOr<LoadedLibrary> LoadCudnn();     // attention in 16 bits
absl::StatusOr<LoadedLibrary> LoadNccl();      // several GPUs

}  // namespace engine::backend::cuda
