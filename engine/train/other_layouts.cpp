#include "engine/train/other_layouts.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <sstream>
#include <utility>
#include <vector>

#include "engine/base/hash.h"
#include "engine/base/print.h"
#include "engine/driver/compile_recipe.h"
#include "engine/launch/copy_server.h"
#include "engine/recipe/print.h"
#include "engine/train/guard_notes.h"

namespace engine::train {

using launch::CopyClient;

// A copy, and the host whose memory it is in: the place of its address among those of all hosts.
struct HeldCopy {
  CopyClient::Held copy;
  std::size_t host = 0;
};

namespace {

recipe::Recipe RecipeOf(const RunContext& run, const Layout& layout) {
  recipe::Recipe recipe = run.recipe;
  recipe.parallelism.dp = layout.dp;
  recipe.cluster.nodes = layout.nodes;
  recipe.training.pad_batch = layout.pad_batch;
  return recipe;
}

absl::StatusOr<Layout> LayoutOf(const std::string& note) {
  const nlohmann::json json = nlohmann::json::parse(note, nullptr, /*allow_exceptions=*/false);
  const auto number = [&](const char* key) {
    const bool is_there = json.is_object() && json.contains(key) && json[key].is_number_integer();
    return is_there ? json[key].get<std::int64_t>() : -1;
  };
  const Layout layout{.dp = number("dp"), .nodes = number("nodes"), .pad_batch = number("pad_batch") == 1};
  if (layout.dp < 1 || layout.nodes < 0) return DataLoss("a copy of no layout: {}", note);
  return layout;
}

}  // namespace

std::string TagOf(const RunContext& run, const recipe::Recipe& recipe, const plan::Plan& plan) {
  return HashHex(fmt::format("{}\n{}\n{}\n{}", plan.hash, recipe::HashOfValues(recipe),
                             nlohmann::json(run.fingerprints).dump(), run.returns));
}

std::string NoteOf(const RunContext& run, const Position& position) {
  nlohmann::json note = nlohmann::json::parse(position.ToText());
  note["dp"] = run.recipe.parallelism.dp;
  note["nodes"] = run.recipe.cluster.nodes;
  note["pad_batch"] = run.recipe.training.pad_batch ? 1 : 0;
  return note.dump();
}

// The hosts that keep copies, and what there is in their memory. Safe from any thread.
struct OtherLayout::Hosts {
  explicit Hosts(const RunContext& run) : token(run.options.host_copies.token), rank(*run.device.rank) {
    std::istringstream texts(run.options.host_copies.everywhere);
    for (std::string text; std::getline(texts, text, ',');) {
      const absl::StatusOr<launch::Endpoint> endpoint = launch::ParseEndpoint(text);
      endpoints.push_back(endpoint.ok() ? *endpoint : launch::Endpoint{});
    }
    clients.resize(endpoints.size());
  }

  // With the mutex held.
  absl::StatusOr<CopyClient*> Connect(std::size_t host) {
    if (!clients[host]) {
      ASSIGN_OR_RETURN(CopyClient client, CopyClient::Connect(endpoints[host], token, rank));
      clients[host].emplace(std::move(client));
    }
    return &*clients[host];
  }

  // Of hosts that are not reached, nothing.
  std::vector<HeldCopy> ListAll() {
    const std::lock_guard<std::mutex> lock(mutex);
    std::vector<HeldCopy> all;
    for (std::size_t host = 0; host < endpoints.size(); ++host) {
      const absl::StatusOr<CopyClient*> client = Connect(host);
      if (!client.ok()) continue;
      const absl::StatusOr<std::vector<CopyClient::Held>> copies = (*client)->ListAll();
      if (!copies.ok()) continue;
      for (const CopyClient::Held& copy : *copies) all.push_back({copy, host});
    }
    return all;
  }

  void ForgetOthers(const std::string& tag) {
    const std::lock_guard<std::mutex> lock(mutex);
    for (std::size_t host = 0; host < endpoints.size(); ++host) {
      const absl::StatusOr<CopyClient*> client = Connect(host);
      if (client.ok())
        (*client)->ForgetOthers(tag).IgnoreError();  // its memory is not used for anything else then
    }
  }

