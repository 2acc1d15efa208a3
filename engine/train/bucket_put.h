// Checkpoints of a run's folder into its bucket (train/bucket.h), by all of its processes: each puts the files there that it has written,
// so that the network cards of all hosts work, and rank 0 the manifest when all have said that theirs are there.
//
// The shard of rank q, also of a checkpoint that another layout has left, is put there by rank q modulo the number of ranks, all else by
// rank 0. Each process that puts something there looks whether the place is still this run's before a file gets its name, and compares the file's checksum
// with the manifest's.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "engine/launch/rendezvous.h"
#include "engine/train/bucket_claim.h"

namespace engine::train {

// Who puts a checkpoint there.
struct PutTeam {
  launch::Client* processes = nullptr;  // null: this process alone
  std::int64_t rank = 0;
  std::int64_t world = 1;
  std::string key = {};  // under which these processes speak of it; another one each time
};

struct Put {
  absl::Status failure = {};              // why not all of it is there; the same in all processes
  std::vector<std::string> reports = {};  // of rank 0: what was passed over
};

// Rank 0's part. Copies ROOT/iteration_…, which is whole, there, in place of one of the same iteration; before it those of earlier iterations that
// are newer than all that are there, which a run could not put there. One of these that is damaged is passed over and adds a report.
// `damaged`: iterations of those there that count for nothing; without those that have been replaced, when it returns. AlreadyExists:
// another run, or attempt, has the place by now (BucketClaim::Check). Other errors: the run has ended.
absl::StatusOr<Put> PutIntoBucket(const BucketClaim& claim, const std::string& root, std::int64_t iteration,
                                  std::set<std::int64_t>* damaged, const PutTeam& team);

// The part of every other process. `prefix`: of the claim. Errors as above.
absl::StatusOr<Put> HelpToPut(const std::string& prefix, const PutTeam& team);

}  // namespace engine::train
