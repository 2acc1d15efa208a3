#include "engine/plan/json.h"

#include <doctest/doctest.h>

#include "tests/plan/plans.h"

namespace engine::plan {

TEST_CASE("json: header, stages and schedule agree with the plan") {
  const Plan plan = TinyPlan(false, {"parallelism.pp=2", "parallelism.dp=2", "training.global_batch=4"});
  const nlohmann::json json = nlohmann::json::parse(ToJson(plan).dump());
  CHECK(json["hash"] == plan.hash);
  CHECK(json["mesh"]["world"] == 4);
  REQUIRE(json["stages"].size() == 2);
  CHECK(json["stages"][1]["memory"]["total"] == plan.stages[1].arena_bytes);
  CHECK(json["stages"][0]["chunks"][0]["embedding"] == true);
  std::size_t parameters = 0;
  for (const auto& bucket : json["stages"][0]["buckets"]) parameters += bucket["parameters"].size();
  CHECK(parameters > 10);
  CHECK(json["schedule"]["stages"][1] == nlohmann::json::array({"F0.1", "B0.1", "F1.1", "B1.1"}));
}

TEST_CASE("json: a rank's coordinates, instructions and programs") {
  const Plan plan = TinyPlan(false, {"parallelism.pp=2", "parallelism.dp=2", "training.global_batch=4"});
  const nlohmann::json json = nlohmann::json::parse(RankToJson(plan, 3).dump());
  CHECK(json["coordinates"]["dp"] == 1);
  CHECK(json["coordinates"]["pp"] == 1);
  CHECK(json["segments"].size() == plan.stages[1].segments.size());
  CHECK(json["train"].size() == plan.stages[1].programs[0].size());
  CHECK(json["train"][0]["run"] == "begin");
  CHECK(json["train"][1].contains("receive"));
}

}  // namespace engine::plan
