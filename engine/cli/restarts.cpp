#include "engine/cli/restarts.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "engine/checkpoint/store.h"
#include "engine/executor/memory_checkpoint.h"

namespace engine::cli {

Restarts::Restarts(const RestartOptions& options) : options_(options), began_(Newest()) {}

std::optional<std::chrono::milliseconds> Restarts::Next() {
  if (options_.most == 0) return std::nullopt;
  const std::int64_t newest = Newest();
  const bool gets_on = newest > began_ && newest != failed_at_;
  in_vain_ = gets_on ? 1 : in_vain_ + 1;
  failed_at_ = newest;
  if (in_vain_ >= kMostInVain) {
    why_ = fmt::format("{} failures without a checkpoint between them", in_vain_);
  } else if (count_ == options_.most) {
    why_ = fmt::format("all {} restarts are used up", options_.most);
  }
  if (!why_.empty()) return std::nullopt;
  ++count_;
  if (in_vain_ == kMostInVain - 1) ForgetMemory();
  began_ = Newest();
  constexpr std::chrono::milliseconds kFirst = std::chrono::seconds(1);
  constexpr std::chrono::milliseconds kLongest = std::chrono::minutes(1);
  if (gets_on && options_.alone) return std::chrono::milliseconds(0);
  return std::min(kLongest, kFirst * (1 << (in_vain_ - 1)));
}

std::int64_t Restarts::Newest() const {
  const absl::StatusOr<std::vector<std::int64_t>> iterations =
      checkpoint::ListIterations(options_.checkpoints);
  const std::int64_t on_disk = iterations.ok() && !iterations->empty() ? iterations->back() : -1;
  std::int64_t in_memory = options_.memory_files.empty() ? -1 : std::numeric_limits<std::int64_t>::max();
  for (const int file : options_.memory_files) {
    const std::vector<executor::MemoryCheckpoint::Kept> kept = executor::MemoryCheckpoint::In(file);
    in_memory = std::min(in_memory, kept.empty() ? -1 : kept.back().iteration);
  }
  return std::max(on_disk, in_memory);
}

void Restarts::ForgetMemory() const {
  for (const int file : options_.memory_files) (void)!ftruncate(file, 0);
}

}  // namespace engine::cli
