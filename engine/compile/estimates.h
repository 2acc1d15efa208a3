// What passes decide by where they need times: a fixed table, so that a plan's hash depends on it and on nothing that is
// measured later. Times that are reported, and those by which layouts and whole plans are compared, are
// predict/cost_table.h's, which follow measurements.
#pragma once

#include "engine/plan/plan.h"

namespace engine::compile {

// What a rank does in a second; 0: unknown.
struct Rates {
  double matmul_flops = 0;
  double memory_bandwidth = 0;  // bytes
  double link_bandwidth = 0;    // bytes, per direction
  double attention_slowdown = 1;
};

// Of an instruction, alone on its stream.
double EstimateSeconds(const plan::Instruction& instruction, const Rates& rates);

}  // namespace engine::compile
