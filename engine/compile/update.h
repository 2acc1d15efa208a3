// What runs once an iteration, before the passes and behind them.
#pragma once

#include <cstdint>
#include <string>

#include "engine/compile/flat_exchange.h"
#include "engine/plan/plan.h"

namespace engine::compile {

// How weights are updated; the learning rate is the control block's.
struct OptimizerSettings {
  const plan::OptimizerDef* def = nullptr;  // never null once it is resolved
  graph::Attributes attributes;             // those of the entry
  double weight_decay = 0;
  double clip_gradient_norm = 0;  // 0: no clipping
};

// The start of an iteration or of an evaluation: zero(scalars), and the gathers that run behind the first
// passes and not within them, in the order in which these read. Gradients need no zeroing: the first
// microbatch overwrites them.
plan::Segment BeginSegment(std::string name, const plan::Plan& plan, const plan::StagePlan& stage,
                           const FlatExchange& exchange);

// Tied gradients summed over their holders; reduction of each bucket that is not early (all-reduce, or
// reduce-scatter under ZeRO-1), beside the norm of those that are where exchange is behind computation; norm
// over all stages; largest values of quantised tensors over the stage's ranks; clip factor; the optimizer; all-gather
// of parameters that are updated in shards and neither kept so nor gathered at the beginning of the next
// program, behind the update of the next where exchange is behind computation; scales of quantised tensors.
// Scratch of its kernels lies at `transient_base`; *transient_bytes: how far it reaches.
plan::Segment UpdateSegment(const plan::Plan& plan, const plan::StagePlan& stage,
                            const OptimizerSettings& optimizer, const FlatExchange& exchange,
                            const plan::DeviceProfile& profile, std::int64_t transient_base,
                            std::int64_t* transient_bytes);

// The sum of the scalars over the world.
plan::Instruction ReduceScalars(const plan::Plan& plan, const plan::StagePlan& stage);

}  // namespace engine::compile
