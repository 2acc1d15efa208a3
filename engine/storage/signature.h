// AWS Signature Version 4, by which S3 knows who asks.
// Source: docs.aws.amazon.com, "Create a signed AWS API request", and of S3 "Authenticating Requests: Using the Authorization
// Header". libcurl signs too, but which headers and queries it gets right differs between its releases.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace engine::storage {

struct Credentials {
  std::string access_key_id;
  std::string secret_access_key;
  std::string session_token;  // of temporary credentials; else empty
};

// Names and values, not yet encoded.
using Query = std::vector<std::pair<std::string, std::string>>;

struct Signable {
  std::string method;  // "GET"
  std::string path;    // from '/' on, encoded by UriEncode
  Query query;
  std::map<std::string, std::string>
      headers;                 // all that are signed, names in small letters; host and x-amz-date among them
  std::string payload_sha256;  // in hex digits
  std::string time;            // x-amz-date: "20130524T000000Z"
  std::string region;          // "us-east-1"
  std::string service = "s3";
};

// The query as it is signed and has to be sent: encoded, in the order of its names.
std::string CanonicalQuery(Query query);

// The value of the header Authorization.
std::string Authorization(const Signable& request, const Credentials& credentials);

std::string Sha256Hex(std::string_view bytes);

// The ETag of an object that was made of parts with these ETags: MD5 of their MD5s, and how many they are. Empty where these are no
// MD5s, as with keys of KMS.
std::string TagOfParts(const std::vector<std::string>& tags);

// `seconds` since 1970 as x-amz-date has them.
std::string AmzTime(std::int64_t seconds);

}  // namespace engine::storage
