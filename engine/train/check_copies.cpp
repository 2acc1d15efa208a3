#include "engine/train/check_copies.h"

#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/host_name.h"
#include "engine/base/json.h"
#include "engine/state/copies.h"
#include "engine/train/outcome.h"
#include "engine/train/save.h"
#include "engine/train/texts_of_ranks.h"

namespace engine::train {
namespace {

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
    ASSIGN_OR_RETURN(
        const std::vector<std::string> texts,
        TextsOfRanks(fmt::format("hashes after iteration {}", iteration), run.Leads() ? "" : ToText(ranks[0]),
                     ranks[0].rank, run.plan.mesh.world(), *run.processes));
    if (!run.Leads()) return absl::OkStatus();
    for (const std::string& text : texts) {
      ASSIGN_OR_RETURN(ranks.emplace_back(), FromText(std::ssize(ranks), text));
    }
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
