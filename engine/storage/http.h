// One exchange with a server over HTTP, and the same again where it failed for a reason that may pass. The only files that know
// libcurl are this one's. All of it may be called from many threads at once; each call uses a connection of its own, which is kept
// for the next one.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace engine::storage {

// How long a request is waited for, and how often it is made.
struct Patience {
  int attempts = 6;
  // Before the second attempt half of this to all of it, drawn at random; twice as much before each further one, up to the longest.
  std::chrono::milliseconds first_wait{400};
  std::chrono::milliseconds longest_wait{10'000};
  std::chrono::seconds connect{10};
  // An attempt that moves less than this for so long is given up.
  std::int64_t slowest_bytes_per_s = 4096;
  std::chrono::seconds slow{20};
};
// Of all requests from now on; for tests.
void SetPatience(const Patience& patience);

struct Response {
  long status = 0;
  std::map<std::string, std::string> headers;  // names in small letters
  std::string body;  // what the request's on_body did not take; of an error, the first 64 KiB

  std::string header(const std::string& name) const;  // empty: there is none
};

struct Request {
  std::string method = "GET";
  std::string url;
  std::vector<std::string> headers;  // "Name: value"
  std::string_view body;             // of PUT and POST; has to stay until the answer is there
  bool follow_redirects = false;
  std::optional<std::chrono::seconds> slow;  // else Patience's
  // Called once with the status and the headers of an answer that is no error (2xx); an error ends the request with it.
  std::function<absl::Status(const Response& head)> on_head;
  // Called with the body of such an answer, piece by piece; an error ends the request with it. Empty: the body goes to
  // Response::body, of which more than `most_bytes` is an error.
  std::function<absl::Status(std::string_view bytes)> on_body;
  std::int64_t most_bytes = std::int64_t{16} << 20;
};

// What an attempt came to. `failed`: there is no whole answer.
struct Attempt {
  Response response;
  absl::Status failed;
  bool may_pass = false;  // trying again may help
};

Attempt Try(const Request& request);

// Makes a request and tries it until it has a whole answer whose status is neither 429 nor one of 500, 502, 503 and 504, or the
// attempts are used up. `make` is called for each attempt, so that it may ask for what is missing only; an error of it ends all. `what`
// names the deed in errors: "read s3://b/k". `judge`, where given, may turn an answer into an error; one that is Unavailable is tried again.
// Any answer counts as one: the caller looks at its status.
struct Answer {
  Response response;
  std::string url;
  int attempts = 1;
};
absl::StatusOr<Answer> Send(const std::string& what,
                            const std::function<absl::StatusOr<Request>(int attempt)>& make,
                            const std::function<absl::Status(const Response&)>& judge = nullptr);

}  // namespace engine::storage
