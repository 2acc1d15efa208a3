// Tables and traces of timings made by hand.
#include "engine/train/profile.h"

#include <doctest/doctest.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "tests/data/temp_dir.h"

namespace engine::train {
namespace {

// Two products and a copy: by arithmetic 2 ms each at 10¹² FLOP/s, by memory 2 ms at 10⁹ B/s.
struct Measured {
  plan::Segment segment;
  plan::Instruction linear, copy;
  std::vector<Timings> iterations;

  Measured() {
    segment.name = "forward.0";
    linear.kernel = "linear";
    linear.name = "layers.0.mlp.fc1";
    linear.flops = 2e9;
    linear.inputs = {{.elements = 1000, .dtype = DType::kBF16}};
    copy.kernel = "copy";
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

TEST_CASE("profile: predicted is the slower of arithmetic and memory") {
  const Measured measured;
  CHECK(PredictedSeconds(measured.linear, Rates()) == doctest::Approx(2e-3));
  CHECK(PredictedSeconds(measured.copy, Rates()) == doctest::Approx(2e-3));
  recipe::Cluster slow = Rates();
  slow.memory_bandwidth = 1e5;  // 2000 bytes in 20 ms
  CHECK(PredictedSeconds(measured.linear, slow) == doctest::Approx(20e-3));
  CHECK(PredictedSeconds(measured.linear, recipe::Cluster{}) == 0);
}

// Means over both iterations: linear (8 + 4.5) / 2, copy (1 + 3) / 2.
TEST_CASE("profile: the table has a row a kernel, the largest first, and their sum") {
  const Measured measured;
  CHECK(ProfileTable(measured.iterations, Rates()) ==
        "kernel                    launches  measured ms  predicted ms   ratio\n"
        "linear                           2        6.250         4.000    1.56\n"
        "copy                             1        2.000         2.000    1.00\n"
        "all                              3        8.250         6.000    1.38\n");
  CHECK(ProfileTable({measured.iterations[1]}, recipe::Cluster{}) ==
        "kernel                    launches  measured ms  predicted ms   ratio\n"
        "linear                           2        4.500         0.000       -\n"
        "copy                             1        3.000         0.000       -\n"
        "all                              3        7.500         0.000       -\n");
}

TEST_CASE("profile: the trace is Chrome's, in microseconds") {
  const Measured measured;
  const nlohmann::json trace = nlohmann::json::parse(ChromeTrace(measured.iterations[1]));
  CHECK(trace.at("displayTimeUnit") == "ms");
  const nlohmann::json& events = trace.at("traceEvents");
  REQUIRE(events.size() == 3);
  CHECK(events[0] ==
        nlohmann::json({{"name", "layers.0.mlp.fc1"},
                        {"cat", "linear"},
                        {"ph", "X"},
                        {"pid", 0},
                        {"tid", 0},
                        {"ts", 0.0},
                        {"dur", 2000.0},
                        {"args", {{"kernel", "linear"}, {"segment", "forward.0"}, {"microbatch", 0}}}}));
  CHECK(events[1].at("name") == "somewhere");
  CHECK(events[1].at("ts") == 2000.0);
  CHECK(events[1].at("dur") == 3000.0);
  CHECK(events[2].at("args").at("microbatch") == 1);
  CHECK(events[2].at("ts") == 5000.0);
  CHECK(events[2].at("dur") == 2500.0);
}

TEST_CASE("profile: the run's folder gets the table and the last iteration's trace") {
  const Measured measured;
  const data::TempDir folder;
  const auto table = WriteProfile(folder.path(), measured.iterations, Rates());
  REQUIRE_MESSAGE(table.ok(), Message(table.status()));
  CHECK(*table == ProfileTable(measured.iterations, Rates()));
  CHECK(Contents(folder / "profile.txt") == *table);
  CHECK(Contents(folder / "trace.json") == ChromeTrace(measured.iterations[1]));
  CHECK_FALSE(WriteProfile(folder / "nowhere", measured.iterations, Rates()).ok());
}

}  // namespace engine::train
