#include "engine/cli/host_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "engine/base/memory_copies.h"
#include "engine/base/memory_limit.h"
#include "engine/base/status.h"

namespace engine::cli {

absl::StatusOr<HostMemory> HostMemory::Make(std::int64_t ranks, const std::string& token,
                                            std::int64_t others) {
  HostMemory memory;
  RETURN_IF_ERROR(memory.MakeFiles(ranks));
  if (token.empty()) return memory;
  ASSIGN_OR_RETURN(memory.server_, launch::CopyServer::Start(token, others, MemoryOfProcess().bytes));
  return memory;
}

absl::Status HostMemory::MakeFiles(std::int64_t ranks) {
  files_.clear();
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    files_.emplace_back(memfd_create("engine state", MFD_CLOEXEC));
    if (!files_.back().open())
      return ResourceExhausted("there is no file in memory for a rank's state: {}", std::strerror(errno));
  }
  return absl::OkStatus();
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

absl::Status HostMemory::SetRanks(std::int64_t first, std::int64_t count) {
  const bool is_new = first_rank_ >= 0 && (first_rank_ != first || ranks_ != count);
  if (is_new && server_ == nullptr) Forget();
  if (is_new && server_ != nullptr) {
    const auto most = static_cast<std::int64_t>(files_.size());
    server_->SetAside(first_rank_, std::exchange(files_, {}));
    RETURN_IF_ERROR(MakeFiles(most));
  }
  first_rank_ = first;
  ranks_ = count;
  if (server_ != nullptr) server_->SetOwn(first, files());
  return absl::OkStatus();
}

}  // namespace engine::cli
