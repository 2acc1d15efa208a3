// What the streams of a program say of how to run it.
#pragma once

#include "engine/plan/plan.h"

namespace engine::executor {

// Whether the program uses other streams than that of computation.
bool HasStreams(const plan::StagePlan& stage, const plan::Program& program);

// Whether it does, and its kernels are so long on the average that the host launches faster than a GPU runs
// them. What runs beside computation then does so sooner than as a branch of a graph (docs/performance.md).
bool LaunchesKeepAhead(const plan::StagePlan& stage, const plan::Program& program);

}  // namespace engine::executor
