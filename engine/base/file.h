// Opening files in whose place there may be something else: a named pipe, a device, a folder. Nothing here
// waits for another program or reads without end.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace engine {

// A status for the errno of a failed call: "cannot open PATH: No such file or directory".
absl::Status SystemError(std::string_view operation, const std::string& path, int error_number);

// A descriptor of a regular file, opened with these flags of open(2) and O_CLOEXEC. Anything else is
// InvalidArgument: "PATH is a named pipe, not a regular file". With O_NOFOLLOW a symbolic link is, too. Errors of the system
// name the file as it is `called`, where that is not empty.
absl::StatusOr<int> OpenRegular(const std::string& path, int flags, const std::string& called = "");

// Ok where PATH is a regular file, after symbolic links, or is not there; else what OpenRegular says.
absl::Status CheckRegularOrAbsent(const std::string& path);

// All bytes of a regular file; an error if it has more than `most_bytes`.
absl::StatusOr<std::string> ReadRegular(const std::string& path, std::int64_t most_bytes);

}  // namespace engine
