// What the executor does with memory, and what it does when a rank fails.
#include "engine/executor/executor.h"

#include <malloc.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "tests/executor/testing.h"

namespace engine::executor::testing {
namespace {

struct Setup {
  explicit Setup(const std::string& sets, bool guarded = false)
      : recipe(TinyRecipe(sets)),
        probes(static_cast<size_t>(recipe.world_size())),
        device(ProbedDevice(&probes)) {
    for (Probe& probe : probes) probe.guarded = guarded;
    absl::StatusOr<plan::Plan> compiled = driver::CompileRecipe(recipe, {.profile = device.profile});
    REQUIRE_MESSAGE(compiled.ok(), Message(compiled.status()));
    plan = *std::move(compiled);
    auto created = state::Ranks::Create(plan, device, 3);
    REQUIRE_MESSAGE(created.ok(), Message(created.status()));
    ranks = *std::move(created);
    REQUIRE(ranks->Run(FillParameters).ok());
  }

  absl::Status Train(int iteration, const FeedFunction& feed = SomeFeed()) const {
    return ranks->Run(
        [&](RankExecutor& rank) { return rank.Train(iteration, iteration + 1, 1e-3, feed).status(); });
  }

  recipe::Recipe recipe;
  std::vector<Probe> probes;
  state::Device device;
  plan::Plan plan;
  std::unique_ptr<state::Ranks> ranks;
};

// Ends the program if what it guards has not come to an end: a hang is a failure.
class Watchdog {
 public:
  explicit Watchdog(unsigned seconds) { alarm(seconds); }
  ~Watchdog() { alarm(0); }
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;
};

}  // namespace

TEST_CASE("each rank allocates one arena, of the plan's size to the byte, and writes nothing around it") {
  for (const std::string layout : kLayouts) {
    INFO("layout " << layout);
    const Setup setup(layout, /*guarded=*/true);
    for (int i = 0; i < 2; ++i) REQUIRE(setup.Train(i).ok());
    REQUIRE(setup.ranks->Run([](RankExecutor& rank) { return rank.Evaluate(SomeFeed()).status(); }).ok());
    for (size_t rank = 0; rank < setup.probes.size(); ++rank) {
      INFO("rank " << rank);
      const Probe& probe = setup.probes[rank];
      const plan::StagePlan& stage =
          setup.plan.stages[static_cast<size_t>(setup.plan.StageOfRank(static_cast<std::int64_t>(rank)))];
      CHECK(probe.arenas == 1);
      CHECK(probe.arena_bytes == stage.arena_bytes);
      CHECK(probe.arena_bytes == stage.memory.total());
      CHECK(probe.GuardsAreWhole());
    }
  }
}

TEST_CASE("no memory is added to the heap after the first iterations") {
  for (const std::string layout :
       {"", "parallelism.dp=2 parallelism.pp=2 parallelism.zero_stage=1 training.micro_batch=1"}) {
    INFO("layout " << layout);
    const Setup setup(layout);
    const FeedFunction feed = SomeFeed();
    for (int i = 0; i < 3; ++i) REQUIRE(setup.Train(i, feed).ok());
    // What the C library keeps for as many threads as were ever there at once is added now and then on a busy machine, but not by each
    // iteration.
    constexpr int kPeriods = 8, kIterations = 5;
    const struct mallinfo2 before = mallinfo2();
    std::size_t used = before.uordblks;
    int grown = 0;
    for (int i = 0; i < kPeriods * kIterations; ++i) {
      REQUIRE(setup.Train(3 + i, feed).ok());
      if (i % kIterations != kIterations - 1) continue;
      const std::size_t now = mallinfo2().uordblks;
      grown += now > used ? 1 : 0;
      used = now;
    }
    CHECK(grown < kPeriods);
    CHECK(mallinfo2().hblks == before.hblks);
  }
}

TEST_CASE("a rank that fails in a kernel ends all ranks with its error, wherever it fails") {
  for (const std::string layout :
       {"parallelism.dp=2", "parallelism.dp=4 parallelism.zero_stage=1", "parallelism.tp=2",
        "parallelism.cp=2", "parallelism.pp=4 training.micro_batch=1",
        "parallelism.pp=2 parallelism.virtual_stages=2",
        "parallelism.dp=2 parallelism.tp=2 parallelism.pp=2"}) {
    INFO("layout " << layout);
    const recipe::Recipe recipe = TinyRecipe(layout);
    for (std::int64_t victim = 0; victim < recipe.world_size(); ++victim) {
      INFO("rank " << victim);
      const Watchdog watchdog(60);
      Setup setup(layout);
      // The first, some middle and the last launch of the second iteration.
      REQUIRE(setup.Train(0).ok());
      Probe& probe = setup.probes[static_cast<size_t>(victim)];
      const std::int64_t one = probe.launches;
      const std::int64_t at = one + (victim % 3) * (one - 1) / 2;
      probe.before_launch = [at](std::int64_t launch, const backend::KernelContext&) {
        return launch == at ? Internal("injected") : absl::OkStatus();
      };
      const absl::Status status = setup.Train(1);
      CHECK(status.code() == absl::StatusCode::kInternal);
      INFO(Message(status));
      CHECK(Message(status).starts_with("rank " + std::to_string(victim) + ", "));
      CHECK(Message(status).ends_with(": injected"));
      CHECK(absl::IsAborted(setup.Train(2)) ==
            (recipe.world_size() > 1));  // the world stays broken, without a hang
    }
  }
}

TEST_CASE("a rank that computes longer than the others is seen by its time, not by those that wait for it") {
  constexpr double kLongerMs = 80;
  for (const std::string layout : {"parallelism.dp=2", "parallelism.dp=2 parallelism.zero_stage=1"}) {
    for (const size_t slow : {0U, 1U}) {
      INFO("layout " << layout << ", rank " << slow);
      Setup setup(layout);
      REQUIRE(setup.Train(0).ok());
      const std::int64_t begin = setup.probes[slow].launches;
      setup.probes[slow].before_launch = [&](std::int64_t launch, const backend::KernelContext&) {
        if (launch == begin + 3) {
          std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(kLongerMs));
        }
        return absl::OkStatus();
      };
      std::vector<double> busy_ms(2);
      const auto start = std::chrono::steady_clock::now();
      REQUIRE(setup.ranks
                  ->Run([&](RankExecutor& rank) -> absl::Status {
                    ASSIGN_OR_RETURN(const IterationResult result, rank.Train(1, 2, 1e-3, SomeFeed()));
                    busy_ms[static_cast<size_t>(rank.rank())] = result.busy_ms;
                    return absl::OkStatus();
                  })
                  .ok());
      const std::chrono::duration<double, std::milli> all = std::chrono::steady_clock::now() - start;
      CHECK(busy_ms[slow] >= kLongerMs);
      CHECK(busy_ms[slow] <= all.count());
      CHECK(busy_ms[1 - slow] > 0);
      CHECK(busy_ms[1 - slow] < busy_ms[slow] - kLongerMs / 2);
    }
  }
}

