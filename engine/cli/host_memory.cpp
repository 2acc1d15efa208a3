#include "engine/cli/host_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>

#include "engine/base/memory_copies.h"
#include "engine/base/memory_limit.h"
#include "engine/base/status.h"

namespace engine::cli {

absl::StatusOr<HostMemory> HostMemory::Make(std::int64_t ranks, const std::string& token) {
  HostMemory memory;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    memory.files_.emplace_back(memfd_create("engine state", MFD_CLOEXEC));
    if (!memory.files_.back().open())
      return ResourceExhausted("there is no file in memory for a rank's state: {}", std::strerror(errno));
  }
  if (token.empty()) return memory;
  ASSIGN_OR_RETURN(memory.server_, launch::CopyServer::Start(token, ranks, MemoryOfProcess().bytes));
  return memory;
}

std::vector<int> HostMemory::files() const {
  std::vector<int> numbers;
  const std::size_t count = std::min(files_.size(), static_cast<std::size_t>(ranks_));
  numbers.reserve(count);
  for (std::size_t i = 0; i < count; ++i) numbers.push_back(files_[i].number());
  return numbers;
}

std::int64_t HostMemory::Newest() const {
  std::int64_t newest = files().empty() ? -1 : std::numeric_limits<std::int64_t>::max();
  for (const int file : files()) {
    const std::vector<MemoryCopies::Kept> kept = MemoryCopies::In(file);
    newest = std::min(newest, kept.empty() ? -1 : kept.back().iteration);
  }
  return newest;
}

void HostMemory::Forget() {
  for (const launch::Descriptor& file : files_) (void)!ftruncate(file.number(), 0);
  if (server_ != nullptr) server_->Forget();
}

void HostMemory::SetRanks(std::int64_t first, std::int64_t count) {
  if (first_rank_ >= 0 && (first_rank_ != first || ranks_ != count)) Forget();
  first_rank_ = first;
  ranks_ = count;
  if (server_ != nullptr) server_->SetOwn(first, files());
}

}  // namespace engine::cli
