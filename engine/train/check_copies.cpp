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

std::string ToText(const ExchangeVerdict& verdict) {
  return nlohmann::json{{"host", verdict.host},           {"differs", verdict.differs},
                        {"iteration", verdict.iteration}, {"place", verdict.place},
                        {"exchange", verdict.exchange},   {"got", verdict.got}}
      .dump();
}

absl::StatusOr<ExchangeVerdict> VerdictFromText(std::int64_t rank, const std::string& text) {
  ASSIGN_OR_RETURN(const nlohmann::json json,
                   ParseJson(text, fmt::format("what rank {} says of its exchanges", rank)));
  return ExchangeVerdict{.rank = rank,
                         .host = json["host"].get<std::string>(),
                         .differs = json["differs"].get<bool>(),
                         .iteration = json["iteration"].get<std::int64_t>(),
                         .place = json["place"].get<std::int64_t>(),
                         .exchange = json["exchange"].get<std::string>(),
                         .got = json["got"].get<bool>()};
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
  const absl::Status compared = CheckCopies(run, iteration);
  ASSIGN_OR_RETURN(const std::string text,
                   TextOfRank0(run,
                               fmt::format("copies after iteration {} are compared{}", iteration,
                                           failure.ok() ? "" : ", once more"),
                               compared.ok() ? "" : std::string(Message(compared))));
  if (text.empty()) return failure;
  return WithVerdict(Internal("{}{}{}", failure.ok() ? "" : Message(failure), failure.ok() ? "" : "\n", text),
                     Verdict::kMachine);
}

absl::Status NameExchange(const RunContext& run, std::int64_t iteration,
                          const std::vector<ExchangeRecords>& exchanges, const absl::Status& failure) {
  run.Begin(launch::Work::kAlone,
            fmt::format("comparing what ranks exchanged up to iteration {}", iteration));
  std::vector<ExchangeVerdict> ranks;
  for (const auto& rank : run.ranks->executors()) {
    ExchangeVerdict& verdict = ranks.emplace_back();
    verdict.rank = rank->rank();
    verdict.host = HostName();
    const std::optional<ExchangeRecords::Difference>& first = exchanges[run.IndexOf(*rank)].first();
    if (!first) continue;
    verdict.differs = true;
    verdict.iteration = first->iteration;
    verdict.place = first->place;
    verdict.exchange = rank->trace()->NameOf(first->exchange);
    verdict.got = first->got;
  }
  const std::string key = fmt::format("exchanges up to iteration {}", iteration);
  if (run.processes != nullptr) {
    ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                     TextsOfRanks(key, run.Leads() ? "" : ToText(ranks[0]), ranks[0].rank,
                                  run.plan.mesh.world(), *run.processes));
    for (const std::string& text : texts) {
      ASSIGN_OR_RETURN(ranks.emplace_back(), VerdictFromText(std::ssize(ranks), text));
    }
  }
  ASSIGN_OR_RETURN(const std::string blame,
                   TextOfRank0(run, key + ": whose fault", Blame(ranks, run.plan.mesh.pp == 1)));
  return WithVerdict(Internal("{}\n{}", Message(failure), blame), Verdict::kMachine);
}

}  // namespace engine::train
