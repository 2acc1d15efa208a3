#include "engine/checkpoint/layout.h"

#include <fmt/format.h>
#include <unistd.h>

#include <charconv>
#include <filesystem>
#include <system_error>

namespace engine::checkpoint {
namespace {

constexpr std::string_view kWritingPrefix = ".writing-";
constexpr std::string_view kReplacedPrefix = ".replaced-";
constexpr std::string_view kDeletingPrefix = ".deleting-";
constexpr std::string_view kIterationPrefix = "iteration_";
constexpr std::string_view kRankPrefix = "rank_";

// The decimal number that `text` starts with, if any.
std::optional<std::int64_t> LeadingNumber(std::string_view text) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0) return std::nullopt;
  return number;
}

std::string TemporaryPath(const std::string& root, std::string_view prefix, std::int64_t iteration) {
  return JoinPath(root, fmt::format("{}{}-{}", prefix, IterationName(iteration), getpid()));
}

}  // namespace

std::string IterationName(std::int64_t iteration) {
  return fmt::format("{}{:07d}", kIterationPrefix, iteration);
}

std::optional<std::int64_t> ParseIterationName(std::string_view name) {
  if (!name.starts_with(kIterationPrefix)) return std::nullopt;
  const std::optional<std::int64_t> number = LeadingNumber(name.substr(kIterationPrefix.size()));
  if (!number || IterationName(*number) != name) return std::nullopt;
  return number;
}

std::string IterationPath(const std::string& root, std::int64_t iteration) {
  return JoinPath(root, IterationName(iteration));
}

std::string ShardName(int rank) {
  const std::string name = fmt::format("{}{:05d}.h5", kRankPrefix, rank);
  return rank < kRanksInFolder ? name : fmt::format("ranks_{:03d}/{}", rank / kRanksInFolder, name);
}

std::optional<int> RankOfShardName(std::string_view name) {
  const std::string_view file = name.substr(name.rfind('/') + 1);  // all of it where there is no folder
  if (!file.starts_with(kRankPrefix)) return std::nullopt;
  const std::optional<std::int64_t> number = LeadingNumber(file.substr(kRankPrefix.size()));
  if (!number || *number >= kMostRanks) return std::nullopt;
  const int rank = static_cast<int>(*number);
  return ShardName(rank) == name ? std::optional(rank) : std::nullopt;
}

std::string DatasetName(const std::string& tensor, const Box& box) {
  std::string name = tensor + "@";
  for (int dim = 0; dim < box.start.rank(); ++dim) {
    if (dim > 0) name += ',';
    name += std::to_string(box.start[dim]);
  }
  return name;
}

std::string JoinPath(const std::string& folder, std::string_view name) {
  std::string path = folder;
  if (!path.ends_with('/')) path += '/';
  return path.append(name);
}

std::string WritingPath(const std::string& root, std::int64_t iteration) {
  return TemporaryPath(root, kWritingPrefix, iteration);
}
std::string ReplacedPath(const std::string& root, std::int64_t iteration) {
  return TemporaryPath(root, kReplacedPrefix, iteration);
}
std::string DeletingPath(const std::string& root, std::int64_t iteration) {
  return TemporaryPath(root, kDeletingPrefix, iteration);
}

std::string OtherPath(const std::string& root, std::int64_t iteration, int n) {
  return fmt::format("{}.other-{}", IterationPath(root, iteration), n);
}

std::optional<std::int64_t> IterationOfPath(const std::string& folder) {
  std::error_code error;
  std::filesystem::path path = std::filesystem::absolute(folder, error).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();  // "a/b/" is a/b
  return ParseIterationName(path.filename().string());
}

std::optional<Leftover> ParseLeftoverName(std::string_view name) {
  struct Row {
    std::string_view prefix;
    LeftoverKind kind;
  };
  for (const Row& row :
       {Row{kWritingPrefix, LeftoverKind::kWriting}, Row{kReplacedPrefix, LeftoverKind::kReplaced},
        Row{kDeletingPrefix, LeftoverKind::kDeleting}}) {
    if (!name.starts_with(row.prefix)) continue;
    const std::string_view rest = name.substr(row.prefix.size());
    const std::size_t dash = rest.rfind('-');
    if (dash == std::string_view::npos || !LeadingNumber(rest.substr(dash + 1))) continue;
    const std::optional<std::int64_t> iteration = ParseIterationName(rest.substr(0, dash));
    if (iteration) return Leftover{row.kind, *iteration};
  }
  return std::nullopt;
}

}  // namespace engine::checkpoint
