#include "engine/storage/location.h"

#include <doctest/doctest.h>

#include "engine/base/status.h"

namespace engine::storage {
namespace {

std::string LocateError(const std::string& name) {
  const absl::StatusOr<Location> location = Locate(name);
  return location.ok() ? "" : Message(location.status());
}

}  // namespace

TEST_CASE("names are paths, URLs of the web, or buckets and keys") {
  for (const char* path : {"data/x", "/data/x", "./s3://b/k", "a:b", "://x", "1s://x", "", "s3:/b/k"}) {
    CAPTURE(path);
    CHECK_FALSE(IsUrl(path));
    CHECK(Locate(path)->kind == Kind::kPath);
  }
  const Location object = *Locate("s3://my-bucket.1/a folder/ü?#%20/../x");
  CHECK(object.kind == Kind::kS3);
  CHECK(object.bucket == "my-bucket.1");
  CHECK(object.key == "a folder/ü?#%20/../x");
  CHECK(Locate("s3://bucket")->key.empty());
  CHECK(Locate("s3://bucket/")->key.empty());
  CHECK(Locate("https://host:8080/a%20b")->kind == Kind::kHttp);
}

TEST_CASE("a name that will not do says what would") {
  CHECK(LocateError("s3://") == "s3:// names no bucket: s3://BUCKET/KEY");
  CHECK(LocateError("s3:///key") == "s3:///key names no bucket: s3://BUCKET/KEY");
  CHECK(LocateError("s3://My_Bucket/k")
            .starts_with("s3://My_Bucket/k: \"My_Bucket\" is no bucket's name, which has 3 to 63"));
  CHECK(LocateError("s3://-bucket/k") != "");
  CHECK(LocateError("s3://bucket-/k") != "");
  CHECK(LocateError("s3://ab/k") != "");
  CHECK(LocateError("s3://" + std::string(64, 'a') + "/k") != "");
  CHECK(LocateError("s3://" + std::string(63, 'a') + "/k") == "");
  CHECK(LocateError("gs://bucket/k") ==
        "gs://: this scheme is not known; s3://, http://, https:// and paths of files are");
  CHECK(LocateError("S3://bucket/k").starts_with("S3://: this scheme is not known"));
  CHECK(LocateError("http://") == "http:// names no host: http(s)://HOST/PATH");
  CHECK(LocateError("http://:80/x") == "http://:80/x names no host: http(s)://HOST/PATH");
  CHECK(LocateError("http://host/x?a=b").starts_with("http://host/x: a URL here has no query"));
  CHECK(LocateError("http://host/x#y").starts_with("http://host/x: a URL here has no query"));
  CHECK(LocateError("http://host/a b") == "http://host/a b: a blank within a URL is %20");
  CHECK(LocateError("http://host/a\nb") == "http://host/a\\nb: a URL has no control characters");
  CHECK(LocateError("s3://bucket/a\x01") != "");
}

TEST_CASE("what files' names begin with is more than a bucket or a host") {
  for (const char* prefix :
       {"data/x", "", "s3://bucket/x", "s3://bucket/x/", "https://host/x", "http://host:80/x/y"})
    CHECK(CheckPrefix(prefix).ok());
  CHECK(Message(CheckPrefix("s3://bucket")) ==
        "s3://bucket names a bucket and nothing in it: s3://BUCKET/PREFIX");
  CHECK_FALSE(CheckPrefix("s3://bucket/").ok());
  CHECK(Message(CheckPrefix("http://host")) ==
        "http://host names a host and nothing on it: http(s)://HOST/PREFIX");
  CHECK_FALSE(CheckPrefix("http://host/").ok());
  CHECK_FALSE(CheckPrefix("gs://bucket/x").ok());
}

TEST_CASE("a password in a URL is refused and not repeated") {
  const std::string error = LocateError("https://user:hunter2@host/x");
  CHECK(error.find("hunter2") == std::string::npos);
  CHECK(error.starts_with("a URL with a user or password"));
}

TEST_CASE("what is not unreserved is encoded") {
  CHECK(UriEncode("aZ09-._~/ +ü%", true) == "aZ09-._~/%20%2B%C3%BC%25");
  CHECK(UriEncode("a/b", false) == "a%2Fb");
}

}  // namespace engine::storage
