// The passes of the compiler: what each works on, and their list.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/status.h"
#include "engine/compile/cut.h"
#include "engine/compile/placements.h"
#include "engine/compile/policy.h"
#include "engine/graph/graph.h"
#include "engine/plan/plan.h"

namespace engine::compile {

// What one program computes, from the model's graph to its nodes by chunk. Each form is moved on to the next.
struct ProgramGraph {
  graph::Graph logical = {};
  LocalGraph local = {};  // from "place" to "cut"
  CutGraph cut = {};      // from "cut" on
};

// What the passes work on.
struct Compilation {
  const Policy& policy;
  const CompileOptions& options;
  ProgramGraph train, evaluate;               // logical graphs without nodes: not wanted
  std::vector<ProgramGraph> generation = {};  // of the plan's forms from kFirstGenerationForm on
  ChunkUnits chunks;
  plan::Plan plan;
  // Why the plan is not lawful with halves of microbatches in turns; empty: it is, or has none.
  std::string halves_refused;
  bool halves_stuck = false;  // they would wait for each other in a segment (compile/halves.h)

  // The programs that are wanted, in the order in which their values are in the plan.
  std::vector<ProgramGraph*> programs();
};

struct Pass {
  std::string_view name;
  std::string_view what;  // it does, in half a sentence
  absl::Status (*run)(Compilation*);
};

// In the order in which they run.
std::span<const Pass> Passes();

// Runs all of them, each timed and followed by CompileOptions::after.
absl::Status RunPasses(Compilation* compilation);

// What there is after a pass, one node or instruction a line: the graphs until these are cut into chunks and laid out,
// then the plan's canonical text.
std::string ToText(const Compilation& compilation);

}  // namespace engine::compile
