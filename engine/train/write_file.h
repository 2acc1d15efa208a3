// Whole files, written under another name and then renamed: a reader never sees a half.
#pragma once

#include <filesystem>
#include <string>

#include "engine/base/status.h"

namespace engine::train {

absl::Status WriteFile(const std::filesystem::path& path, const std::string& text);

}  // namespace engine::train