TEST_CASE("an iteration's time begins with it, or where the one before ended that was still under way") {
  Setup setup("parallelism.dp=1");
  constexpr auto kPause = std::chrono::milliseconds(80);
  const executor::LearningRates rates = {0, 1e-3, 1e-3};
  REQUIRE(setup.Train(0).ok());
  const auto start = std::chrono::steady_clock::now();
  std::vector<double> elapsed_ms;
  REQUIRE(setup.ranks
              ->Run([&](RankExecutor& rank) -> absl::Status {
                const auto wait = [&]() -> absl::Status {
                  ASSIGN_OR_RETURN(const IterationResult result, rank.Wait());
                  elapsed_ms.push_back(result.elapsed_ms);
                  return absl::OkStatus();
                };
                RETURN_IF_ERROR(rank.Launch(1, rates, SomeFeed()));
                std::this_thread::sleep_for(kPause);
                RETURN_IF_ERROR(rank.Launch(2, rates, SomeFeed()));
                RETURN_IF_ERROR(wait());
                RETURN_IF_ERROR(wait());
                std::this_thread::sleep_for(kPause);
                RETURN_IF_ERROR(rank.Launch(3, rates, SomeFeed()));
                return wait();
              })
              .ok());
  const std::chrono::duration<double, std::milli> all = std::chrono::steady_clock::now() - start;
  constexpr auto kPauseMs = static_cast<double>(kPause.count());
  REQUIRE(elapsed_ms.size() == 3);
  CHECK(elapsed_ms[0] > 0);
  CHECK(elapsed_ms[1] >= kPauseMs);
  CHECK(elapsed_ms[2] > 0);
  CHECK(elapsed_ms[0] + elapsed_ms[1] + elapsed_ms[2] <= all.count() - kPauseMs);
}

TEST_CASE("a feed that fails on one rank ends all ranks with its error") {
  for (const std::string layout :
       {"parallelism.dp=4 training.micro_batch=1", "parallelism.tp=2", "parallelism.pp=2"}) {
    INFO("layout " << layout);
    const Watchdog watchdog(60);
    const Setup setup(layout);
    const std::int64_t last = setup.plan.mesh.world() - 1;
    const FeedFunction good = SomeFeed();
    const absl::Status status = setup.ranks->Run([&](RankExecutor& rank) {
      const FeedFunction feed = [&](const std::string& input, std::int64_t microbatch,
                                    const backend::TensorView& host) -> absl::Status {
        if (rank.rank() == last && microbatch == 1) return DataLoss("no such sample");
        return good(input, microbatch, host);
      };
      return rank.Train(0, 1, 1e-3, feed).status();
    });
    CHECK(Message(status) == "no such sample");
  }
}

}  // namespace engine::executor::testing
