#include "engine/storage/s3.h"

#include <doctest/doctest.h>

#include "engine/base/status.h"
#include "tests/storage/variable.h"

namespace engine::storage {
namespace {

// The URL of a request for a name, and the host that its headers name.
std::pair<std::string, std::string> Asked(const std::string& name, const std::string& region,
                                          const std::string& endpoint, bool of_bucket = false) {
  const S3Settings settings{{"AKID", "secret", ""}, region, endpoint};
  const Request request =
      Sign({.of_bucket = of_bucket, .query = {}, .headers = {}, .body = {}}, *Locate(name), settings);
  for (const std::string& header : request.headers)
    if (header.starts_with("host: ")) return {request.url, header.substr(6)};
  return {request.url, ""};
}

}  // namespace

TEST_CASE("AWS is asked by the bucket's host, or in the path where no certificate covers that") {
  using Pair = std::pair<std::string, std::string>;
  CHECK(Asked("s3://bucket/a b", "eu-west-1", "") ==
        Pair("https://bucket.s3.eu-west-1.amazonaws.com/a%20b", "bucket.s3.eu-west-1.amazonaws.com"));
  CHECK(Asked("s3://bucket/a", "eu-west-1", "", true).first == "https://bucket.s3.eu-west-1.amazonaws.com/");
  CHECK(Asked("s3://my.bucket/a", "eu-west-1", "") ==
        Pair("https://s3.eu-west-1.amazonaws.com/my.bucket/a", "s3.eu-west-1.amazonaws.com"));
  CHECK(Asked("s3://my.bucket/a", "eu-west-1", "", true).first ==
        "https://s3.eu-west-1.amazonaws.com/my.bucket");
  CHECK(Asked("s3://bucket/a", "cn-north-1", "").second == "bucket.s3.cn-north-1.amazonaws.com.cn");
}

TEST_CASE("other servers are asked in the path, and a scheme's own port is not named") {
  using Pair = std::pair<std::string, std::string>;
  CHECK(Asked("s3://bucket/a/../b", "r", "http://host:9000") ==
        Pair("http://host:9000/bucket/a/../b", "host:9000"));
  CHECK(Asked("s3://bucket/a", "r", "http://host:80") == Pair("http://host/bucket/a", "host"));
  CHECK(Asked("s3://bucket/a", "r", "https://host:443/under").first == "https://host/under/bucket/a");
  CHECK(Asked("s3://bucket/a", "r", "http://host:443").second == "host:443");
}

TEST_CASE("the environment's variables, the nearer one first") {
  const Variable id("AWS_ACCESS_KEY_ID", "AKID");
  const Variable secret("AWS_SECRET_ACCESS_KEY", "secret");
  const Variable token("AWS_SESSION_TOKEN", "token");
  const Variable region("AWS_REGION", "near");
  const Variable default_region("AWS_DEFAULT_REGION", "far");
  const Variable endpoint("AWS_ENDPOINT_URL", "http://all");
  const Variable s3_endpoint("AWS_ENDPOINT_URL_S3", "http://s3//");
  const absl::StatusOr<S3Settings> settings = S3FromEnvironment();
  REQUIRE_MESSAGE(settings.ok(), Message(settings.status()));
  CHECK(settings->credentials.session_token == "token");
  CHECK(settings->region == "near");
  CHECK(settings->endpoint == "http://s3");
  const Variable wrong("AWS_REGION", "Frankfurt, please");
  CHECK(Message(S3FromEnvironment().status())
            .starts_with("AWS_REGION is \"Frankfurt, please\", and a region has small letters"));
}

}  // namespace engine::storage
