#include "engine/plan/print_traffic.h"

#include <algorithm>

namespace engine::plan {

std::vector<Traffic> TrafficOf(const Plan& plan, const StagePlan& stage) {
  std::vector<Traffic> traffic;
  const auto add = [&](const std::string& kind, const std::string& group, std::int64_t count,
                       std::int64_t bytes) {
    auto it = std::find_if(traffic.begin(), traffic.end(),
                           [&](const Traffic& t) { return t.kind == kind && t.group == group; });
    if (it == traffic.end()) it = traffic.insert(traffic.end(), {.kind = kind, .group = group});
    it->count += count;
    it->wire_bytes += count * bytes;
  };
  std::vector<std::int64_t> runs(stage.segments.size(), 0);
  for (const Step& step : stage.train) {
    if (step.kind == StepKind::kRun) ++runs[static_cast<std::size_t>(step.segment)];
  }
  for (std::size_t s = 0; s < stage.segments.size(); ++s) {
    if (runs[s] == 0) continue;
    for (const Instruction& instruction : stage.segments[s].instructions) {
      if (instruction.collective == Collective::kNone || instruction.collective == Collective::kSlice)
        continue;
      add(Name(instruction.collective), instruction.group.ToString(), runs[s], instruction.wire_bytes);
    }
  }
  for (const Step& step : stage.train) {
    if (step.kind == StepKind::kSend)
      add("send", "pp", 1, plan.transfers[static_cast<std::size_t>(step.transfer)].bytes);
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
