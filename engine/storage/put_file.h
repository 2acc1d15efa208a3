// A file of this machine under a name of storage.
#pragma once

#include <string>

#include "engine/base/status.h"

namespace engine::storage {

// Copies the whole file at `path` to `name`, a piece at a time; what stood there is replaced when it is whole. Errors: of reading the
// file, or as of storage::Create and its Writer.
absl::Status PutFile(const std::string& path, const std::string& name);

}  // namespace engine::storage
