// What a rank sends in one training iteration.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/plan/plan.h"

namespace engine::plan {

struct Traffic {
  std::string kind;             // "all_reduce", "send", …
  std::string group;            // "tp", "dp+cp", "world", "tie", "pp"
  bool beside = false;          // behind computation, on a stream of its own
  bool push = false;            // by copy engines, where the others' memory can be reached
  bool direct = false;          // by what reads it, where that can be
  std::int64_t count = 0;       // in an iteration
  std::int64_t wire_bytes = 0;  // in an iteration, that one rank of the stage sends (ring algorithms)
};

// By kind, group and way, in order of first appearance.
std::vector<Traffic> TrafficOf(const Plan& plan, const StagePlan& stage);

// Neighbours with equal texts, as [first, last]: what a table shows as stages 1-14.
struct EqualRange {
  std::size_t first = 0;
  std::size_t last = 0;
};
std::vector<EqualRange> RunsOfEquals(const std::vector<std::string>& texts);

}  // namespace engine::plan
