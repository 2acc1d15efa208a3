// How faults are said, and which are refused. What they do: tests/launch/faults_test.cpp.
#include "engine/train/fault.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "engine/driver/compile_recipe.h"
#include "tests/train/testing.h"

namespace engine::train {
namespace {

std::string Canonical(const std::string& text) {
  const absl::StatusOr<Fault> fault = ParseFault(text);
  return fault.ok() ? TextOf(*fault) : Message(fault.status());
}

// What CheckFaults says of them for a run of two ranks, 8 iterations, a checkpoint each 4.
std::string Refusal(const std::vector<std::string>& texts, std::vector<std::string> sets = {}) {
  sets.insert(sets.begin(), {"debug.faults=true", "parallelism.dp=2", "training.micro_batch=4",
                             "training.iterations=8", "checkpoint.interval=4"});
  std::vector<Fault> faults;
  for (const std::string& text : texts) faults.push_back(*ParseFault(text));
  return Message(CheckFaults(faults, testing::MakeRecipe(testing::kGptLike, sets)));
}

}  // namespace

TEST_CASE("faults: what is said, in one form") {
  CHECK(Canonical("kind=kill,iteration=40,rank=3") == "rank=3,iteration=40,at=forward,kind=kill");
  CHECK(Canonical("rank=0,iteration=1,at=data,kind=stop") == "rank=0,iteration=1,at=data,kind=stop");
  CHECK(Canonical("rank=0,iteration=1,kind=exit") == "rank=0,iteration=1,at=forward,kind=exit");
  CHECK(Canonical("rank=0,iteration=1,kind=exit:4") == "rank=0,iteration=1,at=forward,kind=exit:4");
  CHECK(Canonical("rank=0,iteration=1,kind=slow") == "rank=0,iteration=1,at=forward,kind=slow:2x");
  CHECK(Canonical("rank=0,iteration=1,kind=slow:1.5,every=1") ==
        "rank=0,iteration=1,at=forward,kind=slow:1.5x,every=1");
  CHECK(Canonical("rank=0,iteration=1,kind=hang:0.5") == "rank=0,iteration=1,at=forward,kind=hang:0.5");
  CHECK(Canonical("rank=0,iteration=1,kind=enospc") == "rank=0,iteration=1,at=save,kind=enospc");
  CHECK(Canonical("rank=0,iteration=1,kind=nan") == "rank=0,iteration=1,at=forward,kind=nan,seed=0");
  CHECK(Canonical("rank=0,iteration=1,kind=bitflip:gradient:layers.0.x,seed=7,at=update") ==
        "rank=0,iteration=1,at=update,kind=bitflip:gradient:layers.0.x,seed=7");
  for (const std::string text : {"rank=3,iteration=40,at=exchange,kind=drop-connection",
                                 "rank=1,iteration=2,at=forward,kind=exit:0,every=3"})
    CHECK(Canonical(text) == text);
}

TEST_CASE("faults: what is wrong is said, with what would be right") {
  const auto says = [](const std::string& text, const std::string& what) {
    CHECK(Canonical(text) == "--fault " + text + ": " + what);
  };
  says("rank=1,kind=kill", "iteration is missing: rank=3,iteration=40,kind=kill");
  says("rank=1,iteration=2", "kind is missing: rank=3,iteration=40,kind=kill");
  says("kill", "\"kill\" is not of the form KEY=VALUE");
  says("rank=-1,iteration=2,kind=kill", "rank: \"-1\" is no whole number from 0 up");
  says("rank=1,iteration=0,kind=kill", "iteration: \"0\" is no whole number from 1 up");
  says("rank=1,rank=2", "rank is said twice");
  says("rang=1", "there is no key \"rang\": rank, iteration, at, kind, every, seed");
  says("at=backward", "there is no place \"backward\": data, forward, exchange, update, save");
  says("kind=crash",
       "there is no kind \"crash\": kill, stop, exit:CODE, throw, nan:TENSOR, bitflip:TENSOR, slow:2x, "
       "hang:SECONDS, "
       "enospc, drop-connection");
  says("kind=kill:9", "kill takes nothing after it");
  says("kind=exit:256", "\"256\" is no exit code from 0 to 255");
  says("kind=exit:1.5", "\"1.5\" is no exit code from 0 to 255");
  says("kind=slow:half", "\"half\" is no factor from 1 to 1000");
  says("kind=hang:nan", "\"nan\" is no number of seconds from 0 to 1000000000");
  says("kind=nan:", "nan: the tensor's name is missing");
  says("rank=1,iteration=2,kind=enospc,at=update", "enospc is of a checkpoint: at=save");
  says("rank=1,iteration=2,kind=slow,at=update", "slow is of the passes: at=forward");
  says("rank=1,iteration=2,kind=nan,at=save",
       "nan is of what the rank computes with: at=forward, exchange or update");
}

TEST_CASE("faults: a recipe has to allow them, and they have to be of its run") {
  const std::string kill = "rank=1,iteration=4,at=save,kind=kill";
  CHECK(Refusal({kill, "rank=1,iteration=8,at=save,kind=kill"}).empty());
  CHECK(Refusal({kill}, {"debug.faults=false"}) ==
        "--fault: the recipe allows no faults: [debug] faults = true, or --set debug.faults=true");
  CHECK(Refusal({}, {"debug.faults=false"}).empty());
  CHECK(Refusal({kill, "iteration=4,rank=1,kind=kill,at=save"}) == "--fault " + kill + ": is said twice");
  CHECK(Refusal({"rank=2,iteration=4,kind=kill"}) ==
        "--fault rank=2,iteration=4,at=forward,kind=kill: there is no such rank: the layout has 2, from 0");
  CHECK(Refusal({"rank=1,iteration=9,kind=kill"}) ==
        "--fault rank=1,iteration=9,at=forward,kind=kill: there is no such iteration: the recipe has 8");
  CHECK(Refusal({"rank=1,iteration=3,kind=enospc"}) ==
        "--fault rank=1,iteration=3,at=save,kind=enospc: no checkpoint is saved after iteration 3: "
        "checkpoint.interval is 4");
  CHECK(Refusal({"rank=0,iteration=3,at=exchange,kind=kill"}, {"parallelism.dp=1"}) ==
        "--fault rank=0,iteration=3,at=exchange,kind=kill: one rank alone exchanges nothing: at=forward, of "
        "a tensor");
  CHECK(
      Refusal({"rank=0,iteration=3,kind=nan:received"}) ==
      "--fault rank=0,iteration=3,at=forward,kind=nan:received,seed=0: what ranks get is altered where it is "
      "traced: guard.trace = true");
}

TEST_CASE("faults: of a tensor that a rank does not hold, with those that it does") {
  const recipe::Recipe recipe = testing::MakeRecipe(testing::kGptLike, {"debug.faults=true"});
  const auto plan = driver::CompileRecipe(recipe, {.profile = testing::CpuDevice().profile});
  REQUIRE_MESSAGE(plan.ok(), Message(plan.status()));
  const auto refusal = [&](const std::string& tensor) {
    return Message(CheckFaultTensors({*ParseFault("rank=0,iteration=1,kind=nan:" + tensor)}, *plan));
  };
  CHECK(refusal("embedding.tokens").empty());
  const std::string none = refusal("nosuch");
  CHECK_MESSAGE(none.find(": rank 0 holds no nosuch; it has ") != std::string::npos, none);
  CHECK_MESSAGE(std::count(none.begin(), none.end(), '.') >= 8, none);  // eight names
  CHECK_MESSAGE(none.ends_with(" others"), none);
  const std::string near = refusal("embedding.token");
  CHECK_MESSAGE(near.find(": rank 0 holds no embedding.token; did you mean embedding.tokens? it has ") !=
                    std::string::npos,
                near);
}

TEST_CASE("faults: when they are due") {
  const Fault once{.iteration = 4};
  const Fault again{.iteration = 4, .every = 3};
  for (const std::int64_t iteration : {1, 3, 4, 5, 7, 8, 10}) {
    CHECK(once.IsDue(iteration) == (iteration == 4));
    CHECK(again.IsDue(iteration) == (iteration == 4 || iteration == 7 || iteration == 10));
  }
}

}  // namespace engine::train
