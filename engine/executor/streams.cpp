#include "engine/executor/streams.h"

#include <algorithm>

namespace engine::executor {

bool HasStreams(const plan::StagePlan& stage, const plan::Program& program) {
  return std::any_of(program.begin(), program.end(), [&](const plan::Step& step) {
    if (step.kind != plan::StepKind::kRun) return step.stream != plan::kComputeStream;
    const auto& instructions = stage.segments[static_cast<size_t>(step.segment)].instructions;
    return std::any_of(instructions.begin(), instructions.end(),
                       [](const plan::Instruction& i) { return i.stream != plan::kComputeStream; });
  });
}

bool LaunchesKeepAhead(const plan::StagePlan& stage, const plan::Program& program) {
  constexpr double kFlops = 2e10;  // of a launch: 30 µs of an H200
  double flops = 0;
  double launches = 0;
  for (const plan::Step& step : program) {
    if (step.kind != plan::StepKind::kRun) continue;
    const plan::Segment& segment = stage.segments[static_cast<size_t>(step.segment)];
    flops += segment.halves ? 2 * segment.flops : segment.flops;
    launches += static_cast<double>(segment.instructions.size());
  }
  return HasStreams(stage, program) && flops > kFlops * launches;
}

}  // namespace engine::executor
