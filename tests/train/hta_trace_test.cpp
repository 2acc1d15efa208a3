#include "engine/train/hta_trace.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <regex>

#include "tests/data/temp_dir.h"

namespace engine::train {

TEST_CASE(
    "traces for HolisticTraceAnalysis: rank, kernels by stream, exchange by name, iterations, the prediction "
    "apart") {
  using Part = executor::InstructionTiming::Part;
  plan::Plan plan;
  plan.mesh.sizes = {1, 1, 1, 4};
  plan::Instruction linear;
  linear.AsKernel()->name = "linear";
  linear.name = "layers.0.mlp.fc1";
  const std::vector<Timings> iterations = {
      {{.instruction = &linear, .microbatch = 1, .begin_ms = 0, .end_ms = 2},
       {.instruction = &linear, .microbatch = 1, .part = Part::kWait, .begin_ms = 2, .end_ms = 3},
       {.microbatch = 0, .stream = plan::kSendNext, .begin_ms = 1, .end_ms = 4}},
      {{.instruction = &linear, .microbatch = 0, .begin_ms = 0.5, .end_ms = 1}}};
  const std::vector<predict::PlayedEvent> predicted = {
      {.begin_s = 0, .end_s = 0.001, .instruction = &linear},
      {.begin_s = 0, .end_s = 1, .instruction = &linear, .part = predict::PlayedEvent::Part::kWait},
      {.stage = 1, .begin_s = 0, .end_s = 2, .instruction = &linear}};
  const data::TempDir folder;
  REQUIRE(WriteHtaTrace(folder.path(), plan, 3, iterations, predicted).ok());
  const std::string text = data::ReadFile(folder / "traces/rank-3.json");
  // By this its rank is found, in the text.
  std::smatch match;
  REQUIRE(std::regex_search(text, match, std::regex(R"("rank":\s+(\d+))")));
  CHECK(match[1] == "3");
  const nlohmann::json trace = nlohmann::json::parse(text);
  CHECK(trace["distributedInfo"]["world_size"] == 4);
  std::vector<nlohmann::json> kernels, steps, beside;
  for (const nlohmann::json& event : trace["traceEvents"]) {
    if (event["ph"] == "M") continue;
    (event["cat"] == "kernel" ? kernels : event["cat"] == "predicted" ? beside : steps).push_back(event);
  }
  REQUIRE(kernels.size() == 3);
  CHECK(kernels[0] == nlohmann::json{{"name", "linear"},
                                     {"cat", "kernel"},
                                     {"ph", "X"},
                                     {"pid", 0},
                                     {"tid", 0},
                                     {"ts", 0.0},
                                     {"dur", 2000.0},
                                     {"args",
                                      {{"device", 3},
                                       {"stream", 0},
                                       {"correlation", 1},
                                       {"microbatch", 1},
                                       {"instruction", "layers.0.mlp.fc1"}}}});
  CHECK(kernels[1]["name"] == "ncclKernel_transfer");
  for (const nlohmann::json& kernel : {kernels[0], kernels[1]}) {
    const std::string name = kernel["name"];
    const bool communicates = name == "ncclKernel_transfer";
    // The rules of that program's versions.
    CHECK((name.find("ncclKernel") != std::string::npos) == communicates);
    CHECK(std::regex_search(name, std::regex("^nccl.*Kernel")) == communicates);
    CHECK(name.starts_with("nccl") == communicates);
  }
  CHECK(kernels[1]["args"]["stream"] == plan::kSendNext);
  CHECK(kernels[2]["ts"] == 4500.0);  // the first iteration ended at 4 ms
  CHECK(kernels[2]["args"]["correlation"] == 3);
  REQUIRE(steps.size() == 2);
  CHECK(steps[0]["name"] == "ProfilerStep#0");
  CHECK(steps[0]["dur"] == 4000.0);
  CHECK(steps[1]["name"] == "ProfilerStep#1");
  CHECK(steps[1]["ts"] == 4000.0);
  CHECK(steps[1]["dur"] == 1000.0);
  REQUIRE(beside.size() == 1);
  CHECK(beside[0]["pid"] == 1);
  CHECK(beside[0]["dur"] == 1000.0);
}

}  // namespace engine::train
