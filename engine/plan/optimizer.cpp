#include "engine/plan/optimizer.h"

#include <algorithm>
#include <array>

namespace engine::plan {
namespace {

// In the formulas, g is the gradient as the update reduced it, times the control block's gradient factor (clipping and
// 1 / loss scale); p the weight, lr the learning rate, λ the weight decay, t the updates done, this one counted.

// Adam with decoupled weight decay (Loshchilov and Hutter, arXiv:1711.05101, algorithm 2), bias-corrected, as
// torch.optim.AdamW:
//   m = β1·m + (1 − β1)·g;  v = β2·v + (1 − β2)·g²;  m̂ = m / (1 − β1ᵗ);  v̂ = v / (1 − β2ᵗ)
//   p −= lr · (m̂ / (√v̂ + ε) + λ·p)
// Its folders are older than this table: newer states are in "optimizer/<state>".
constexpr std::array kAdamWStates = {
    OptimizerState{.name = "m", .title = "first moments", .folder = "adam.m"},
    OptimizerState{.name = "v", .title = "second moments", .folder = "adam.v"},
};
constexpr std::array kAdamWAttributes = {
    OptimizerAttribute{"beta1", &recipe::Optimizer::beta1},
    OptimizerAttribute{"beta2", &recipe::Optimizer::beta2},
    OptimizerAttribute{"epsilon", &recipe::Optimizer::epsilon},
};

// Stochastic gradient descent with heavy-ball momentum μ (Polyak 1964, "Some methods of speeding up the convergence of
// iteration methods"), as torch.optim.SGD with dampening 0 and without Nesterov's variant, which is Megatron-LM's
// `--optimizer sgd`:
//   d = g + λ·p;  b = μ·b + d;  p −= lr · b
// The weight decay is coupled: it goes through the momentum. PyTorch's first step, b = d, is what a buffer of zeros
// gives. With μ = 0 the buffer is kept all the same, and holds the last d: then a run may go on with another μ.
constexpr std::array kSgdStates = {
    OptimizerState{.name = "momentum", .title = "momentum", .folder = "optimizer/momentum"},
};
constexpr std::array kSgdAttributes = {
    OptimizerAttribute{"momentum", &recipe::Optimizer::momentum},
};

}  // namespace

std::span<const OptimizerDef> AllOptimizers() {
  static constexpr std::array kOptimizers = {
      OptimizerDef{
          .kind = "adamw", .kernel = "adamw", .states = kAdamWStates, .attributes = kAdamWAttributes},
      OptimizerDef{.kind = "sgd", .kernel = "sgd", .states = kSgdStates, .attributes = kSgdAttributes},
  };
  return kOptimizers;
}

const OptimizerDef& OptimizerOf(const OptimizerDef& of_run, const graph::TrainingSettings& training) {
  static constexpr OptimizerDef kBySign = {
      .kind = "sign_step", .kernel = "sign_step", .states = {}, .attributes = {}};
  return training.sign_step > 0 ? kBySign : of_run;
}

const OptimizerDef* FindOptimizer(std::string_view kind) {
  const std::span<const OptimizerDef> all = AllOptimizers();
  const auto found = std::find_if(all.begin(), all.end(), [&](const auto& def) { return def.kind == kind; });
  return found == all.end() ? nullptr : &*found;
}

}  // namespace engine::plan
