// Running load: how often experts were chosen so far in this iteration (global_aux_loss of Megatron-LM)
//
//   running_load(count[g, E], load[E + 2]) → load, mean[1, E]
//     count: of a microbatch; its g groups of samples are added up
//     mean:  of the microbatches of this iteration so far, this one among them
//     load:  the number of the iteration, from 1; how many microbatches of it were counted; their counts. With the first
//            microbatch of another iteration it begins at 0. Whole numbers, which float32 has up to 16,777,216
//
// load is a state (graph/state.h), moved in place. Microbatches are counted in the order in which they
// pass, so what is made of it depends on how the batch is cut.
//
// Placement: whole. No gradient.
#include "engine/ops/common.h"
#include "engine/ops/ops.h"

namespace engine::ops {
namespace {

Types InferRunningLoad(TypeSpan inputs, const Attributes&) {
  RETURN_IF_ERROR(ExpectInputs(inputs, 2, 2, "running_load"));
  const Shape& count = inputs[0].shape;
  if (count.rank() != 2 || inputs[1].shape != Shape{count[1] + 2} || inputs[1].dtype != inputs[0].dtype)
    return Internal("running_load {} of {}", inputs[1].shape.ToString(), count.ToString());
  TensorType mean = inputs[0];
  mean.shape[0] = 1;
  return std::vector<TensorType>{inputs[1], mean};
}

Work RunningLoadWork(TypeSpan inputs, TypeSpan outputs, const Attributes&) {
  return {.flops = Elements(inputs[0]), .bytes = Bytes(inputs) + Bytes(outputs)};
}

std::vector<Signature> RunningLoadSignatures(TypeSpan, const Attributes&, const AxisRule&) {
  const Placement r = Placement::R();
  return {{{r, r}, {r, r}}};
}

}  // namespace

const OpDef kRunningLoad{.name = "running_load",
                         .infer = InferRunningLoad,
                         .work = RunningLoadWork,
                         .signatures = RunningLoadSignatures,
                         .in_place_input = 1};

}  // namespace engine::ops
