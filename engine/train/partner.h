// Another host that has a rank's state in its memory, so that the state outlives this rank's host.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/base/memory_copies.h"
#include "engine/launch/copy_server.h"
#include "engine/plan/snapshot.h"

namespace engine::train {

struct RunContext;

// The one rank of this process and its keeper. Safe from one thread at a time.
class Partner {
 public:
  // All ranks call it at once. Null: nothing outlives this rank's host.
  static absl::StatusOr<std::unique_ptr<Partner>> Find(const RunContext& run, const std::string& tag);

  bool is_sent() const { return keeper_.is_sent; }
  // What it has of the rank; nothing where it cannot be reached, which is said.
  std::vector<MemoryCopies::Kept> List();
  // Brings one of these into this host's file of the rank.
  absl::Status Fetch(std::int64_t iteration, int file);
  // What List has found of other iterations (−1: of all) the run does not go on from: it comes to them again, with another state.
  void ForgetAllBut(std::int64_t iteration) {
    std::erase_if(found_, [&](std::int64_t found) { return found != iteration; });
  }
  // Has the keeper take a copy, unless List has found it there. Where it does not, that is said, and nothing is sent any more.
  void Store(const MemoryCopies& copies, int place);

 private:
  Partner(const plan::Keeper& keeper, std::int64_t own_rank, const launch::Endpoint& server,
          std::string token, std::string tag);
  absl::StatusOr<launch::CopyClient*> Connect();
  void Warn(const absl::Status& why) const;

  const plan::Keeper keeper_;
  const std::int64_t own_rank_;
  const launch::Endpoint server_;
  const std::string token_, tag_;
  std::optional<launch::CopyClient> client_;  // from when it is first needed
  std::set<std::int64_t> found_;              // iterations, by List
  bool given_up_ = false;
};

}  // namespace engine::train
