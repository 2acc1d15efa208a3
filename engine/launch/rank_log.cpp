#include "engine/launch/rank_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "engine/base/print.h"

namespace engine::launch {
namespace {

constexpr const char* kReason = "engine run: ";

void PrintOf(std::int64_t rank, std::FILE* to, const std::string& text) {
  Print(to, "{}{}\n", rank == 0 ? "" : fmt::format("rank {}: ", rank), text);
  std::fflush(to);
}

}  // namespace

void RankLog::Take(std::int64_t rank, bool is_error, const std::string& line) {
  if (!is_error) return PrintOf(rank, stdout, line);
  if (line.starts_with(kReason)) {
    if (held_.empty()) since_ = Clock::now();
    held_.push_back({rank, line});
    after_reason_[rank] = true;
  } else if (line.starts_with("    ") && after_reason_.contains(rank)) {
    const auto own =
        std::find_if(held_.rbegin(), held_.rend(), [&](const Reason& reason) { return reason.rank == rank; });
    if (own != held_.rend()) {
      own->text += "\n" + line;
    } else if (after_reason_[rank]) {
      PrintOf(0, stderr, line);
    }
  } else {
    after_reason_.erase(rank);
    PrintOf(rank, stderr, line);
  }
}

void RankLog::Tell(std::int64_t rank, const std::string& verdict) {
  told_ = true;
  std::stable_partition(held_.begin(), held_.end(),
                        [&](const Reason& reason) { return reason.rank == rank; });
  const auto others =
      std::find_if(held_.begin(), held_.end(), [&](const Reason& reason) { return reason.rank != rank; });
  held_.insert(others, {0, kReason + verdict});
  Flush();
}

void RankLog::Flush() {
  for (const Reason& reason : std::exchange(held_, {})) {
    const bool is_new = said_.insert(reason.text).second;
    if (is_new) PrintOf(reason.rank, stderr, reason.text);
    if (after_reason_.contains(reason.rank)) after_reason_[reason.rank] = is_new;
  }
}

}  // namespace engine::launch
