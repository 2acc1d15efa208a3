// Where a stage keeps what outlives a segment: each such value has one place on a rank.
#pragma once

#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>
#include <absl/status/status.h>

#include <cstdint>

#include "engine/plan/plan.h"

namespace engine::verify {

// Shows that an instruction which reads or writes a parameter, the sum of its gradient, a derived value, a state
// or a metric does so at the one place of a stage that holds the value. The places are drawn anew from the
// stage's buckets, states and scalars.
class PersistentPlaces {
 public:
  PersistentPlaces(const plan::Plan& plan, std::int32_t stage);

  // An error if the stage does not hold the value of `ref`, or holds it at another place.
  absl::Status Check(const plan::BufferRef& ref) const;

  // Whether the value is a gradient in a buffer that other buckets take too: VerifyShards follows these.
  bool TakesTurns(std::int32_t value) const { return in_turns_.contains(value); }
  bool AnyTakesTurns() const { return !in_turns_.empty(); }

 private:
  using Places = absl::flat_hash_map<std::int32_t, plan::BufferRef>;

  Places MapBuckets(const plan::StagePlan& stage);
  void MapStates(const plan::StagePlan& stage);
  void MapValues(const plan::StagePlan& stage, const Places& parameters_at);

  const plan::Plan* plan_;
  std::int32_t index_;
  Places places_;                               // by value
  absl::flat_hash_set<std::int32_t> in_turns_;  // gradients in a buffer that others take too
};

}  // namespace engine::verify
