#include "engine/plan/print.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "engine/backend/cuda/profile/profile.h"
#include "engine/plan/json.h"
#include "engine/plan/print_schedule.h"
#include "engine/plan/print_traffic.h"
#include "tests/plan/plans.h"

namespace engine::plan {

TEST_CASE("timeline: 1F1B of two stages and three microbatches") {
  const Plan plan = TinyPlan(false, {"parallelism.pp=2", "training.global_batch=3"});
  const Timeline timeline = SimulateTimeline(plan);
  // Stage 1 waits for the first forward pass, stage 0 for the last backward pass.
  CHECK(DrawTimeline(timeline, 40) ==
        "    0 01..aa2bb.cc\n"
        "    1 .0aa1bb2cc..\n");
}

TEST_CASE("timeline: a zero-bubble pipeline of two stages and three microbatches") {
  const Plan plan =
      TinyPlan(false, {"parallelism.pp=2", "parallelism.schedule=zero_bubble", "training.global_batch=3"});
  const Timeline timeline = SimulateTimeline(plan);
  CHECK(DrawTimeline(timeline, 40) ==
        "    0 01.aA2bBcC\n"
        "    1 .0a1bA2cBC\n");
  CHECK(Summary(plan).find("one unit; weights passes: capitals, one unit)") != std::string::npos);
}

TEST_CASE("timeline: the bubble of 1F1B is (p−1)/(m+p−1), and interleaving or deferring weights cuts it") {
  const auto bubble = [](const std::vector<std::string>& sets) {
    return SimulateTimeline(TinyPlan(false, sets)).bubble;
  };
  CHECK(bubble({"parallelism.pp=4"}) == doctest::Approx(3.0 / 19.0));
  CHECK(bubble({"parallelism.pp=4", "parallelism.virtual_stages=2"}) ==
        doctest::Approx(3.0 / (2.0 * 16.0 + 3.0)));
  // Of (p − 1)·(F + B − W) = 3, beside 16 microbatches of 3 units.
  CHECK(bubble({"parallelism.pp=4", "parallelism.schedule=zero_bubble"}) ==
        doctest::Approx(3.0 / (16.0 * 3.0 + 3.0)));
  CHECK(bubble({}) == 0.0);
}

TEST_CASE("halves that run in turns are drawn as the microbatch that they are") {
  for (const char* schedule : {"parallelism.schedule=\"1f1b\"", "parallelism.schedule=\"zero_bubble\""}) {
    const auto drawn = [&](const char* overlap) {
      const Plan plan = TinyPlan(
          false, {"parallelism.pp=4", "parallelism.tp=2", "training.micro_batch=2", schedule, overlap});
      CHECK(plan.halves == (std::string(overlap).ends_with("on") ? 2 : 1));
      const Timeline timeline = SimulateTimeline(plan);
      return DrawTimeline(timeline, timeline.length) + fmt::format("{}", timeline.bubble);
    };
    CHECK(drawn("parallelism.overlap=on") == drawn("parallelism.overlap=off"));
  }
}

TEST_CASE("timeline: the middle of a long one is left out") {
  const Timeline timeline =
      SimulateTimeline(TinyPlan(false, {"parallelism.pp=2", "training.global_batch=64"}));
  const std::string text = DrawTimeline(timeline, 60);
  CHECK(text.find(" ... ") != std::string::npos);
  CHECK(text.find('\n') <= 66);
}

TEST_CASE("traffic: counts and bytes of an iteration") {
  const Plan plan = TinyPlan(false, {"parallelism.tp=2", "parallelism.pp=2", "training.global_batch=4"});
  const std::vector<Traffic> traffic = TrafficOf(plan, plan.stages[0]);
  bool sent = false;
  bool reduced = false;
  for (const Traffic& t : traffic) {
    if (t.kind == "send") {
      sent = true;
      CHECK(t.count == 4);
      CHECK(t.wire_bytes == 4 * 32 * 32 * 4);  // [1, 32, 32] fp32, whole on every tp rank
    }
    if (t.kind == "all_reduce" && t.group == "tp") {
      reduced = true;
      // Four a layer, and the embedding's; ring: 2·(n−1)/n of the bytes.
      const std::int64_t layers = plan.BlocksIn(plan.stages[0].chunks[0]);
      CHECK(t.count == 4 * (4 * layers + 1));
      CHECK(t.wire_bytes == t.count * 32 * 32 * 4);
    }
  }
  CHECK(sent);
  CHECK(reduced);
}

TEST_CASE("summary: the five factors, the hash, and one row for equal stages") {
  const Plan plan = TinyPlan(true, {"parallelism.pp=4", "parallelism.dp=2", "model.layers=12"});
  const std::string text = Summary(plan);
  CHECK(text.find("dp 2 × tp 1 × pp 4 × cp 1 × ep 1 = 8 ranks") != std::string::npos);
  CHECK(text.find(plan.hash) != std::string::npos);
  CHECK(text.find("vocabulary 257 is stored in 264 rows") != std::string::npos);
  CHECK(RunsOfEquals({"a", "b", "b", "a"}).size() == 3);
  CHECK(RunsOfEquals({"a", "b", "b", "a"})[1].last == 2);
}

TEST_CASE("summary: halves in turns, and how many gradients they make together") {
  const auto text = [](const char* overlap) {
    return Summary(
        TinyPlan(false, {"model.layers=3", "parallelism.tp=2", "training.micro_batch=4", overlap}));
  };
  const std::string halves = text("parallelism.overlap=on");
  CHECK(halves.find("overlap   2 microbatches at once") != std::string::npos);
  // Of a layer 4 weights and their biases, and the head's.
  CHECK(halves.find("; 25 gradients made of both") != std::string::npos);
  CHECK(text("parallelism.overlap=off").find("at once") == std::string::npos);
}

TEST_CASE("traffic: what is pushed, and what its reader reads from the other rank") {
  for (const char* exchange : {"parallelism.exchange=push", "parallelism.exchange=auto"}) {
    const auto plan = driver::CompileUnverified(
        TinyRecipe(true, {"precision.compute=bf16", "model.attention.heads=4", "model.hidden=256",
                          "parallelism.tp=2", "parallelism.overlap=off", exchange}),
        {.profile = backend::cuda::CudaProfile()});
    REQUIRE_MESSAGE(plan.ok(), plan.status().message());
    const bool direct = std::string(exchange).ends_with("auto");
    const std::string text = Summary(*plan);
    CHECK((text.find("its reader") != std::string::npos) == direct);
    CHECK(text.find("copy engines") != std::string::npos);  // the loss' parts, whose reader adds none
    std::int64_t read = 0;
    const nlohmann::ordered_json json = ToJson(*plan);
    for (const auto& traffic : json.at("stages").at(0).at("communication")) {
      CHECK_FALSE((traffic["direct"].get<bool>() && traffic["pushed"].get<bool>()));
      if (traffic["direct"].get<bool>()) read += traffic["count"].get<std::int64_t>();
    }
    // As often as the segments' instructions say.
    std::int64_t left = 0;
    for (const Segment& segment : plan->stages[0].segments) {
      if (segment.name == "evaluate.0") continue;
      for (const Instruction& i : segment.instructions) left += i.LeavesAddition() ? plan->microbatches : 0;
    }
    CHECK(left > 0);
    CHECK(read == (direct ? left : 0));
  }
}

}  // namespace engine::plan
