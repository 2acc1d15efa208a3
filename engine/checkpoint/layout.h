// Every name that checkpoints have on disk. The format's prose twin is docs/checkpoint-format.md.
//
//   ROOT/iteration_0000100/rank_00000.h5 …           shards, one a writing rank
//   ROOT/iteration_0000100/ranks_001/rank_01000.h5 … from rank 1000 on, a folder for each thousand
//   ROOT/iteration_0000100/index.h5                  logical tensors, whole, as virtual datasets
//   ROOT/iteration_0000100/manifest.json             what makes the folder a checkpoint
//   ROOT/.writing-iteration_0000100-<pid>/           a checkpoint before its commit
//   ROOT/.replaced-iteration_0000100-<pid>/          the old one while a new one takes its place
//   ROOT/.deleting-iteration_0000100-<pid>/          one that is being pruned
//   ROOT/iteration_0000100.other-1/ …                what had that name and was of another iteration
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "engine/checkpoint/box.h"

namespace engine::checkpoint {

inline constexpr std::string_view kManifestName = "manifest.json";
inline constexpr std::string_view kIndexName = "index.h5";
inline constexpr int kMostRanks = 1'000'000;
inline constexpr int kRanksInFolder = 1000;  // many file systems are slow with folders of very many files

std::string IterationName(std::int64_t iteration);                           // "iteration_0000100"
std::optional<std::int64_t> ParseIterationName(std::string_view name);       // only names IterationName gives
std::string IterationPath(const std::string& root, std::int64_t iteration);  // ROOT/iteration_0000100
std::string ShardName(int rank);                            // "rank_00000.h5", "ranks_001/rank_01000.h5"
std::optional<int> RankOfShardName(std::string_view name);  // only names ShardName gives
std::string DatasetName(const std::string& tensor, const Box& box);  // "adam.m/layers.0.x@0,128"
std::string JoinPath(const std::string& folder, std::string_view name);

// Temporary folders of this process.
std::string WritingPath(const std::string& root, std::int64_t iteration);
std::string ReplacedPath(const std::string& root, std::int64_t iteration);
std::string DeletingPath(const std::string& root, std::int64_t iteration);

// The n-th name for a folder that stood in this checkpoint's place and holds another iteration.
std::string OtherPath(const std::string& root, std::int64_t iteration, int n);
// The iteration that a checkpoint's folder is named for; nullopt where it has a name of the user's.
std::optional<std::int64_t> IterationOfPath(const std::string& folder);

enum class LeftoverKind { kWriting, kReplaced, kDeleting };
struct Leftover {
  LeftoverKind kind;
  std::int64_t iteration;
};
std::optional<Leftover> ParseLeftoverName(std::string_view name);  // of any process

}  // namespace engine::checkpoint
