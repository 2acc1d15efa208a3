#include "engine/executor/streams.h"

#include <doctest/doctest.h>

namespace engine::executor {
namespace {

// Two runs of a segment of two kernels and an exchange.
struct Sketch {
  plan::StagePlan stage;
  plan::Program program;

  explicit Sketch(double flops) {
    plan::Segment segment;
    segment.flops = flops;
    segment.instructions.resize(3);
    segment.instructions[1].stream = plan::kExchangeStream;
    stage.segments = {segment};
    program = {{.segment = 0}, {.segment = 0}};
  }
};

}  // namespace

TEST_CASE("streams: exchange beside computation, and transfers of a pipeline") {
  Sketch sketch(1);
  CHECK(HasStreams(sketch.stage, sketch.program));
  sketch.stage.segments[0].instructions[1].stream = plan::kComputeStream;
  CHECK_FALSE(HasStreams(sketch.stage, sketch.program));
  sketch.program.push_back({.kind = plan::StepKind::kSend, .stream = plan::kSendNext});
  CHECK(HasStreams(sketch.stage, sketch.program));
}

TEST_CASE("streams: launches of 2e10 FLOPs on the average keep ahead, of a program with streams") {
  const auto ahead = [](const Sketch& sketch) { return LaunchesKeepAhead(sketch.stage, sketch.program); };
  CHECK(ahead(Sketch(6.1e10)));
  CHECK_FALSE(ahead(Sketch(5.9e10)));
  // What a program does not run does not count.
  Sketch other(6.1e10);
  other.stage.segments.push_back(Sketch(1e6).stage.segments[0]);
  other.stage.flops = 1;
  CHECK(ahead(other));
  Sketch alone(6.1e10);
  alone.stage.segments[0].instructions[1].stream = plan::kComputeStream;
  CHECK_FALSE(ahead(alone));
}

}  // namespace engine::executor
