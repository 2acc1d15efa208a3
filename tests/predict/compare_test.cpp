#include "engine/predict/compare.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>

#include "engine/plan/json.h"
#include "engine/plan/print_traffic.h"
#include "tests/plan/plans.h"

namespace engine::predict {
namespace {

std::vector<Fact> FactsOfTiny(bool llama, const std::vector<std::string>& sets) {
  absl::StatusOr<std::vector<Fact>> facts = FactsOf(plan::ToJson(plan::TinyPlan(llama, sets)));
  if (!facts.ok()) FAIL(Message(facts.status()));
  return *std::move(facts);
}

nlohmann::json ValueOf(const std::vector<Fact>& facts, Section section, const std::string& name,
                       std::int64_t stage = -1) {
  for (const Fact& fact : facts) {
    if (fact.key.section == section && fact.key.name == name && fact.key.stage == stage) return fact.value;
  }
  FAIL("no " << name);
  return nullptr;
}

}  // namespace

TEST_CASE("compare: facts are the plan's numbers") {
  const plan::Plan plan = plan::TinyPlan(true, {"parallelism.pp=2", "parallelism.dp=2", "parallelism.tp=2"});
  const absl::StatusOr<std::vector<Fact>> facts = FactsOf(plan::ToJson(plan));
  REQUIRE(facts.ok());
  CHECK(ValueOf(*facts, Section::kWork, "parameters") == plan.parameter_count);
  CHECK(ValueOf(*facts, Section::kWork, "ranks") == 8);
  double flops = 0;
  std::int64_t fullest = 0;
  std::map<std::string, std::int64_t> most;
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const plan::StagePlan& stage = plan.stages[s];
    flops += stage.flops * 4;  // ranks of a stage
    fullest = std::max(fullest, stage.arena_bytes);
    const auto index = static_cast<std::int64_t>(s);
    CHECK(ValueOf(*facts, Section::kMemory, "activations", index) == stage.memory.activations);
    CHECK(ValueOf(*facts, Section::kMemory, "total", index) == stage.arena_bytes);
    std::map<std::string, std::int64_t> sent;
    for (const plan::Traffic& t : plan::TrafficOf(plan, stage)) {
      sent[t.group + ": " + t.kind + (t.beside ? " behind computation" : "")] += t.wire_bytes;
    }
    for (const auto& [name, bytes] : sent) most[name] = std::max(most[name], bytes);
  }
  CHECK(ValueOf(*facts, Section::kWork, "FLOPs per token").get<double>() ==
        doctest::Approx(flops / static_cast<double>(plan.global_batch * plan.sequence)).epsilon(1e-12));
  CHECK(ValueOf(*facts, Section::kMemory, "fullest stage, total") == fullest);
  CHECK(most.size() >= 3);
  for (const auto& [name, bytes] : most) CHECK(ValueOf(*facts, Section::kCommunication, name) == bytes);
  CHECK(ValueOf(*facts, Section::kSchedule, "kind") == "1f1b");
}

TEST_CASE("compare: nothing between equal plans, and the reverse of the reverse") {
  const std::vector<std::vector<Fact>> plans = {
      FactsOfTiny(false, {}),
      FactsOfTiny(false, {"parallelism.tp=2"}),
      FactsOfTiny(false, {"parallelism.pp=4", "parallelism.dp=2", "parallelism.zero_stage=1"}),
      FactsOfTiny(true, {"parallelism.pp=2", "parallelism.virtual_stages=2"}),
      FactsOfTiny(true, {"parallelism.cp=2", "recompute.granularity=full"}),
  };
  for (std::size_t i = 0; i < plans.size(); ++i) {
    for (std::size_t j = 0; j < plans.size(); ++j) {
      CAPTURE(i);
      CAPTURE(j);
      const std::vector<Effect> there = Compare(plans[i], plans[j]);
      const std::vector<Effect> back = Compare(plans[j], plans[i]);
      CHECK(there.empty() == (i == j));
      REQUIRE(there.size() == back.size());
      for (std::size_t e = 0; e < there.size(); ++e) {
        CHECK((there[e].key == back[e].key));
        CHECK(there[e].unit == back[e].unit);
        CHECK(there[e].before == back[e].after);
        CHECK(there[e].after == back[e].before);
      }
    }
  }
}

TEST_CASE("compare: predicted times only where the cluster's rates are known") {
  nlohmann::json json = plan::ToJson(plan::TinyPlan(false, {}));
  const auto predicted = [&] {
    const auto facts = FactsOf(json);
    REQUIRE(facts.ok());
    return std::count_if(facts->begin(), facts->end(),
                         [](const Fact& fact) { return fact.key.section == Section::kPrediction; });
  };
  CHECK(predicted() == 0);
  json["prediction"] = PredictionToJson({.iteration_s = 2, .tokens_per_s = 3, .stages = {}, .missing = {}});
  CHECK(predicted() == 5);
  json["prediction"] = PredictionToJson({.iteration_s = 2, .stages = {}, .missing = {"matmul_flops"}});
  CHECK(predicted() == 0);
  // A program that does not end; and as older programs wrote what they did not know.
  json["prediction"] = PredictionToJson({.iteration_s = 0, .stages = {}, .missing = {}});
  CHECK(json["prediction"]["iteration_s"].is_null());
  CHECK(predicted() == 0);
  json["prediction"] = PredictionToJson({.iteration_s = 2, .tokens_per_s = 3, .stages = {}, .missing = {}});
  CHECK(json["prediction"]["mfu"].is_null());
  json["prediction"]["mfu"] = 0;
  const auto facts = FactsOf(json);
  REQUIRE(facts.ok());
  CHECK(ValueOf(*facts, Section::kPrediction, "MFU").is_null());
}

TEST_CASE("compare: what is no plan is refused") {
  nlohmann::json plan = plan::ToJson(plan::TinyPlan(false, {}));
  for (const char* text : {"null", "[]", "3", "{}", R"({"mesh": 3})", R"({"mesh": {"world": "two"}})"}) {
    CAPTURE(text);
    CHECK(!FactsOf(nlohmann::json::parse(text)).ok());
  }
  for (const char* key : {"stages", "schedule", "parameters", "mesh"}) {
    nlohmann::json without = plan;
    without.erase(key);
    CAPTURE(key);
    CHECK(!FactsOf(without).ok());
    without[key] = "word";
    CHECK(!FactsOf(without).ok());
  }
  plan["stages"] = nlohmann::json::array();
  CHECK(!FactsOf(plan).ok());
}

}  // namespace engine::predict
