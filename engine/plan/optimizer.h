// The optimizers, one entry each: which numbers an optimizer keeps for each parameter, what its kernel is told, and
// which kernel moves the weights. Passes, verifier, executor and checkpoints follow the entry of the plan
// (Plan::optimizer) and know no optimizer by name.
//
// The instruction that updates a bucket has, whatever the optimizer, these buffers, all of one shard's elements:
//   inputs   weights, gradients, the states in the entry's order; then control, f64[kControlNumbers]
//   outputs  weights and states, in place; beside master weights also the parameter, the weights rounded
// and these attributes: those of the entry, `weight_decay` (0 for parameters that do not decay), `learning_rate_scale`
// where their learning rate is not the run's, and the names of the draws that round what is kept in bf16.
#pragma once

#include <span>
#include <string_view>

#include "engine/base/dtype.h"
#include "engine/graph/graph.h"
#include "engine/recipe/recipe.h"

namespace engine::plan {

// What an optimizer keeps from one update to the next, a number for each element of the parameters.
struct OptimizerState {
  std::string_view name;   // in a plan's text: "m"
  std::string_view title;  // for people: "first moments"
  // Of its tensors in checkpoints, "<folder>/<parameter>". What was written under one name is looked for under it for
  // ever, so an entry's folders never change; no two optimizers have the same set of them.
  std::string_view folder;
  float initial = 0;          // of each element, before the first update
  bool follows_dtype = true;  // kept in optimizer.moment_dtype; false: in fp32 whatever that says
  DType StoredAs(DType moments) const { return follows_dtype ? moments : DType::kF32; }
};

// A number that the kernel is told beside the weight decay, and what the control block has: learning rate, step and
// gradient factor.
struct OptimizerAttribute {
  std::string_view name;  // of the attribute; the recipe's key is optimizer.<name>
  double recipe::Optimizer::*value;
};

struct OptimizerDef {
  std::string_view kind;    // optimizer.kind of the recipe
  std::string_view kernel;  // of the flat kernels (the backends' kernels.list)
  std::span<const OptimizerState> states;
  std::span<const OptimizerAttribute> attributes;
};

inline constexpr const char* kWeightDecay = "weight_decay";
inline constexpr const char* kLearningRateScale = "learning_rate_scale";
// Attributes of an update that rounds states, or weights, to bf16: the names of its draws.
inline constexpr const char* kStateDraws = "stream";
inline constexpr const char* kWeightDraws = "weight_stream";

std::span<const OptimizerDef> AllOptimizers();

// The optimizer of parameters that are trained so: the run's, or (TrainingSettings::sign_step) one that a run cannot name:
// p −= sign_step · sign(g), told sign_step in place of a weight decay.
const OptimizerDef& OptimizerOf(const OptimizerDef& of_run, const graph::TrainingSettings& training);
inline constexpr const char* kSignStep = "sign_step";

// Null if there is none of that kind.
const OptimizerDef* FindOptimizer(std::string_view kind);

}  // namespace engine::plan
