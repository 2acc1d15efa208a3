// Tables and traces of timings made by hand.
#include "engine/train/profile.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "engine/predict/cost.h"
#include "tests/data/temp_dir.h"

namespace engine::train {
namespace {

// Two products and a copy.
struct Measured {
  plan::Plan plan;
  plan::Segment segment;
  plan::Instruction linear, copy;
  std::vector<Timings> iterations;

  Measured() {
    segment.name = "forward.0";
    linear.AsKernel()->name = "linear";
    linear.name = "layers.0.mlp.fc1";
    linear.AsKernel()->work.flops = 2e9;
    linear.inputs = {{.elements = 1000, .dtype = DType::kBF16}};
    copy.AsKernel()->name = "copy";
    copy.name = "somewhere";
    copy.inputs = {{.elements = 250000, .dtype = DType::kF32}};
    copy.outputs = {{.elements = 500000, .dtype = DType::kBF16}};
    iterations = {{At(linear, 0, 0, 4), At(copy, 0, 4, 5), At(linear, 1, 5, 9)},
                  {At(linear, 0, 0, 2), At(copy, 0, 2, 5), At(linear, 1, 5, 7.5)}};
  }
  executor::InstructionTiming At(const plan::Instruction& instruction, std::int32_t microbatch, double begin,
                                 double end) const {
    return {.segment = &segment,
            .instruction = &instruction,
            .microbatch = microbatch,
            .begin_ms = begin,
            .end_ms = end};
  }
};

recipe::Cluster Rates() {
  recipe::Cluster cluster;
  cluster.device = "h200";
  cluster.matmul_flops = 1e12;
  cluster.memory_bandwidth = 1e9;
  return cluster;
}

std::string Contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  REQUIRE_MESSAGE(file.good(), path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

}  // namespace

// Means over both iterations: linear (8 + 4.5) / 2, copy (1 + 3) / 2. Predicted as predict/cost.h has it.
TEST_CASE("profile: the table has a row a kernel, the largest first, and their sum") {
  const Measured measured;
  const recipe::Cluster rates = Rates();
  const predict::CostModel costs(measured.plan, rates);
  const double linear_ms = 2e3 * costs.Seconds(measured.linear);
  const double copy_ms = 1e3 * costs.Seconds(measured.copy);
  CHECK(linear_ms > 2 * 1);
  CHECK(copy_ms > 2);
  CHECK(ProfileTable(measured.plan, measured.iterations, rates) ==
        "kernel                    launches  measured ms  predicted ms   ratio\n" +
            fmt::format("linear                           2        6.250 {:>13.3f} {:>7.2f}\n", linear_ms,
                        6.25 / linear_ms) +
            fmt::format("copy                             1        2.000 {:>13.3f} {:>7.2f}\n", copy_ms,
                        2 / copy_ms) +
            fmt::format("all                              3        8.250 {:>13.3f} {:>7.2f}\n",
                        linear_ms + copy_ms, 8.25 / (linear_ms + copy_ms)));
  CHECK(ProfileTable(measured.plan, {measured.iterations[1]}, recipe::Cluster{}) ==
        "kernel                    launches  measured ms  predicted ms   ratio\n"
        "linear                           2        4.500         0.000       -\n"
        "copy                             1        3.000         0.000       -\n"
        "all                              3        7.500         0.000       -\n");
}

TEST_CASE("profile: waits, sums of what was pushed, and transfers have rows and names of their own") {
  using Part = executor::InstructionTiming::Part;
  const Measured measured;
  executor::InstructionTiming wait = measured.At(measured.linear, 0, 0, 1);
  wait.part = Part::kWait;
  executor::InstructionTiming sum = measured.At(measured.linear, 0, 1, 3);
  sum.part = Part::kFinish;
  executor::InstructionTiming transfer;
  transfer.stream = plan::kSendNext;
  transfer.microbatch = 3;
  transfer.end_ms = 3;
  executor::InstructionTiming exchange = measured.At(measured.copy, 0, 0, 4);
  exchange.stream = plan::kExchangeStream;
  executor::InstructionTiming stages = wait;
  stages.instruction = nullptr;
  stages.end_ms = 0.5;
  const std::string table = ProfileTable(measured.plan, {{wait, sum, transfer, exchange, stages}}, Rates());
  // What runs beside computation is not in its sum; a wait for another stage is no exposed exchange.
  for (const char* row :
       {"waits for exchange               1        1.000", "linear, rest                     1        2.000",
        "transfers                        1        3.000", "waits for stages                 1        0.500",
        "copy                             1        4.000", "all                              3        3.500",
        "beside computation: 4.000 ms of exchange, for which computation waited 1.000 ms, 28.6 %"}) {
    CHECK_MESSAGE(table.find(row) != std::string::npos, table);
  }
  const nlohmann::json events =
      nlohmann::json::parse(MeasuredTrace(measured.plan, 0, {wait, sum, transfer})).at("traceEvents");
  std::vector<std::string> names;
  for (const nlohmann::json& event : events) {
    if (event.at("ph") == "X") names.push_back(event.at("name"));
  }
  CHECK(names == std::vector<std::string>{"layers.0.mlp.fc1.wait", "layers.0.mlp.fc1.sum", "send of 3"});
}

TEST_CASE("profile: the trace is Chrome's, in microseconds") {
  const Measured measured;
  const nlohmann::json trace = nlohmann::json::parse(MeasuredTrace(measured.plan, 0, measured.iterations[1]));
  CHECK(trace.at("displayTimeUnit") == "ms");
  const nlohmann::json& events = trace.at("traceEvents");
  REQUIRE(events.size() == 5);
  CHECK(events[0].at("args").at("name") == "measured stage 0");
  CHECK(events[1].at("args").at("name") == "computation");
  CHECK(events[2] ==
        nlohmann::json({{"name", "layers.0.mlp.fc1"},
                        {"cat", "linear"},
                        {"ph", "X"},
                        {"pid", 0},
                        {"tid", 0},
                        {"ts", 0.0},
                        {"dur", 2000.0},
                        {"args", {{"kernel", "linear"}, {"segment", "forward.0"}, {"microbatch", 0}}}}));
  CHECK(events[3].at("name") == "somewhere");
  CHECK(events[3].at("ts") == 2000.0);
  CHECK(events[3].at("dur") == 3000.0);
  CHECK(events[4].at("args").at("microbatch") == 1);
  CHECK(events[4].at("ts") == 5000.0);
  CHECK(events[4].at("dur").get<double>() == doctest::Approx(2500));
}

TEST_CASE("profile: the run's folder gets the table and the last iteration's trace") {
  const Measured measured;
  const data::TempDir folder;
  const auto table = WriteProfile(folder.path(), measured.plan, 0, measured.iterations, Rates());
  REQUIRE_MESSAGE(table.ok(), Message(table.status()));
  CHECK(*table == ProfileTable(measured.plan, measured.iterations, Rates()));
  CHECK(Contents(folder / "profile.txt") == *table);
  CHECK(Contents(folder / "trace.json") == MeasuredTrace(measured.plan, 0, measured.iterations[1]));
  Measured of_two;
  of_two.plan.mesh.pp = 2;
  REQUIRE(WriteProfile(folder.path(), of_two.plan, 1, of_two.iterations, Rates()).ok());
  CHECK(Contents(folder / "profile-1.txt") == ProfileTable(of_two.plan, of_two.iterations, Rates()));
  const nlohmann::json trace = nlohmann::json::parse(Contents(folder / "trace-1.json"));
  CHECK(trace.at("traceEvents")[0].at("args").at("name") == "measured, rank 1, stage 1");
  CHECK(Contents(folder / "trace.json") == MeasuredTrace(measured.plan, 0, measured.iterations[1]));
  CHECK_FALSE(WriteProfile(folder / "nowhere", measured.plan, 0, measured.iterations, Rates()).ok());
}

}  // namespace engine::train
