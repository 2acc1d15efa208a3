#include "engine/train/memory_checkpoints.h"

#include <absl/strings/numbers.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/memory_limit.h"
#include "engine/base/print.h"
#include "engine/base/units.h"
#include "engine/checkpoint/manifest.h"
#include "engine/plan/snapshot.h"
#include "engine/recipe/saving.h"
#include "engine/train/guard_notes.h"
#include "engine/train/texts_of_ranks.h"

namespace engine::train {
namespace {

std::string OwnTag(const RunContext& run) { return TagOf(run, run.recipe, run.plan); }

// What all ranks of this process have copies of, by iteration.
std::map<std::int64_t, std::string> KeptHere(const RunContext& run) {
  std::map<std::int64_t, std::string> common;
  const std::string tag = OwnTag(run);
  for (std::size_t i = 0; i < run.options.memory_files.size(); ++i) {
    std::map<std::int64_t, std::string> found;
    for (const MemoryCopies::Kept& kept : MemoryCopies::In(run.options.memory_files[i], tag)) {
      if (i == 0 || common.contains(kept.iteration)) found.emplace(kept.iteration, kept.note);
    }
    common = std::move(found);
  }
  return common;
}

std::string KeyOf(std::int64_t rank) { return fmt::format("iterations in the memory of rank {}", rank); }

// What a process has to say, and what is agreed on.
struct Offer {
  bool keeps = false;                    // has files for copies
  std::vector<std::int64_t> iterations;  // of copies, in order
};

std::string ToText(const Offer& offer) { return nlohmann::json{offer.keeps, offer.iterations}.dump(); }

Offer OfferOf(const std::string& text) {
  const auto json = nlohmann::json::parse(text);
  return {json[0].get<bool>(), json[1].get<std::vector<std::int64_t>>()};
}

// What all processes have.
absl::StatusOr<Offer> Common(const RunContext& run, Offer offer) {
  constexpr const char* kCommon = "copies that all have in memory";
  launch::Client* const processes = run.processes;
  if (processes == nullptr) return offer;
  if (!run.Leads()) {
    RETURN_IF_ERROR(processes->Set(KeyOf(*run.device.rank), ToText(offer)));
    ASSIGN_OR_RETURN(const std::string common, processes->Get(kCommon));
    return OfferOf(common);
  }
  for (std::int64_t rank = 1; rank < run.plan.mesh.world(); ++rank) {
    ASSIGN_OR_RETURN(const std::string text, processes->Take(KeyOf(rank)));
    const Offer theirs = OfferOf(text);
    offer.keeps = offer.keeps && theirs.keeps;
    std::erase_if(offer.iterations, [&](std::int64_t iteration) {
      return std::find(theirs.iterations.begin(), theirs.iterations.end(), iteration) ==
             theirs.iterations.end();
    });
  }
  RETURN_IF_ERROR(processes->Set(kCommon, ToText(offer)));
  return offer;
}

absl::Status AgreeOnReturns(RunContext& run) {
  ASSIGN_OR_RETURN(
      const std::string text,
      TextOfRank0(run, "returns so far", fmt::format("{}", GuardNotes(run.options.out).Returns())));
  if (!absl::SimpleAtoi(text, &run.returns)) return DataLoss("no number of returns: {}", text);
  return absl::OkStatus();
}

// With what the guard remembers of that iteration.
absl::Status RecallGuard(const RunContext& run, Position* position) {
  if (!Remembers(run.recipe.guard)) return absl::OkStatus();
  std::string own;
  if (run.Leads()) {
    ASSIGN_OR_RETURN(own, GuardNotes(run.options.out).Read(position->iteration));
  }
  ASSIGN_OR_RETURN(const std::string remembered, TextOfRank0(run, "what the guard remembers", own));
  ASSIGN_OR_RETURN(position->guard, checkpoint::ParseGuard(remembered));
  return absl::OkStatus();
}

absl::StatusOr<std::optional<KeptState>> AgreeOnOtherLayout(const RunContext& run, std::int64_t least) {
  ASSIGN_OR_RETURN(std::unique_ptr<OtherLayout> other, OtherLayout::Agree(run, least));
  if (other == nullptr) return std::nullopt;
  KeptState kept;
  kept.position = other->position();
  kept.other_layout = std::move(other);
  RETURN_IF_ERROR(RecallGuard(run, &kept.position));
  return kept;
}

}  // namespace

absl::StatusOr<std::optional<KeptState>> AgreeOnKept(RunContext& run, std::int64_t least) {
  if (!run.recipe.checkpoint.memory) return std::nullopt;
  const bool remembers = Remembers(run.recipe.guard);
  if (remembers) RETURN_IF_ERROR(AgreeOnReturns(run));
  ASSIGN_OR_RETURN(run.partner, Partner::Find(run, OwnTag(run)));
  const std::map<std::int64_t, std::string> here = KeptHere(run);
  std::map<std::int64_t, std::string> known = here;
  if (run.partner != nullptr) {
    for (const MemoryCopies::Kept& kept : run.partner->List()) known.emplace(kept.iteration, kept.note);
  }
  Offer offer{.keeps = !run.options.memory_files.empty(), .iterations = {}};
  const GuardNotes notes(run.options.out);
  for (const auto& [iteration, note] : known) {
    if (iteration < least || run.options.from_disk) continue;
    if (remembers && run.Leads() && !notes.Read(iteration).ok()) continue;
    offer.iterations.push_back(iteration);
  }
  ASSIGN_OR_RETURN(const Offer common, Common(run, std::move(offer)));
  run.keeps_copies = common.keeps;
  if (run.partner != nullptr)
    run.partner->ForgetAllBut(common.iterations.empty() ? -1 : common.iterations.back());
  if (common.iterations.empty()) return AgreeOnOtherLayout(run, least);
  const std::int64_t newest = common.iterations.back();
  const auto found = known.find(newest);
  if (found == known.end()) return Internal("no copy of iteration {} in this host's memory", newest);
  if (!here.contains(newest)) {
    RETURN_IF_ERROR(run.partner->Fetch(newest, run.options.memory_files[0]));
    Print(stderr, "note: rank {} has its state after iteration {} from the memory of another host\n",
          *run.device.rank, newest);
  }
  KeptState kept;
  ASSIGN_OR_RETURN(kept.position, Position::FromText(found->second));
  RETURN_IF_ERROR(RecallGuard(run, &kept.position));
  return kept;
}

namespace {

// What is done with a rank's whole copy: it goes to another host, too. A rank's older copy makes place when all ranks have the newer one,
// so that all have copies of one iteration at every moment.
executor::MemoryCheckpoint::OnWhole Sharing(const RunContext& run, std::int64_t iteration) {
  return [&run, iteration](const MemoryCopies& copies, int place) {
    if (run.partner != nullptr) run.partner->Store(copies, place);
    if (run.processes == nullptr) return absl::OkStatus();
    return run.processes->Barrier(fmt::format("copies of iteration {} in memory", iteration));
  };
}

}  // namespace

absl::Status PrepareKeeping(const RunContext& run, std::int64_t kept) {
  if (run.recipe.checkpoint.memory && !run.keeps_copies && run.Leads()) {
    Print(stderr,
          "note: checkpoint.memory has no effect: no memory outlives these ranks, which --processes "
          "--max-restarts N would start again\n");
  }
  if (!run.keeps_copies) return absl::OkStatus();
  const auto& ranks = run.ranks->executors();
  std::int64_t bytes = 0;
  for (const auto& rank : ranks) {
    bytes += rank->memory_checkpoint().bytes();
    if (recipe::SavesBeside(run.recipe)) bytes += rank->snapshot().bytes();
  }
  // What this host keeps for another one is as much as the other keeps for this one.
  if (run.partner != nullptr && run.partner->is_sent()) bytes += ranks[0]->memory_checkpoint().bytes();
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
  const std::string tag = OwnTag(run);
  RETURN_IF_ERROR(run.ranks->Run([&](executor::RankExecutor& rank) {
    return rank.memory_checkpoint().Open(run.options.memory_files[run.IndexOf(rank)], tag, kept);
  }));
  if (kept < 0 || run.processes == nullptr) return absl::OkStatus();
  // The host that had it may be another one by now.
  ranks[0]->memory_checkpoint().HandOn(Sharing(run, kept));
  return absl::OkStatus();
}

absl::Status ForgetKept(RunContext& run) {
  if (!run.keeps_copies) return absl::OkStatus();
  for (const auto& rank : run.ranks->executors()) rank->memory_checkpoint().AwaitWhole();
  ++run.returns;
  if (run.partner != nullptr) run.partner->ForgetAllBut(-1);
  if (run.Leads()) RETURN_IF_ERROR(GuardNotes(run.options.out).WentBack(run.returns));
  // No copy has the new tag before the folder says that it is the one that counts.
  if (run.processes != nullptr)
    RETURN_IF_ERROR(run.processes->Barrier(fmt::format("return {} is written", run.returns)));
  const std::string tag = OwnTag(run);
  for (const int file : run.options.memory_files) {
    std::int64_t copy_bytes = 0;
    {
      ASSIGN_OR_RETURN(const MemoryCopies before, MemoryCopies::Open(file));
      copy_bytes = before.copy_bytes();
    }
    RETURN_IF_ERROR(MemoryCopies::Open(file, tag, copy_bytes).status());
  }
  return absl::OkStatus();
}

absl::Status Keep(const RunContext& run, const Position& position) {
  if (run.Leads() && Remembers(run.recipe.guard))
    RETURN_IF_ERROR(GuardNotes(run.options.out).Write(position.iteration, position.guard));
  const MemoryCopies::Kept kept{position.iteration, NoteOf(run, position)};
  run.Begin(launch::Work::kSaving, fmt::format("copying the state after iteration {}", position.iteration));
  const executor::MemoryCheckpoint::OnWhole sharing = Sharing(run, position.iteration);
  return run.ranks->Run(
      [&](executor::RankExecutor& rank) { return rank.memory_checkpoint().Begin(kept, sharing); });
}

}  // namespace engine::train
