// What linear_cross_entropy and linear_cross_entropy_fp8 read and make (ops/fused.h), which is more or less by the
// attributes that they have.
#pragma once

#include <cstddef>
#include <optional>

#include "engine/backend/backend.h"
#include "engine/backend/cuda/kernels/cross_entropy.h"
#include "engine/graph/graph.h"

namespace engine::backend::cuda {

inline LogitMap LogitMapOf(const graph::Attributes& attributes) {
  return {.by = attributes.Float("by", 1), .cap = attributes.Float("cap", 0)};
}

struct HeadOutputs {
  struct Sum {
    TensorView tensor;
    bool adds = false;  // to what is there
  };
  TensorView d_x;
  std::optional<Sum> d_w;  // none of a frozen table
  Sum loss;
  std::optional<Sum> d_bias;
};

inline HeadOutputs HeadOutputsOf(const LaunchArgs& args) {
  const graph::Attributes& attributes = args.instruction->attributes();
  std::size_t next = 1;
  const auto take = [&] {
    const std::size_t output = next++;
    return HeadOutputs::Sum{args.outputs[output], (args.accumulate >> output & 1U) != 0};
  };
  HeadOutputs outputs;
  outputs.d_x = args.outputs[0];
  if (attributes.Int("frozen", 0) == 0) outputs.d_w = take();
  outputs.loss = take();
  if (attributes.Int("bias", 0) != 0) outputs.d_bias = take();
  return outputs;
}

}  // namespace engine::backend::cuda
