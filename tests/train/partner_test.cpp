// A rank and the host that has its state too.
#include "engine/train/partner.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/driver/compile_recipe.h"
#include "engine/launch/copy_server.h"
#include "engine/train/run_context.h"
#include "tests/launch/rendezvous_world.h"
#include "tests/train/run_testing.h"

namespace engine::train::testing {
namespace {

const std::string kTag(MemoryCopies::kTagBytes, 't');
constexpr std::int64_t kCopyBytes = 3000;

// Two hosts of a rank each, whose states differ: each sends its own to the other.
struct TwoHosts {
  TwoHosts() {
    const absl::StatusOr<plan::Plan> compiled =
        driver::CompileRecipe(recipe, {.profile = CpuDevice().profile});
    REQUIRE_MESSAGE(compiled.ok(), Message(compiled.status()));
    world.JoinAll();
    for (std::size_t host = 0; host < 2; ++host) {
      servers.push_back(*launch::CopyServer::Start("token", 1, 1 << 20));
      devices[host].rank = static_cast<std::int64_t>(host);
      options[host].memory_files = {files.numbers[host]};
      options[host].host_copies = {.port = servers[host]->port(), .token = "token"};
      runs.push_back(std::make_unique<RunContext>(
          RunContext{.recipe = recipe, .options = options[host], .device = devices[host]}));
      runs[host]->plan = *compiled;
      runs[host]->processes = world.clients[host].value().get();
    }
  }

  // That of rank 0, as its process of an attempt has it.
  std::unique_ptr<Partner> Find() {
    std::unique_ptr<Partner> found;
    world.OnAll([&](launch::Client&, std::int64_t rank) {
      absl::StatusOr<std::unique_ptr<Partner>> partner =
          Partner::Find(*runs[static_cast<std::size_t>(rank)], kTag);
      REQUIRE_MESSAGE(partner.ok(), Message(partner.status()));
      if (rank == 0) found = *std::move(partner);
    });
    REQUIRE(found != nullptr);
    return found;
  }

  recipe::Recipe recipe = MakeRecipe(kGptLike, {"parallelism.dp=2", "parallelism.zero_stage=1",
                                                "training.micro_batch=2", "checkpoint.memory=true"});
  launch::World world{2};
  const MemoryFiles files{2};
  std::vector<std::unique_ptr<launch::CopyServer>> servers;
  state::Device devices[2];
  RunOptions options[2];
  std::vector<std::unique_ptr<RunContext>> runs;
};

// A whole copy in a file, of which every byte is `byte`; its place.
int Keep(MemoryCopies& copies, std::int64_t iteration, int byte) {
  const int place = copies.Begin({iteration, "a note"});
  std::memset(copies.MemoryOf(place), byte, kCopyBytes);
  copies.Finish(place);
  return place;
}

std::vector<std::int64_t> IterationsOf(const std::vector<MemoryCopies::Kept>& copies) {
  std::vector<std::int64_t> iterations;
  for (const MemoryCopies::Kept& kept : copies) iterations.push_back(kept.iteration);
  return iterations;
}

// The first byte of the copy that the partner has.
int ByteAt(Partner& partner, std::int64_t iteration) {
  const MemoryFiles fetched(1);
  REQUIRE(partner.Fetch(iteration, fetched.numbers[0]).ok());
  const absl::StatusOr<MemoryCopies> copies = MemoryCopies::Open(fetched.numbers[0]);
  REQUIRE(copies.ok());
  return static_cast<int>(*copies->MemoryOf(copies->Find(iteration).value()));
}

}  // namespace

TEST_CASE("partner: what is there is not sent again, but what the run does not go on from is") {
  TwoHosts hosts;
  const MemoryFiles file(1);
  absl::StatusOr<MemoryCopies> copies = MemoryCopies::Open(file.numbers[0], kTag, kCopyBytes);
  REQUIRE(copies.ok());
  {
    const std::unique_ptr<Partner> before = hosts.Find();
    CHECK(before->is_sent());
    CHECK(before->List().empty());
    before->Store(*copies, Keep(*copies, 4, 1));
    before->Store(*copies, Keep(*copies, 5, 1));
  }
  const auto store_again = [&](Partner& partner) {
    for (const std::int64_t iteration : {4, 5}) partner.Store(*copies, Keep(*copies, iteration, 2));
  };
  using Found = std::vector<std::int64_t>;
  {  // The run goes on from both, as it were: nothing is sent.
    const std::unique_ptr<Partner> partner = hosts.Find();
    CHECK(IterationsOf(partner->List()) == Found{4, 5});
    store_again(*partner);
    CHECK(ByteAt(*partner, 4) == 1);
    CHECK(ByteAt(*partner, 5) == 1);
  }
  {  // From iteration 4: it comes to the fifth again, with another state.
    const std::unique_ptr<Partner> partner = hosts.Find();
    CHECK(IterationsOf(partner->List()) == Found{4, 5});
    partner->ForgetAllBut(4);
    partner->Store(*copies, Keep(*copies, 4, 2));
    CHECK(ByteAt(*partner, 4) == 1);
    partner->Store(*copies, Keep(*copies, 5, 2));
    CHECK(ByteAt(*partner, 5) == 2);
  }
  {  // From the disk.
    const std::unique_ptr<Partner> partner = hosts.Find();
    CHECK(IterationsOf(partner->List()).size() == 2);
    partner->ForgetAllBut(-1);
    for (const std::int64_t iteration : {4, 5}) {
      partner->Store(*copies, Keep(*copies, iteration, 3));
      CHECK(ByteAt(*partner, iteration) == 3);
    }
  }
}

}  // namespace engine::train::testing
