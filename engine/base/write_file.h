// Whole files, written and synced under another name, PATH.new, and then renamed: a reader never sees a half, nor does
// one after a crash. What stands there and is no regular file is an error. Errors of the system name PATH. After an error
// PATH is as it was, and PATH.new is gone.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "engine/base/file_io.h"
#include "engine/base/status.h"

namespace engine {

absl::Status WriteFile(const std::filesystem::path& path, const std::string& text);

// The same, of what `fill` writes. Not synced, a file may be empty or gone after a crash of the machine.
enum class Synced { kNo, kYes };
absl::Status ReplaceFile(const std::string& path, Synced synced,
                         const std::function<absl::Status(const File&)>& fill);

}  // namespace engine
