// Who asks S3, and where: all of it from the environment.
#pragma once

#include <absl/status/statusor.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/storage/http.h"
#include "engine/storage/location.h"
#include "engine/storage/signature.h"

namespace engine::storage {

struct S3Settings {
  Credentials credentials;  // AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, and AWS_SESSION_TOKEN where it is set
  std::string region;       // AWS_REGION, else AWS_DEFAULT_REGION
  // AWS_ENDPOINT_URL_S3, else AWS_ENDPOINT_URL: "http(s)://host[:port][/path]", without a '/' at its end; empty: AWS itself.
  std::string endpoint;
};

// Errors, FailedPrecondition, name the variable that is missing; of one that will not do, InvalidArgument. No value of a
// secret is ever in an error.
absl::StatusOr<S3Settings> S3FromEnvironment();

// One request to S3.
struct S3Request {
  std::string method = "GET";
  bool of_bucket = false;  // not of the key
  Query query;
  std::vector<std::pair<std::string, std::string>>
      headers;  // more than the signature needs, names in small letters
  std::string_view body;
};

// Signed for this moment. Other servers than AWS's are asked with the bucket in the path, as is a bucket of AWS with dots in its name,
// which no certificate covers; else the bucket is a part of the host's name.
Request Sign(const S3Request& request, const Location& location, const S3Settings& settings);

}  // namespace engine::storage
