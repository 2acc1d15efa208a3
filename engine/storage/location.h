// Where bytes lie, by name: a path, `s3://bucket/key`, or `http(s)://host/path`. Nothing here asks a server.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <string>
#include <string_view>

namespace engine::storage {

enum class Kind { kPath, kHttp, kS3 };

struct Location {
  Kind kind = Kind::kPath;
  std::string name;    // as it was given
  std::string bucket;  // of S3
  std::string key;     // of S3; may be empty
};

// Whether the name begins with a scheme, such as "s3://". A path that does so can be written as "./s3://…".
bool IsUrl(std::string_view name);

// Errors, InvalidArgument, say what is wrong with the name and what would be right: a scheme that is not known, a bucket's name
// that S3 does not allow, a URL without a host or with a user, a query or a fragment.
// The key of s3:// is plain text, so that %, ? and # are characters of it; the path of http(s):// is as it stands in the URL.
absl::StatusOr<Location> Locate(const std::string& name);

// Whether a name can be the beginning of other names, as PREFIX of PREFIX.bin: Locate's errors, and where it would be that of a bucket or
// a host.
absl::Status CheckPrefix(const std::string& name);

// Bytes other than RFC 3986's unreserved characters as %XX; '/' stays where `keep_slash` says so.
std::string UriEncode(std::string_view text, bool keep_slash);

}  // namespace engine::storage
