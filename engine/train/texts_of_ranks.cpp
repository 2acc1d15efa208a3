#include "engine/train/texts_of_ranks.h"

#include <cstddef>

#include "engine/base/status.h"

namespace engine::train {
namespace {

// As much as a value of the rendezvous may have, and some bytes less.
constexpr std::size_t kMostBytes = std::size_t{512} << 10;

std::string RankKey(const std::string& key, std::int64_t rank) {
  return fmt::format("{} of rank {}", key, rank);
}

std::string PartKey(const std::string& key, std::size_t part) {
  return fmt::format("{}, part {}", key, part);
}

absl::Status Tell(const std::string& key, const std::string& text, launch::Client& processes) {
  const std::size_t parts = 1 + text.size() / kMostBytes;
  for (std::size_t part = 1; part < parts; ++part)
    RETURN_IF_ERROR(processes.Set(PartKey(key, part), text.substr(part * kMostBytes, kMostBytes)));
  return processes.Set(key, fmt::format("{} {}", parts, text.substr(0, kMostBytes)));
}

// `first`: what the key has.
absl::StatusOr<std::string> Whole(const std::string& key, const std::string& first,
                                  launch::Client& processes) {
  const std::size_t blank = first.find(' ');
  const std::size_t parts = std::stoull(first);
  std::string text = first.substr(blank + 1);
  for (std::size_t part = 1; part < parts; ++part) {
    ASSIGN_OR_RETURN(const std::string more, processes.Take(PartKey(key, part)));
    text += more;
  }
  return text;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> TextsOfRanks(const std::string& key, const std::string& own,
                                                      std::int64_t rank, std::int64_t world,
                                                      launch::Client& processes) {
  if (rank != 0) {
    RETURN_IF_ERROR(Tell(RankKey(key, rank), own, processes));
    return std::vector<std::string>();
  }
  std::vector<std::string> keys;
  for (std::int64_t other = 1; other < world; ++other) keys.push_back(RankKey(key, other));
  ASSIGN_OR_RETURN(std::vector<std::string> texts, processes.TakeAll(keys));
  for (std::size_t i = 0; i < texts.size(); ++i) {
    ASSIGN_OR_RETURN(texts[i], Whole(keys[i], texts[i], processes));
  }
  return texts;
}

absl::StatusOr<std::string> TextOfRank0(const RunContext& run, const std::string& key,
                                        const std::string& own) {
  if (run.processes == nullptr) return own;
  if (!run.Leads()) return run.processes->Get(key);
  RETURN_IF_ERROR(run.processes->Set(key, own));
  return own;
}

}  // namespace engine::train
