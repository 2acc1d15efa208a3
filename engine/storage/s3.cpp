#include "engine/storage/s3.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>

#include "engine/base/shown.h"
#include "engine/base/status.h"

namespace engine::storage {
namespace {

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// That of the first variable that is set.
std::pair<std::string, std::string> FirstOf(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (std::string value = Variable(name); !value.empty()) return {name, std::move(value)};
  }
  return {};
}

// The value of a variable that will be in a header. It is not shown.
absl::StatusOr<std::string> Secret(const char* name, bool is_needed) {
  std::string value = Variable(name);
  if (value.empty() && is_needed) {
    return FailedPrecondition(
        "s3:// needs the credentials AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment, and {} "
        "is not set. "
        "Files and roles are not looked at: `eval \"$(aws configure export-credentials --format env)\"` sets "
        "what they give. What "
        "everyone may read needs none as https://",
        name);
  }
  const bool printable = std::all_of(value.begin(), value.end(), [](char c) { return c > ' ' && c < 0x7F; });
  if (!printable)
    return InvalidArgument("{} holds a blank, a line end or another character that no credential has", name);
  return value;
}

absl::StatusOr<std::string> Region() {
  const auto [name, region] = FirstOf({"AWS_REGION", "AWS_DEFAULT_REGION"});
  if (region.empty()) {
    return FailedPrecondition(
        "s3:// needs the bucket's region in AWS_REGION or AWS_DEFAULT_REGION, such as us-east-1, which is "
        "also what servers "
        "without regions take");
  }
  constexpr std::string_view kInRegion = "abcdefghijklmnopqrstuvwxyz0123456789-";
  if (region.find_first_not_of(kInRegion) == std::string::npos) return region;
  return InvalidArgument("{} is \"{}\", and a region has small letters, digits and hyphens, as us-east-1",
                         name, Shown(region));
}

absl::StatusOr<std::string> Endpoint() {
  auto [name, url] = FirstOf({"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"});
  if (url.empty()) return url;
  const absl::StatusOr<Location> location = Locate(url);
  if (!location.ok()) return WithContext(location.status(), name);
  if (location->kind != Kind::kHttp)
    return InvalidArgument("{} is \"{}\", and must be http(s)://HOST[:PORT]", name, Shown(url));
  while (url.ends_with('/')) url.pop_back();
  return url;
}

struct Place {
  std::string scheme;  // "https://"
  std::string host;    // as the header has it: without the scheme's own port
  std::string path;    // encoded
};

Place PlaceOf(const Location& location, const S3Settings& settings, bool of_bucket) {
  const std::string key = of_bucket ? "" : "/" + UriEncode(location.key, /*keep_slash=*/true);
  if (settings.endpoint.empty()) {
    const std::string domain = fmt::format("s3.{}.amazonaws.com{}", settings.region,
                                           settings.region.starts_with("cn-") ? ".cn" : "");
    if (location.bucket.find('.') == std::string::npos)
      return {"https://", location.bucket + "." + domain, of_bucket ? "/" : key};
    return {"https://", domain, "/" + location.bucket + key};
  }
  const std::size_t host_at = settings.endpoint.find("://") + 3;
  const std::size_t path_at = std::min(settings.endpoint.find('/', host_at), settings.endpoint.size());
  Place place{settings.endpoint.substr(0, host_at), settings.endpoint.substr(host_at, path_at - host_at),
              settings.endpoint.substr(path_at) + "/" + location.bucket + key};
  const std::string_view own_port = place.scheme == "http://" ? ":80" : ":443";
  if (place.host.ends_with(own_port)) place.host.resize(place.host.size() - own_port.size());
  return place;
}

}  // namespace

absl::StatusOr<S3Settings> S3FromEnvironment() {
  S3Settings settings;
  ASSIGN_OR_RETURN(settings.credentials.access_key_id, Secret("AWS_ACCESS_KEY_ID", true));
  ASSIGN_OR_RETURN(settings.credentials.secret_access_key, Secret("AWS_SECRET_ACCESS_KEY", true));
  ASSIGN_OR_RETURN(settings.credentials.session_token, Secret("AWS_SESSION_TOKEN", false));
  ASSIGN_OR_RETURN(settings.region, Region());
  ASSIGN_OR_RETURN(settings.endpoint, Endpoint());
  return settings;
}

Request Sign(const S3Request& request, const Location& location, const S3Settings& settings) {
  using std::chrono::system_clock;
  const Place place = PlaceOf(location, settings, request.of_bucket);
  Signable signable{
      .method = request.method,
      .path = place.path,
      .query = request.query,
      .headers = {request.headers.begin(), request.headers.end()},
      .payload_sha256 = Sha256Hex(request.body),
      .time = AmzTime(
          std::chrono::duration_cast<std::chrono::seconds>(system_clock::now().time_since_epoch()).count()),
      .region = settings.region};
  signable.headers["host"] = place.host;
  signable.headers["x-amz-content-sha256"] = signable.payload_sha256;
  signable.headers["x-amz-date"] = signable.time;
  if (!settings.credentials.session_token.empty())
    signable.headers["x-amz-security-token"] = settings.credentials.session_token;
  const std::string query = CanonicalQuery(request.query);
  Request made{.method = request.method,
               .url = place.scheme + place.host + place.path + (query.empty() ? "" : "?" + query),
               .headers = {},
               .body = request.body,
               .slow = {},
               .on_head = {},
               .on_body = {}};
  for (const auto& [name, value] : signable.headers)
    made.headers.push_back(fmt::format("{}: {}", name, value));
  made.headers.push_back("Authorization: " + Authorization(signable, settings.credentials));
  return made;
}

}  // namespace engine::storage
