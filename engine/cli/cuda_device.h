// This machine's GPUs as the device of a run.
#pragma once

#include "engine/cli/device.h"

namespace engine::cli {

// One rank on GPU 0, opened here. Errors: more ranks than one; no GPU that will do.
absl::StatusOr<train::Device> MakeCudaDevice(const recipe::Recipe& recipe, const DeviceChoice& choice);

}  // namespace engine::cli
