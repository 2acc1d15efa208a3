#include "engine/state/save.h"

#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "engine/base/core_limit.h"
#include "engine/base/parallel.h"
#include "engine/checkpoint/write.h"
#include "engine/executor/executor.h"
#include "engine/state/shard_exchange.h"
#include "engine/state/tensors.h"

namespace engine::state {
namespace {

using executor::RankExecutor;
using plan::Plan;

// What the rank writes, out of the copy of its state (executor/snapshot.h).
std::vector<checkpoint::PieceToWrite> PiecesToWrite(const Plan& plan,
                                                    const std::vector<checkpoint::TensorInfo>& tensors,
                                                    RankExecutor& executor) {
  std::vector<checkpoint::PieceToWrite> pieces;
  for (ArenaPiece& piece : PiecesOf(plan, tensors, executor)) {
    const bool is_narrow = piece.dtype != tensors[static_cast<size_t>(piece.tensor)].dtype;
    pieces.push_back({piece.tensor, std::move(piece.box), executor.snapshot().Of(piece.data),
                      is_narrow ? std::optional(piece.dtype) : std::nullopt});
  }
  return pieces;
}

std::string EndKey(const std::string& key) { return key + ", its end"; }

// The part of a process that is not rank 0's, which says under `key` where it writes, and in the end what has become of the checkpoint.
absl::StatusOr<Saved> WritePart(int rank, const std::vector<checkpoint::TensorInfo>& tensors,
                                const std::vector<checkpoint::PieceToWrite>& pieces, const std::string& key,
                                launch::Client& processes) {
  ASSIGN_OR_RETURN(const std::string begun, processes.Get(key));
  const absl::StatusOr<std::string> folder = Told(begun);
  if (!folder.ok()) return Saved{folder.status()};
  RETURN_IF_ERROR(SendShard(*folder, rank, tensors, pieces, key, processes));
  ASSIGN_OR_RETURN(const std::string ended, processes.Get(EndKey(key)));
  return Saved{Told(ended).status()};
}

// The part of rank 0's process. The folder is there until no rank writes into it any more.
absl::StatusOr<Saved> WriteAndCommit(const std::string& root, const checkpoint::Metadata& metadata,
                                     std::int64_t world, const std::vector<checkpoint::TensorInfo>& tensors,
                                     const std::vector<checkpoint::PieceToWrite>& pieces,
                                     const std::string& key, launch::Client& processes) {
  absl::StatusOr<checkpoint::Writer> writer = checkpoint::Writer::Begin(root, metadata, tensors);
  if (!writer.ok()) {
    RETURN_IF_ERROR(processes.Set(key, ToText(writer.status())));
    return Saved{writer.status()};
  }
  RETURN_IF_ERROR(processes.Set(key, ToText(std::filesystem::absolute(writer->folder()).string())));
  absl::Status failure;
  if (!pieces.empty()) failure.Update(InMemory([&] { return writer->WriteShard(0, pieces); }));
  for (std::int64_t other = 1; other < world; ++other)
    RETURN_IF_ERROR(ReceiveShard(static_cast<int>(other), key, processes, &*writer, &failure));
  if (failure.ok()) failure = writer->Commit();
  RETURN_IF_ERROR(processes.Set(EndKey(key), failure.ok() ? ToText("") : ToText(failure)));
  return Saved{failure};
}

// One process's part of a checkpoint of several.
absl::StatusOr<Saved> WriteTogether(const Plan& plan, const std::string& root,
                                    const checkpoint::Metadata& metadata, const std::string& key,
                                    RankExecutor& executor, launch::Client& processes) {
  const std::vector<checkpoint::TensorInfo> tensors = TensorsOf(plan);
  const std::vector<checkpoint::PieceToWrite> pieces = PiecesToWrite(plan, tensors, executor);
  if (executor.rank() != 0)
    return WritePart(static_cast<int>(executor.rank()), tensors, pieces, key, processes);
  return WriteAndCommit(root, metadata, plan.mesh.world(), tensors, pieces, key, processes);
}

// Of ranks that are threads of this process: a shard that cannot be written ends the save, and nothing else of theirs.
absl::Status WriteAlone(const Plan& plan, const std::string& root, const checkpoint::Metadata& metadata,
                        std::span<const std::unique_ptr<RankExecutor>> executors) {
  const std::vector<checkpoint::TensorInfo> tensors = TensorsOf(plan);
  ASSIGN_OR_RETURN(checkpoint::Writer writer, checkpoint::Writer::Begin(root, metadata, tensors));
  std::vector<absl::Status> statuses(executors.size());
  ParallelPieces(CoresOfProcess(), executors.size(), 1, [&](size_t i, size_t) {
    const std::vector<checkpoint::PieceToWrite> pieces = PiecesToWrite(plan, tensors, *executors[i]);
    if (pieces.empty()) return;
    statuses[i] = writer.WriteShard(static_cast<int>(executors[i]->rank()), pieces);
  });
  for (const absl::Status& status : statuses) RETURN_IF_ERROR(status);
  return writer.Commit();
}

}  // namespace

absl::Status BeginSave(Ranks& ranks) {
  return ranks.Run([](RankExecutor& executor) { return executor.snapshot().Begin(); });
}

absl::StatusOr<Saved> WriteSaved(const Plan& plan, const std::string& root,
                                 const checkpoint::Metadata& metadata, const std::string& key, Ranks& ranks,
                                 launch::Client* processes) {
  const std::vector<std::unique_ptr<RankExecutor>>& executors = ranks.executors();
  for (const auto& executor : executors) RETURN_IF_ERROR(executor->snapshot().Finish());
  absl::StatusOr<Saved> saved = processes != nullptr
                                    ? WriteTogether(plan, root, metadata, key, *executors.front(), *processes)
                                    : Saved{WriteAlone(plan, root, metadata, executors)};
  for (const auto& executor : executors) executor->snapshot().Drop();
  return saved;
}

absl::Status SaveCheckpoint(const Plan& plan, const std::string& root, const checkpoint::Metadata& metadata,
                            Ranks& ranks, launch::Client* processes) {
  RETURN_IF_ERROR(BeginSave(ranks));
  ASSIGN_OR_RETURN(
      const Saved saved,
      WriteSaved(plan, root, metadata, fmt::format("checkpoint {}", metadata.iteration), ranks, processes));
  return saved.failure;
}

}  // namespace engine::state
