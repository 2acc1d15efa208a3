// Objects of http(s):// and s3://, for storage.cpp.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/storage/storage.h"

namespace engine::storage {

absl::StatusOr<std::shared_ptr<const Object>> OpenRemote(const Location& location);
absl::StatusOr<std::string> ReadAllRemote(const Location& location, std::int64_t most_bytes);
absl::StatusOr<std::vector<Entry>> ListS3(const Location& location);
absl::StatusOr<std::unique_ptr<Writer>> CreateS3(const Location& location, std::int64_t most_bytes);
absl::Status RemoveS3(const Location& location);

}  // namespace engine::storage
