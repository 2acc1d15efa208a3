// Whole files of this machine for names that may be far away: indexes of data sets, and what else is small beside what it is about.
//
// Copies lie in the folder `objects` of the cache's (base/cache_folder.h), each under the hash of its name, size and version, so that what has
// changed at its place is fetched anew. A copy has its name when it is whole. Processes of one host that need the same one fetch it
// once. When a copy comes and all of them have more bytes than $ENGINE_CACHE_LIMIT ("100GB"; 32 GiB where it is not set), those go
// that were not used for longest; who has one open keeps it.
#pragma once

#include <absl/status/statusor.h>

#include <string>

#include "engine/base/file_io.h"

namespace engine::storage {

// Of a path: the file itself. Else a copy, for which one request looks whether it is still that of what lies there. Errors: those of
// storage.h, and of the disk.
absl::StatusOr<File> OpenCopy(const std::string& name);

}  // namespace engine::storage