  // From the first host that has it and gives it.
  absl::Status Read(std::int64_t of_rank, std::int64_t offset, std::span<std::byte> out) {
    const std::lock_guard<std::mutex> lock(mutex);
    absl::Status last = NotFound("no host has a copy of the state of rank {}", of_rank);
    for (const HeldCopy& held : copies) {
      if (held.copy.rank != of_rank) continue;
      const absl::StatusOr<CopyClient*> client = Connect(held.host);
      last = client.ok() ? (*client)->Read(held.copy, offset, out) : client.status();
      if (last.ok()) return last;
      clients[held.host].reset();
      last = Unavailable("the copy of the state of rank {} at {}: {}", of_rank,
                         endpoints[held.host].ToString(), Message(last));
    }
    return last;
  }

  const std::string token;
  const std::int64_t rank;
  std::vector<launch::Endpoint> endpoints;
  std::mutex mutex;  // guards what follows
  std::vector<std::optional<CopyClient>> clients;
  std::vector<HeldCopy> copies;  // of the state that is read, the nearest ones first
};

namespace {

// Copies of one iteration, by ranks of one tag.
std::string CopiesText(const std::vector<HeldCopy>& copies) {
  nlohmann::json places = nlohmann::json::array();
  for (const HeldCopy& held : copies) places.push_back({held.copy.rank, held.host});
  const CopyClient::Held& first = copies.front().copy;
  return nlohmann::json{
      {"iteration", first.iteration}, {"tag", first.tag}, {"note", first.note}, {"places", std::move(places)}}
      .dump();
}

std::vector<HeldCopy> CopiesOf(const std::string& text) {
  const nlohmann::json json = nlohmann::json::parse(text);
  std::vector<HeldCopy> copies;
  copies.reserve(json["places"].size());
  for (const nlohmann::json& place : json["places"]) {
    copies.push_back({.copy = {.rank = place[0].get<std::int64_t>(),
                               .iteration = json["iteration"].get<std::int64_t>(),
                               .tag = json["tag"].get<std::string>(),
                               .note = json["note"].get<std::string>()},
                      .host = place[1].get<std::size_t>()});
  }
  return copies;
}

std::vector<std::int64_t> RanksOf(const std::vector<HeldCopy>& copies) {
  std::vector<std::int64_t> ranks;
  ranks.reserve(copies.size());
  for (const HeldCopy& held : copies) ranks.push_back(held.copy.rank);
  return ranks;
}

// Of each iteration and tag, the newest first.
std::vector<std::vector<HeldCopy>> Candidates(const RunContext& run, const std::vector<HeldCopy>& all,
                                              std::int64_t least) {
  const bool remembers = Remembers(run.recipe.guard);
  const GuardNotes notes(run.options.out);
  std::map<std::pair<std::int64_t, std::string>, std::vector<HeldCopy>, std::greater<>> by_state;
  for (const HeldCopy& held : all) {
    const std::int64_t iteration = held.copy.iteration;
    if (iteration < least || run.options.from_disk) continue;
    if (remembers && !notes.Read(iteration).ok()) continue;
    by_state[{iteration, held.copy.tag}].push_back(held);
  }
  std::vector<std::vector<HeldCopy>> candidates;
  candidates.reserve(by_state.size());
  for (auto& [of, copies] : by_state) candidates.push_back(std::move(copies));
  return candidates;
}

}  // namespace

OtherLayout::OtherLayout(Layout layout, Position position)
    : layout_(layout), position_(std::move(position)) {}
OtherLayout::~OtherLayout() = default;

const state::CopiedState& OtherLayout::state() const { return *state_; }

absl::StatusOr<std::unique_ptr<OtherLayout>> OtherLayout::Open(const RunContext& run, const std::string& text,
                                                               Plans* plans) {
  std::vector<HeldCopy> copies = CopiesOf(text);
  const CopyClient::Held first = copies.front().copy;
  ASSIGN_OR_RETURN(const Layout layout, LayoutOf(first.note));
  ASSIGN_OR_RETURN(Position position, Position::FromText(first.note));
  std::unique_ptr<OtherLayout> other(new OtherLayout(layout, std::move(position)));
  if (!plans->contains(first.tag)) {
    const recipe::Recipe recipe = RecipeOf(run, layout);
    ASSIGN_OR_RETURN(plan::Plan compiled, driver::CompileRecipe(recipe, {.profile = run.device.profile}));
    std::string tag = TagOf(run, recipe, compiled);
    plans->emplace(std::move(tag), std::move(compiled));
  }
  const auto plan = plans->find(first.tag);
  if (plan == plans->end())
    return FailedPrecondition("copies with parallelism.dp {} are of another recipe, or other data",
                              layout.dp);
  other->hosts_ = std::make_shared<Hosts>(run);
  const launch::Endpoint own{run.processes->address(), run.options.host_copies.port};
  const std::vector<launch::Endpoint>& hosts = other->hosts_->endpoints;
  if (std::any_of(copies.begin(), copies.end(),
                  [&](const HeldCopy& held) { return held.host >= hosts.size(); }))
    return Internal("rank 0 knows of hosts with copies that this rank does not know of");
  std::stable_partition(copies.begin(), copies.end(),
                        [&](const HeldCopy& held) { return hosts[held.host].ToString() == own.ToString(); });
  other->hosts_->copies = copies;
  ASSIGN_OR_RETURN(state::CopiedState state,
                   state::CopiedState::Make(plan->second, RanksOf(copies),
                                            [hosts = other->hosts_](std::int64_t rank, std::int64_t offset,
                                                                    std::span<std::byte> out) {
                                              return hosts->Read(rank, offset, out);
                                            }));
  other->state_ = std::make_unique<state::CopiedState>(std::move(state));
  return other;
}

absl::StatusOr<std::unique_ptr<OtherLayout>> OtherLayout::Agree(const RunContext& run, std::int64_t least) {
  constexpr const char* kKey = "copies of another layout";
  if (run.processes == nullptr || run.options.host_copies.everywhere.empty()) return nullptr;
  if (!run.Leads()) {
    ASSIGN_OR_RETURN(const std::string text, run.processes->Get(kKey));
    if (text.empty()) return nullptr;
    Plans plans;
    return Open(run, text, &plans);
  }
  run.Begin(launch::Work::kAlone, "looking for the state in the hosts' memory");
  Hosts hosts(run);
  Plans plans;
  std::vector<std::string> notes;
  for (const std::vector<HeldCopy>& copies : Candidates(run, hosts.ListAll(), least)) {
    const std::string text = CopiesText(copies);
    absl::StatusOr<std::unique_ptr<OtherLayout>> other = Open(run, text, &plans);
    if (!other.ok()) {
      notes.push_back(fmt::format("the copies of iteration {} in the hosts' memory are not gone on from: {}",
                                  copies.front().copy.iteration, Message(other.status())));
      continue;
    }
    RETURN_IF_ERROR(run.processes->Set(kKey, text));
    return other;
  }
  for (const std::string& note : notes) Print(stderr, "note: {}\n", note);
  // Before any rank takes its memory for new copies.
  hosts.ForgetOthers(TagOf(run, run.recipe, run.plan));
  RETURN_IF_ERROR(run.processes->Set(kKey, ""));
  return nullptr;
}

absl::Status OtherLayout::Finish(const RunContext& run) {
  constexpr const char* kKey = "copies of another layout are forgotten";
  state_.reset();
  const std::shared_ptr<Hosts> hosts = std::exchange(hosts_, nullptr);  // its connections end with this
  RETURN_IF_ERROR(run.processes->Barrier("copies of another layout are read"));
  if (!run.Leads()) return run.processes->Get(kKey).status();
  hosts->ForgetOthers(TagOf(run, run.recipe, run.plan));
  return run.processes->Set(kKey, "");
}

}  // namespace engine::train
