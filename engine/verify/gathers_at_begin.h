// Part of VerifyShards: parameters of which the other ranks' shards are gathered when a program begins.
#pragma once

#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>

#include <cstdint>

#include "engine/base/status.h"
#include "engine/verify/sharded_buckets.h"

namespace engine::verify {

// Shows that the first segment gathers each such bucket at most once, all of it and behind the passes, and
// that a pass reads its parameters when it has waited for that. The segments of each kind of program are
// shown to it in the order of the passes.
class GathersAtBegin {
 public:
  explicit GathersAtBegin(const ShardedBuckets& buckets) : buckets_(buckets) {}

  void StartProgram() { begun_.clear(); }
  void StartSegment(const plan::Segment& segment);
  void EndSegment();

  // Whether the segment is the first of programs of a kind.
  bool Begins() const;
  // The bucket is gathered.
  absl::Status Gather(const plan::Instruction& instruction, std::size_t b);
  // The segment waits for the bucket. Whether its gather has begun.
  bool Join(std::size_t b);
  absl::Status Read(const plan::BufferRef& input) const;

 private:
  bool Runs(std::int32_t segment) const;
  bool IsJoined(std::size_t b) const;

  const ShardedBuckets& buckets_;
  const plan::Segment* segment_ = nullptr;
  absl::flat_hash_set<std::size_t> begun_;   // buckets, in the program
  absl::flat_hash_set<std::size_t> joined_;  // buckets, in the segment
  absl::flat_hash_map<std::int32_t, absl::flat_hash_set<std::size_t>> joined_forward_;  // by chunk
};

}  // namespace engine::verify
