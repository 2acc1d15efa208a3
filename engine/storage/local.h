// Files by path, for storage.cpp.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/storage/storage.h"

namespace engine::storage {

absl::StatusOr<std::shared_ptr<const Object>> OpenFile(const std::string& path);
absl::StatusOr<std::string> ReadAllOfFile(const std::string& path, std::int64_t most_bytes);
absl::StatusOr<std::vector<Entry>> ListFiles(const std::string& prefix);
absl::StatusOr<std::unique_ptr<Writer>> CreateFileWriter(const std::string& path);
absl::Status RemoveFile(const std::string& path);

}  // namespace engine::storage
