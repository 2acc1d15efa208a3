// Data sets for buckets: made on this machine, and then put where they belong.
#pragma once

#include <absl/status/statusor.h>

#include <functional>
#include <string>

namespace engine::data {

// Calls `make` with the prefix of what it has to make. Of a path that is `output_prefix` itself. Of s3:// it is one in a folder of the
// cache's (base/cache_folder.h) that is always the same for the same name, so that what goes on after an end does so here too; then all files
// that begin with it are put into the bucket, indexes last, so that no index is there without what it is about, and those of
// loss masks (chat_build.h) before the others, so that no data set is there without its mask; they are removed
// here. In a manifest (.json) the prefixes are replaced. Whether the bucket can be written is tried before anything is made. Where it cannot be any
// more, the error says where the files are.
absl::Status MakeAt(const std::string& output_prefix,
                    const std::function<absl::Status(const std::string& prefix)>& make);

// The name that what was made with `prefix` has then, as MakeAt(output_prefix) called `make` with that of `local`.
std::string PublishedName(const std::string& prefix, const std::string& local,
                          const std::string& output_prefix);

}  // namespace engine::data
