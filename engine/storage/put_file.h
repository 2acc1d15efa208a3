// A file of this machine under a name of storage.
#pragma once

#include <functional>
#include <string>

#include "engine/base/status.h"

namespace engine::storage {

// What is asked while a file is put there, in the thread that does so; an error ends it, and what stood there stays. Empty: nothing is.
struct PutChecks {
  std::function<absl::Status()> goes_on = {};  // before each piece
  // When all bytes have been read and nothing has the name yet; with their XXH3-128, as 32 hex digits.
  std::function<absl::Status(const std::string& checksum)> may_appear = {};
};

// Copies the whole file at `path` to `name`, a piece at a time; what stood there is replaced when it is whole. Errors: of reading the
// file, as of storage::Create and its Writer, or of the checks.
absl::Status PutFile(const std::string& path, const std::string& name, const PutChecks& checks = {});

}  // namespace engine::storage
