#include "engine/plan/print_traffic.h"

#include <algorithm>

namespace engine::plan {

std::vector<Traffic> TrafficOf(const Plan& plan, const StagePlan& stage) {
  std::vector<Traffic> traffic;
  const auto add = [&](const Traffic& more) {
    auto it = std::find_if(traffic.begin(), traffic.end(), [&](const Traffic& t) {
      return t.kind == more.kind && t.group == more.group && t.beside == more.beside && t.push == more.push &&
             t.direct == more.direct;
    });
    if (it == traffic.end()) {
      traffic.push_back(more);
      return;
    }
    it->count += more.count;
    it->wire_bytes += more.wire_bytes;
  };
  const std::int32_t train = plan.ProgramOf(kTrainForm);
  if (train < 0) return traffic;
  const Program& program = stage.programs[static_cast<std::size_t>(train)];
  std::vector<std::int64_t> runs(stage.segments.size(), 0);
  for (const Step& step : program) {
    if (step.kind == StepKind::kRun) ++runs[static_cast<std::size_t>(step.segment)];
  }
  for (std::size_t s = 0; s < stage.segments.size(); ++s) {
    if (runs[s] == 0) continue;
    for (const Instruction& instruction : stage.segments[s].instructions) {
      if (instruction.collective() == Collective::kNone || instruction.collective() == Collective::kSlice)
        continue;
      const std::int64_t count = instruction.last_only() ? 1 : runs[s];
      add({.kind = Name(instruction.collective()),
           .group = plan.mesh.NameOf(instruction.group()),
           .beside = instruction.stream != kComputeStream,
           .push = instruction.push(),
           .direct = instruction.direct(),
           .count = count,
           .wire_bytes = count * instruction.wire_bytes()});
    }
  }
  for (const Step& step : program) {
    if (step.kind != StepKind::kSend) continue;
    const Transfer& transfer = plan.transfers[static_cast<std::size_t>(step.transfer)];
    add({.kind = "send",
         .group = "pp",
         .beside = true,
         .push = transfer.push,
         .direct = false,
         .count = 1,
         .wire_bytes = transfer.bytes});
  }
  return traffic;
}

std::vector<EqualRange> RunsOfEquals(const std::vector<std::string>& texts) {
  std::vector<EqualRange> runs;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    if (i > 0 && texts[i] == texts[i - 1]) {
      runs.back().last = i;
    } else {
      runs.push_back({i, i});
    }
  }
  return runs;
}

}  // namespace engine::plan
