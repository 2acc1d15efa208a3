// Whole files, written and synced under another name and then renamed: a reader never sees a half, nor does
// one after a crash. What stands there and is no regular file is an error.
#pragma once

#include <filesystem>
#include <string>

#include "engine/base/status.h"

namespace engine {

absl::Status WriteFile(const std::filesystem::path& path, const std::string& text);

}  // namespace engine
