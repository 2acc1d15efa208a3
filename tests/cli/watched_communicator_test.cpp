// Exchange through the communicator that every rank of `engine run` has around its own.
#include "engine/cli/watched_communicator.h"

#include <doctest/doctest.h>

#include "engine/backend/cpu/world.h"
#include "engine/launch/socket.h"
#include "tests/train/testing.h"

namespace engine::cli {
namespace {

// A run of one process, to which the communicators report.
struct OneClient {
  OneClient() {
    launch::Endpoint endpoint{.host = "127.0.0.1", .port = 0};
    absl::StatusOr<launch::Descriptor> listener = launch::Listen(endpoint);
    REQUIRE(listener.ok());
    endpoint.port = launch::PortOf(*listener);
    const launch::Member self{
        .rank = 0, .world = 1, .build = "b", .plan_hash = "p", .device = "d", .process = "p"};
    server = launch::Server::Start(*std::move(listener), "token", self, {});
    absl::StatusOr<std::unique_ptr<launch::Client>> joined =
        launch::Client::Join(endpoint, "token", self, {}, [](const absl::Status&) {});
    REQUIRE(joined.ok());
    client = *std::move(joined);
  }
  std::unique_ptr<launch::Server> server;
  std::unique_ptr<launch::Client> client;
};

TEST_CASE("watched: sums that are left to their readers, pushed and read directly, have the same bits") {
  namespace t = train::testing;
  const OneClient run;
  state::Device watched = t::PushingDevice();
  watched.make_communicator = [inner = watched.make_communicator, &run](std::int64_t rank) {
    return std::make_unique<WatchedCommunicator>(inner(rank), run.client.get());
  };
  for (const char* sets : {"tp=2 exchange=push", "tp=2", "tp=2 sequence_parallel=true"}) {
    CAPTURE(std::string(sets));
    const recipe::Recipe recipe = t::MakeRecipe(t::kGptLike, t::SetsOf(sets));
    const t::Trained plain = t::TrainFor(recipe, 2, t::PushingDevice());
    const t::Trained other = t::TrainFor(recipe, 2, watched);
    CHECK(plain.losses == other.losses);
    CHECK(plain.weights == other.weights);
  }
}

}  // namespace
}  // namespace engine::cli
