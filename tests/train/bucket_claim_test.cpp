// What owner.json says; what becomes of it with a server is in tests/storage/s3_checkpoints.py.
#include "engine/train/bucket_claim.h"

#include <doctest/doctest.h>

#include <string>

namespace engine::train {

TEST_CASE("bucket owner: what is written is read") {
  const BucketOwner owner = {.run = "0123",
                             .attempt = 7,
                             .folder = "/runs/\"a\"",
                             .host = "h",
                             .since = "2026-11-27T00:00:00Z",
                             .ended = true};
  const absl::StatusOr<BucketOwner> read = BucketOwner::FromText(owner.ToText());
  REQUIRE(read.ok());
  CHECK(*read == owner);
}

TEST_CASE("bucket owner: what says nothing of an owner is an error") {
  const auto error = [](const std::string& text) {
    return std::string(BucketOwner::FromText(text).status().message());
  };
  CHECK(error("").starts_with("owner.json:1"));
  CHECK(error("[]") == "it has no text under \"run\"");
  CHECK(error(R"({"run": "a", "folder": "f", "host": 7, "since": "s"})") == "it has no text under \"host\"");
  const std::string texts = R"({"run": "a", "folder": "f", "host": "h", "since": "s", )";
  CHECK(error(texts + R"("attempt": -1, "ended": true})") == "it has no number under \"attempt\"");
  CHECK(error(texts + R"("attempt": 1, "ended": 0})") == "it has neither true nor false under \"ended\"");
}

}  // namespace engine::train
