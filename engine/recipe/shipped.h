// Names of the files that come with the program: "engine:configs/models/llama3-8b.toml".
#pragma once

#include <absl/status/statusor.h>

#include <string>
#include <string_view>
#include <vector>

namespace engine::recipe {

inline constexpr std::string_view kShippedPrefix = "engine:";

inline bool IsShipped(std::string_view path) { return path.starts_with(kShippedPrefix); }

// Where they are looked for, in this order: $ENGINE_DATA alone if it is set; else share/engine beside the
// folder of the program, and the source tree that the program's build folder was configured for.
std::vector<std::string> ShippedFolders();

// The file on disk that such a name stands for: the first that is there. An error names the folders looked
// in; a name that leaves them ("engine:../x") is none.
absl::StatusOr<std::string> FindShipped(const std::string& name);

// What `entry` means in the file `path`: a shipped name as it stands, else relative to the file, whose own
// name may be a shipped one.
std::string PathFrom(const std::string& path, const std::string& entry);

// The form of a path that messages and origins show.
std::string NormalPath(const std::string& path);

}  // namespace engine::recipe
