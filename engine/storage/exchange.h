// Requests for one remote name, whichever kind it is of.
#pragma once

#include <functional>
#include <string>

#include "engine/storage/s3.h"

namespace engine::storage {

class Exchange {
 public:
  // Reads the environment where the name is of S3.
  static absl::StatusOr<Exchange> With(const Location& location);

  // One request for each attempt: `ask` says what of S3; of http(s):// its method and headers are taken. `set` may add what answers
  // are told to. Anything but an answer of 2xx, and one that `accepts` names, is an error with the server's message and what may help.
  struct Deed {
    std::string what;  // "read", for errors
    std::function<S3Request(int attempt)> ask;
    std::function<void(Request*)> set;
    std::function<absl::Status(const Response&)> judge;  // of answers of 2xx; Unavailable is tried again
    long accepts = 0;                                    // a further status that is no error
  };
  absl::StatusOr<Answer> Do(const Deed& deed) const;

  const Location& location() const { return location_; }

 private:
  explicit Exchange(Location location) : location_(std::move(location)) {}
  absl::Status ErrorOf(const std::string& what, const std::string& method, const Answer& answer) const;
  std::string HintFor(const Response& response, const std::string& code) const;

  Location location_;
  S3Settings settings_;  // of S3
};

}  // namespace engine::storage
