#include "engine/train/check_copies.h"

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/host_name.h"
#include "engine/base/json.h"
#include "engine/state/copies.h"
#include "engine/train/outcome.h"
#include "engine/train/save.h"

namespace engine::train {
namespace {

std::string HashesKey(std::int64_t rank, std::int64_t iteration) {
  return fmt::format("hashes of rank {} after iteration {}", rank, iteration);
}

std::string ToText(const state::RankHashes& hashes) {
  nlohmann::json pieces = nlohmann::json::array();
  for (const state::PieceHash& piece : hashes.pieces) pieces.push_back({piece.piece, piece.hash});
  return nlohmann::json{{"host", hashes.host}, {"pieces", std::move(pieces)}}.dump();
}

absl::StatusOr<state::RankHashes> FromText(std::int64_t rank, const std::string& text) {
  ASSIGN_OR_RETURN(const nlohmann::json json, ParseJson(text, fmt::format("the hashes of rank {}", rank)));
  state::RankHashes hashes{.rank = rank, .host = json["host"].get<std::string>(), .pieces = {}};
  for (const nlohmann::json& piece : json["pieces"])
    hashes.pieces.push_back({piece[0].get<std::string>(), piece[1].get<std::string>()});
  return hashes;
}

// Of what a rank tells of its hashes: as much as a value of the rendezvous may have, and some bytes less.
constexpr std::size_t kMostBytes = std::size_t{512} << 10;

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

// Adds those of the ranks of other processes.
absl::Status Collect(const RunContext& run, std::int64_t iteration, std::vector<state::RankHashes>* ranks) {
  std::vector<std::string> keys;
  for (std::int64_t rank = 1; rank < run.plan.mesh.world(); ++rank)
    keys.push_back(HashesKey(rank, iteration));
  ASSIGN_OR_RETURN(const std::vector<std::string> texts, run.processes->TakeAll(keys));
  for (size_t i = 0; i < texts.size(); ++i) {
    ASSIGN_OR_RETURN(const std::string text, Whole(keys[i], texts[i], *run.processes));
    ASSIGN_OR_RETURN(state::RankHashes hashes, FromText(static_cast<std::int64_t>(i) + 1, text));
    ranks->push_back(std::move(hashes));
  }
  return absl::OkStatus();
}

}  // namespace

bool CopiesAreCompared(const recipe::Recipe& recipe, std::int64_t iteration) {
  const std::int64_t interval = recipe.guard.hash_interval;
  return interval > 0 && (iteration % interval == 0 || CheckpointDue(recipe, iteration));
}

absl::Status CheckCopies(const RunContext& run, std::int64_t iteration) {
  run.Begin(launch::Work::kAlone, fmt::format("comparing weights after iteration {}", iteration));
  std::vector<state::RankHashes> ranks(run.ranks->executors().size());
  RETURN_IF_ERROR(run.ranks->Run([&](executor::RankExecutor& rank) -> absl::Status {
    state::RankHashes& hashes = ranks[run.IndexOf(rank)];
    hashes.rank = rank.rank();
    hashes.host = HostName();
    ASSIGN_OR_RETURN(hashes.pieces, state::HashWeights(run.plan, rank));
    return absl::OkStatus();
  }));
  if (run.processes != nullptr) {
    if (!run.Leads()) return Tell(HashesKey(ranks[0].rank, iteration), ToText(ranks[0]), *run.processes);
    RETURN_IF_ERROR(Collect(run, iteration, &ranks));
  }
  absl::Status compared = state::CompareCopies(ranks);
  if (compared.ok()) return compared;
  return WithVerdict(WithContext(compared, fmt::format("after iteration {}", iteration)), Verdict::kMachine);
}

absl::Status NameRanks(const RunContext& run, std::int64_t iteration, const absl::Status& failure) {
  absl::Status compared = CheckCopies(run, iteration);
  if (compared.ok() && run.processes != nullptr)
    compared = run.processes->Barrier(fmt::format("copies are compared after iteration {}", iteration));
  if (compared.ok() || failure.ok()) return failure.ok() ? compared : failure;
  return WithVerdict(Internal("{}\n{}", Message(failure), Message(compared)), Verdict::kMachine);
}

}  // namespace engine::train
