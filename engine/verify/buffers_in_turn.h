// Part of VerifyShards: the buffers that buckets take in turn for what they keep in shards.
#pragma once

#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>

#include <cstdint>

#include "engine/base/status.h"
#include "engine/verify/sharded_buckets.h"

namespace engine::verify {

// Whose such a buffer is, and how far it is on its way to being whole.
struct BufferInTurn {
  enum class Phase { kFree, kSumming, kCopied, kExchanging, kWhole };
  Phase phase = Phase::kFree;
  std::size_t bucket = 0;
};

// The buffers of whole gradients, or those of whole parameters, in one segment. Shows of an exchange that it
// is of all of the bucket whose buffer it is, over the axes along which the bucket's shards lie.
class BuffersInTurn {
 public:
  using Phase = BufferInTurn::Phase;

  // `whole`: Bucket::gradient or Bucket::parameter.
  BuffersInTurn(const ShardedBuckets& buckets, plan::BufferRef plan::Bucket::*whole)
      : buckets_(buckets), whole_(whole) {}

  void Clear() { buffers_.clear(); }
  // The buffer that a bucket takes; and null where none has taken it in this segment.
  BufferInTurn& Of(std::size_t b) { return buffers_[(buckets_.At(b).*whole_).offset]; }
  const BufferInTurn* Find(std::size_t b) const;
  // A buffer in another phase, or null.
  const BufferInTurn* FindOther(Phase phase) const;

  // The exchange of a buffer that is in the phase `wanted`. `missing`: what is not there, if it is not.
  absl::Status Exchange(const plan::Instruction& instruction, Phase wanted, const char* missing);
  // The segment waits for the bucket. Whether an exchange of it was under way.
  bool Join(std::size_t b);

 private:
  const ShardedBuckets& buckets_;
  plan::BufferRef plan::Bucket::*whole_;
  absl::flat_hash_map<std::int64_t, BufferInTurn> buffers_;  // by offset
};

// Shows of each segment that a bucket's buffer holds its gradients alone until these are reduced once and
// added to the shard that is kept. The segment's instructions are shown to it in order.
class GradientsInTurn {
 public:
  explicit GradientsInTurn(const ShardedBuckets& buckets)
      : buckets_(buckets), buffers_(buckets, &plan::Bucket::gradient) {}

  void StartSegment();
  // The k-th output is a gradient of the bucket.
  absl::Status Sum(const plan::Instruction& instruction, std::size_t k, std::size_t b);
  absl::Status Reduce(const plan::Instruction& instruction) {
    return buffers_.Exchange(instruction, BufferInTurn::Phase::kSumming, "no gradients to reduce");
  }
  bool Join(std::size_t b) { return buffers_.Join(b); }
  // What a microbatch gave, to what is kept. The first overwrites what the iteration before left.
  absl::Status Add(const plan::Instruction& instruction);
  absl::Status EndSegment(const plan::Segment& segment) const;

 private:
  const ShardedBuckets& buckets_;
  BuffersInTurn buffers_;
  absl::flat_hash_set<std::int32_t> summed_;  // parameters
};

// Shows of each segment that parameters are read when all of their bucket has been gathered from its shards,
// and waited for, and that each gather has its reader's wait. The segment's instructions are shown to it in
// order.
class ParametersInTurn {
 public:
  explicit ParametersInTurn(const ShardedBuckets& buckets)
      : buckets_(buckets), buffers_(buckets, &plan::Bucket::parameter) {}

  void StartSegment() { buffers_.Clear(); }
  // This rank's parameters to their place among those of all.
  absl::Status Copy(const plan::Instruction& instruction);
  absl::Status Gather(const plan::Instruction& instruction) {
    return buffers_.Exchange(instruction, BufferInTurn::Phase::kCopied, "no shard to gather");
  }
  bool Join(std::size_t b) { return buffers_.Join(b); }
  absl::Status Read(const plan::BufferRef& input) const;
  absl::Status EndSegment(const plan::Segment& segment) const;

 private:
  const ShardedBuckets& buckets_;
  BuffersInTurn buffers_;
};

}  // namespace engine::verify
