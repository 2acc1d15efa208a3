#include "engine/train/memory_checkpoints.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/base/hash.h"
#include "engine/base/memory_limit.h"
#include "engine/base/print.h"
#include "engine/base/units.h"
#include "engine/plan/snapshot.h"
#include "engine/recipe/print.h"
#include "engine/recipe/saving.h"

namespace engine::train {
namespace {

using executor::MemoryCheckpoint;

bool Keeps(const RunContext& run) {
  return run.recipe.checkpoint.memory && !run.options.memory_files.empty();
}

// Runs whose copies fit each other's arenas, and that mean the same.
std::string TagOf(const RunContext& run) {
  return HashHex(fmt::format("{}\n{}\n{}", run.plan.hash, recipe::ToToml(run.recipe),
                             nlohmann::json(run.fingerprints).dump()));
}

// What all ranks of this process have copies of, by iteration.
std::map<std::int64_t, std::string> KeptHere(const RunContext& run) {
  std::map<std::int64_t, std::string> common;
  const std::string tag = TagOf(run);
  for (std::size_t i = 0; i < run.options.memory_files.size(); ++i) {
    std::map<std::int64_t, std::string> found;
    for (const MemoryCheckpoint::Kept& kept : MemoryCheckpoint::In(run.options.memory_files[i], tag)) {
      if (i == 0 || common.contains(kept.iteration)) found.emplace(kept.iteration, kept.note);
    }
    common = std::move(found);
  }
  return common;
}

std::string KeyOf(std::int64_t rank) { return fmt::format("iterations in the memory of rank {}", rank); }

// Of those that this process offers, the newest that all others have as well; −1: there is none.
absl::StatusOr<std::int64_t> NewestOfAll(const RunContext& run, std::vector<std::int64_t> offered,
                                         std::int64_t least) {
  constexpr const char* kChosen = "resume from memory";
  launch::Client* const processes = run.processes;
  std::erase_if(offered, [&](std::int64_t iteration) { return iteration < least; });
  if (processes == nullptr) return offered.empty() ? -1 : offered.back();
  if (!run.Leads()) {
    RETURN_IF_ERROR(processes->Set(KeyOf(*run.device.rank), nlohmann::json(offered).dump()));
    ASSIGN_OR_RETURN(const std::string chosen, processes->Get(kChosen));
    return std::stoll(chosen);
  }
  for (std::int64_t rank = 1; rank < run.plan.mesh.world(); ++rank) {
    ASSIGN_OR_RETURN(const std::string text, processes->Take(KeyOf(rank)));
    const auto theirs = nlohmann::json::parse(text).get<std::vector<std::int64_t>>();
    std::erase_if(offered, [&](std::int64_t iteration) {
      return std::find(theirs.begin(), theirs.end(), iteration) == theirs.end();
    });
  }
  const std::int64_t newest = offered.empty() ? -1 : offered.back();
  RETURN_IF_ERROR(processes->Set(kChosen, fmt::format("{}", newest)));
  return newest;
}

}  // namespace

absl::StatusOr<std::optional<Position>> AgreeOnKept(const RunContext& run, std::int64_t least) {
  if (!run.recipe.checkpoint.memory) return std::nullopt;
  const std::map<std::int64_t, std::string> here = KeptHere(run);
  std::vector<std::int64_t> offered;
  offered.reserve(here.size());
  for (const auto& [iteration, note] : here) offered.push_back(iteration);
  ASSIGN_OR_RETURN(const std::int64_t newest, NewestOfAll(run, std::move(offered), least));
  if (newest < 0) return std::nullopt;
  const auto found = here.find(newest);
  if (found == here.end()) return Internal("no copy of iteration {} in this host's memory", newest);
  ASSIGN_OR_RETURN(const Position position, Position::FromText(found->second));
  return position;
}

absl::Status PrepareKeeping(const RunContext& run, const std::optional<Position>& kept) {
  if (run.recipe.checkpoint.memory && !Keeps(run) && run.Leads()) {
    Print(stderr,
          "note: checkpoint.memory has no effect: no memory outlives these ranks, which --processes "
          "--max-restarts N would start again\n");
  }
  if (!Keeps(run)) return absl::OkStatus();
  const auto& ranks = run.ranks->executors();
  std::int64_t bytes = 0;
  for (const auto& rank : ranks) {
    bytes += rank->memory_checkpoint().bytes();
    if (recipe::SavesBeside(run.recipe)) bytes += rank->snapshot().bytes();
  }
  const MemoryLimit limit = MemoryOfProcess(run.options.processes);
  if (bytes > limit.bytes) {
    return ResourceExhausted(
        "copies of the state in the host's memory, with those of checkpoints beside training, need {}, but "
        "{} {} of "
        "memory\n"
        "    hint: checkpoint.memory = false needs none, and a run that was interrupted goes on from its "
        "newest "
        "checkpoint on disk",
        FormatBytes(bytes), limit.source, FormatBytes(limit.bytes));
  }
  const std::string tag = TagOf(run);
  return run.ranks->Run([&](executor::RankExecutor& rank) {
    return rank.memory_checkpoint().Open(run.options.memory_files[run.IndexOf(rank)], tag,
                                         kept ? kept->iteration : -1);
  });
}

absl::Status Keep(const RunContext& run, const Position& position) {
  const MemoryCheckpoint::Kept kept{position.iteration, position.ToText()};
  return run.ranks->Run([&](executor::RankExecutor& rank) { return rank.memory_checkpoint().Begin(kept); });
}

}  // namespace engine::train
