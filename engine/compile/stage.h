// The stage pass: what one pipeline stage stores and runs. Input is the local graph cut into chunks; output a
// StagePlan with every buffer at its place in the arena and the program unrolled over the microbatches.
#pragma once

#include <vector>

#include "engine/compile/cut.h"
#include "engine/compile/policy.h"
#include "engine/plan/plan.h"

namespace engine::compile {

struct StageInputs {
  const CutGraph* train = nullptr;               // null: the plan does not train
  const CutGraph* evaluate = nullptr;            // null: it does not evaluate
  std::vector<const CutGraph*> generation = {};  // of the plan's forms from kFirstGenerationForm on
  const Policy* policy = nullptr;
  const plan::DeviceProfile* profile = nullptr;
  bool keep_logits = false;  // CompileOptions::keep_logits

  // Those that there are, in the order of the plan's values.
  std::vector<const CutGraph*> Graphs() const {
    std::vector<const CutGraph*> graphs = {train, evaluate};
    graphs.insert(graphs.end(), generation.begin(), generation.end());
    std::erase(graphs, nullptr);
    return graphs;
  }
  // Null: the plan has no programs of the form.
  const CutGraph* GraphOf(plan::FormId form) const {
    if (form == plan::kTrainForm) return train;
    if (form == plan::kEvaluateForm) return evaluate;
    return generation[static_cast<std::size_t>(form - plan::kFirstGenerationForm)];
  }
};

// Appends the stage's plan to plan->stages; stages must be built in order. plan->chunk_stage, transfers,
// parameters and the chunks' units (first/end per chunk) are set before. Whether halves find an order in which
// to take turns: where not, the stage's plan is not whole.
bool BuildStage(const StageInputs& inputs, std::int32_t stage, const ChunkUnits& chunk_units,
                plan::Plan* plan);

}  // namespace engine::compile
