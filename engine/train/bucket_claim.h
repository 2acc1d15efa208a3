// Which run keeps its checkpoints under a name of S3. Two runs there would delete and resume each other's, and so would a rank 0 that
// stands still for a while, and another that has begun in its place.
//
//   s3://BUCKET/KEY/owner.json   who writes there: each rank 0 says so before it reads or writes anything else
//   DIR/bucket_run.json          by which the run's folder is known there, also after a restart
//
// Who finds another's words in the first one has been replaced, and writes and deletes no more. Of two that begin in the same moment both may
// write it, and the one whose words were overwritten finds that out when it looks again: at once, or before it writes or deletes anything.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace engine::train {

// What owner.json says.
struct BucketOwner {
  std::string run;           // of all attempts in one folder the same
  std::int64_t attempt = 0;  // rises with each that begins under the name, of whatever run
  std::string folder;        // for people, as all that follows
  std::string host;
  std::string since;   // UTC
  bool ended = false;  // it said its end, so that others may begin

  bool operator==(const BucketOwner&) const = default;
  std::string ToText() const;
  // Error: it is no such text.
  static absl::StatusOr<BucketOwner> FromText(const std::string& text);
};

class BucketClaim {
 public:
  // This process writes checkpoints of the run in folder `out`, which is there, under `prefix` from now on. FailedPrecondition: another run does,
  // and has not said its end; with `take_over` that adds a line to *notes instead.
  static absl::StatusOr<BucketClaim> Take(const std::string& prefix, const std::string& out, bool take_over,
                                          std::vector<std::string>* notes);

  // What another process of the same run has taken, as it tells it: `self` is its owner().
  static BucketClaim Of(std::string prefix, BucketOwner self) { return {std::move(prefix), std::move(self)}; }

  const std::string& prefix() const { return prefix_; }
  const BucketOwner& owner() const { return self_; }
  // AlreadyExists: another has the name by now. Other errors are of the server.
  absl::Status Check() const;
  // The run has ended. Nothing where another has the name by now.
  absl::Status Release() const;

 private:
  BucketClaim(std::string prefix, BucketOwner self) : prefix_(std::move(prefix)), self_(std::move(self)) {}

  std::string prefix_;
  BucketOwner self_;
};

}  // namespace engine::train
