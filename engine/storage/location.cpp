#include "engine/storage/location.h"

#include <algorithm>

#include "engine/base/shown.h"
#include "engine/base/status.h"

namespace engine::storage {
namespace {

constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
constexpr std::string_view kDigits = "0123456789";

bool IsOneOf(char c, std::string_view characters) { return characters.find(c) != std::string_view::npos; }

// The length of "scheme" in "scheme://…"; 0: there is none.
std::size_t SchemeLength(std::string_view name) {
  const std::size_t end = name.find("://");
  if (end == std::string_view::npos || end == 0 || !IsOneOf(name.front(), kLetters)) return 0;
  const std::string_view scheme = name.substr(0, end);
  const bool is_scheme = std::all_of(scheme.begin(), scheme.end(), [](char c) {
    return IsOneOf(c, kLetters) || IsOneOf(c, kDigits) || IsOneOf(c, "+-.");
  });
  return is_scheme ? end : 0;
}

std::string_view FirstControl(std::string_view text) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c < 0x20 || c == 0x7F) return text.substr(i, 1);
  }
  return {};
}

absl::StatusOr<Location> LocateS3(const std::string& name, std::string_view rest) {
  constexpr std::string_view kInBucket = "abcdefghijklmnopqrstuvwxyz0123456789.-";
  constexpr std::size_t kLeast = 3;
  constexpr std::size_t kMost = 63;
  const std::string_view bucket = rest.substr(0, rest.find('/'));
  if (bucket.empty()) return InvalidArgument("{} names no bucket: s3://BUCKET/KEY", ShownPath(name));
  if (bucket.size() < kLeast || bucket.size() > kMost ||
      bucket.find_first_not_of(kInBucket) != std::string_view::npos || IsOneOf(bucket.front(), ".-") ||
      IsOneOf(bucket.back(), ".-")) {
    return InvalidArgument(
        "{}: \"{}\" is no bucket's name, which has {} to {} small letters, digits, dots and hyphens, the "
        "first "
        "and the last of them a letter or digit",
        ShownPath(name), Shown(bucket), kLeast, kMost);
  }
  Location location{.kind = Kind::kS3, .name = name, .bucket = std::string(bucket), .key = ""};
  if (bucket.size() < rest.size()) location.key = rest.substr(bucket.size() + 1);
  return location;
}

absl::StatusOr<Location> LocateHttp(const std::string& name, std::string_view rest) {
  const std::size_t host_end = rest.find_first_of("/?#");
  const std::string_view host = rest.substr(0, host_end);
  // What may be a password is not repeated.
  if (host.find('@') != std::string_view::npos) {
    return InvalidArgument(
        "a URL with a user or password would be written into logs and manifests: give one without, or an "
        "s3:// "
        "name, whose credentials are in the environment");
  }
  if (host.empty() || host.front() == ':')
    return InvalidArgument("{} names no host: http(s)://HOST/PATH", ShownPath(name));
  if (rest.find_first_of("?#") != std::string_view::npos) {
    return InvalidArgument(
        "{}: a URL here has no query (?…) and no fragment (#…); these characters within a path are %3F and "
        "%23",
        ShownPath(name.substr(0, name.find_first_of("?#"))));
  }
  if (rest.find(' ') != std::string_view::npos)
    return InvalidArgument("{}: a blank within a URL is %20", ShownPath(name));
  return Location{.kind = Kind::kHttp, .name = name, .bucket = "", .key = ""};
}

}  // namespace

bool IsUrl(std::string_view name) { return SchemeLength(name) > 0; }

absl::StatusOr<Location> Locate(const std::string& name) {
  const std::size_t length = SchemeLength(name);
  if (length == 0) return Location{.kind = Kind::kPath, .name = name, .bucket = "", .key = ""};
  if (!FirstControl(name).empty())
    return InvalidArgument("{}: a URL has no control characters", ShownPath(name));
  const std::string_view scheme = std::string_view(name).substr(0, length);
  const std::string_view rest = std::string_view(name).substr(length + 3);
  if (scheme == "s3") return LocateS3(name, rest);
  if (scheme == "http" || scheme == "https") return LocateHttp(name, rest);
  return InvalidArgument("{}://: this scheme is not known; s3://, http://, https:// and paths of files are",
                         Shown(scheme));
}

absl::Status CheckPrefix(const std::string& name) {
  ASSIGN_OR_RETURN(const Location location, Locate(name));
  if (location.kind == Kind::kS3 && location.key.empty())
    return InvalidArgument("{} names a bucket and nothing in it: s3://BUCKET/PREFIX", ShownPath(name));
  const std::size_t path = location.kind == Kind::kHttp ? name.find('/', name.find("://") + 3) : 0;
  if (path == std::string::npos || (location.kind == Kind::kHttp && path + 1 == name.size()))
    return InvalidArgument("{} names a host and nothing on it: http(s)://HOST/PREFIX", ShownPath(name));
  return absl::OkStatus();
}

std::string UriEncode(std::string_view text, bool keep_slash) {
  std::string encoded;
  for (const char c : text) {
    if (IsOneOf(c, kLetters) || IsOneOf(c, kDigits) || IsOneOf(c, "-._~") || (keep_slash && c == '/')) {
      encoded += c;
    } else {
      encoded += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return encoded;
}

}  // namespace engine::storage
