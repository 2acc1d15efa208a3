// The compiler: forward graphs → plan. The list of passes is in passes.cpp.
#pragma once

#include <string>
#include <vector>

#include "engine/compile/policy.h"
#include "engine/graph/graph.h"
#include "engine/plan/plan.h"

namespace engine::compile {

struct Compiled {
  plan::Plan plan;
  // Why this plan must not run: its microbatches cannot be cut into halves that run in turns, and have to be compiled
  // whole (CompileOptions::halves). Empty: it may.
  std::string halves_refused;
};

// The forward graph of a form that generates.
struct GenerationGraph {
  plan::Form form;
  graph::Graph graph;
};

// `train` and `evaluate` are the model's forward graphs of one microbatch of policy.microbatch_samples, with and
// without dropout (the passes know no model); the one that is not wanted is not looked at. `generation`: of
// further forms, with the same parameters in the same order. Errors are the recipe's: a
// layout that this model does not allow.
absl::StatusOr<Compiled> Compile(const Policy& policy, graph::Graph train, graph::Graph evaluate,
                                 const CompileOptions& options, std::vector<GenerationGraph> generation = {});

}  // namespace engine::compile
