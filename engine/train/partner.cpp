#include "engine/train/partner.h"

#include <fmt/format.h>

#include <utility>

#include "engine/base/print.h"
#include "engine/launch/rendezvous.h"
#include "engine/train/run_context.h"

namespace engine::train {
namespace {

std::string CopiesKey(std::int64_t host) { return fmt::format("where host {} keeps copies", host); }

// Tells where this rank's host keeps copies, and asks where the keeper's does; nullopt: it keeps none.
absl::StatusOr<std::optional<launch::Endpoint>> Meet(const RunContext& run, std::int64_t host) {
  launch::Client& processes = *run.processes;
  const std::int64_t own = *run.device.rank / run.options.processes;
  if (*run.device.rank % run.options.processes == 0) {
    const int port = run.options.host_copies.port;
    RETURN_IF_ERROR(processes.Set(CopiesKey(own),
                                  port > 0 ? launch::Endpoint{processes.address(), port}.ToString() : ""));
  }
  ASSIGN_OR_RETURN(const std::string text, processes.Get(CopiesKey(host)));
  if (text.empty()) return std::nullopt;
  ASSIGN_OR_RETURN(const launch::Endpoint endpoint, launch::ParseEndpoint(text));
  return endpoint;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Partner>> Partner::Find(const RunContext& run, const std::string& tag) {
  if (run.processes == nullptr || !run.recipe.checkpoint.memory || !run.recipe.checkpoint.memory_partner)
    return nullptr;
  const std::optional<plan::Keeper> keeper =
      plan::KeeperOf(run.plan, *run.device.rank, run.options.processes);
  if (!keeper) return nullptr;
  ASSIGN_OR_RETURN(const std::optional<launch::Endpoint> server, Meet(run, keeper->host));
  if (!server || run.options.memory_files.empty()) return nullptr;
  return std::unique_ptr<Partner>(
      new Partner(*keeper, *run.device.rank, *server, run.options.host_copies.token, tag));
}

Partner::Partner(const plan::Keeper& keeper, std::int64_t own_rank, const launch::Endpoint& server,
                 std::string token, std::string tag)
    : keeper_(keeper), own_rank_(own_rank), server_(server), token_(std::move(token)), tag_(std::move(tag)) {}

absl::StatusOr<launch::CopyClient*> Partner::Connect() {
  if (!client_) {
    ASSIGN_OR_RETURN(launch::CopyClient client, launch::CopyClient::Connect(server_, token_, own_rank_));
    client_.emplace(std::move(client));
  }
  return &*client_;
}

void Partner::Warn(const absl::Status& why) const {
  Print(stderr, "warning: rank {}: no copy of its state on host {} ({}): {}\n", own_rank_, keeper_.host,
        server_.ToString(), Message(why));
}

std::vector<MemoryCopies::Kept> Partner::List() {
  const auto list = [this]() -> absl::StatusOr<std::vector<MemoryCopies::Kept>> {
    ASSIGN_OR_RETURN(launch::CopyClient* const client, Connect());
    return client->List(keeper_.rank, tag_);
  };
  absl::StatusOr<std::vector<MemoryCopies::Kept>> found = list();
  if (found.ok()) {
    for (const MemoryCopies::Kept& kept : *found) found_.insert(kept.iteration);
    return *std::move(found);
  }
  client_.reset();
  Warn(found.status());
  return {};
}

absl::Status Partner::Fetch(std::int64_t iteration, int file) {
  ASSIGN_OR_RETURN(launch::CopyClient* const client, Connect());
  return client->Fetch(keeper_.rank, tag_, iteration, file);
}

void Partner::Store(const MemoryCopies& copies, int place) {
  if (!keeper_.is_sent || given_up_ || found_.contains(copies.At(place).iteration)) return;
  const absl::StatusOr<launch::CopyClient*> client = Connect();
  const absl::Status stored = client.ok() ? (*client)->Store(keeper_.rank, copies, place) : client.status();
  if (stored.ok()) return;
  given_up_ = true;
  Warn(stored);
}

}  // namespace engine::train
