// What a host keeps in memory for ranks that are started again: copies of the states of its own ranks, and of another host's.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/launch/copy_server.h"
#include "engine/launch/socket.h"

namespace engine::cli {

class HostMemory {
 public:
  HostMemory() = default;  // nothing is kept
  // Files for so many ranks, the most that this host has. With a token, other hosts get them (launch/copy_server.h), and it keeps copies of
  // `others` of their ranks.
  static absl::StatusOr<HostMemory> Make(std::int64_t ranks, const std::string& token, std::int64_t others);

  std::vector<int> files() const;  // of the ranks that this host has now, in order (base/memory_copies.h)
  int copies_port() const { return server_ == nullptr ? 0 : server_->port(); }
  // The newest iteration of which each rank of this host has a copy here; -1: there is none.
  std::int64_t Newest() const;

  // The ranks of this host from now on, as many as there are files at most. What is here of others is given out to other hosts, and forgotten
  // where there are none. Error: there are no more files.
  absl::Status SetRanks(std::int64_t first, std::int64_t count);
  void Forget();  // all copies

 private:
  absl::Status MakeFiles(std::int64_t ranks);

  std::vector<launch::Descriptor> files_;
  std::unique_ptr<launch::CopyServer> server_;
  std::int64_t first_rank_ = -1, ranks_ = 0;  // -1: none yet
};

}  // namespace engine::cli
