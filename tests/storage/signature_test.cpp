#include "engine/storage/signature.h"

#include <doctest/doctest.h>

namespace engine::storage {
namespace {

std::string SignatureOf(const Signable& request, const Credentials& credentials) {
  const std::string text = Authorization(request, credentials);
  return text.substr(text.find("Signature=") + 10);
}

// "Authenticating Requests: Using the Authorization Header (AWS Signature Version 4)" in the documentation of S3.
const Credentials kOfS3 = {"AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", ""};

Signable OfS3(std::string method, std::string path, Query query, const std::string& payload) {
  Signable request{.method = std::move(method),
                   .path = std::move(path),
                   .query = std::move(query),
                   .headers = {},
                   .payload_sha256 = Sha256Hex(payload),
                   .time = "20130524T000000Z",
                   .region = "us-east-1"};
  request.headers = {{"host", "examplebucket.s3.amazonaws.com"},
                     {"x-amz-content-sha256", request.payload_sha256},
                     {"x-amz-date", request.time}};
  return request;
}

}  // namespace

TEST_CASE("signatures of the examples in S3's documentation") {
  Signable range = OfS3("GET", "/test.txt", {}, "");
  range.headers["range"] = "bytes=0-9";
  CHECK(Authorization(range, kOfS3) ==
        "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, "
        "SignedHeaders=host;range;x-amz-content-sha256;x-amz-date, "
        "Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");

  Signable put = OfS3("PUT", "/test%24file.text", {}, "Welcome to Amazon S3.");
  put.headers["date"] = "Fri, 24 May 2013 00:00:00 GMT";
  put.headers["x-amz-storage-class"] = "REDUCED_REDUNDANCY";
  CHECK(SignatureOf(put, kOfS3) == "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd");

  CHECK(SignatureOf(OfS3("GET", "/", {{"lifecycle", ""}}, ""), kOfS3) ==
        "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543");
  CHECK(SignatureOf(OfS3("GET", "/", {{"prefix", "J"}, {"max-keys", "2"}}, ""), kOfS3) ==
        "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
}

TEST_CASE("signatures of AWS's test suite") {
  const Credentials credentials = {"AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", ""};
  Signable request{.method = "GET",
                   .path = "/",
                   .query = {},
                   .headers = {{"host", "example.amazonaws.com"}, {"x-amz-date", "20150830T123600Z"}},
                   .payload_sha256 = Sha256Hex(""),
                   .time = "20150830T123600Z",
                   .region = "us-east-1",
                   .service = "service"};
  // get-vanilla, post-vanilla, get-vanilla-query-order-key-case
  CHECK(SignatureOf(request, credentials) ==
        "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31");
  request.method = "POST";
  CHECK(SignatureOf(request, credentials) ==
        "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b");
  request.method = "GET";
  request.query = {{"Param2", "value2"}, {"Param1", "value1"}};
  CHECK(SignatureOf(request, credentials) ==
        "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500");
}

TEST_CASE("the tag of an object made of parts") {
  const std::string hello = "\"5d41402abc4b2a76b9719d911017c592\"";  // MD5 of "hello"
  // python3 -c 'import hashlib as h; d = h.md5(b"hello").digest(); print(h.md5(d + d).hexdigest())'
  CHECK(TagOfParts({hello, hello}) == "\"616b22817b80eed9f65c3aa38cd29054-2\"");
  CHECK(TagOfParts({hello, "\"of KMS\""}).empty());
  CHECK(TagOfParts({"\"5d41402abc4b2a76b9719d911017c59x\""}).empty());
}

TEST_CASE("queries are encoded and in order, times in UTC") {
  CHECK(CanonicalQuery({{"uploads", ""}}) == "uploads=");
  CHECK(CanonicalQuery({{"b", "x/y z"}, {"a", "ü"}, {"a", "1"}}) == "a=%C3%BC&a=1&b=x%2Fy%20z");
  CHECK(AmzTime(1369353600) == "20130524T000000Z");
  CHECK(AmzTime(0) == "19700101T000000Z");
}

}  // namespace engine::storage
