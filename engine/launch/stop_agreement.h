// After which iteration all ranks stop when one of them has asked for a stop.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace engine::launch {

// Each rank is asked which iteration it has begun last. No rank begins an iteration between its answer and
// the server's, so the furthest one is one that all can reach.
class StopAgreement {
 public:
  explicit StopAgreement(std::size_t world) : answers_(world) {}

  // A rank asks for a stop. Returns whether it is the first to do so, for whom all ranks are to be asked.
  bool Ask();
  // `begun`: the last iteration that this rank has begun. Returns the one after which all stop, when all
  // ranks have answered.
  std::optional<std::int64_t> TakeAnswer(std::int64_t rank, std::int64_t begun);

 private:
  bool asked_ = false;
  std::vector<std::optional<std::int64_t>> answers_;  // by rank
};

}  // namespace engine::launch
