#include <iterator>
#include <string>
#include <utility>

#include "engine/backend/cuda/device/device.h"
#include "engine/backend/cuda/kernels/optimizer.h"
#include "engine/backend/cuda/launch/prepare.h"
#include "engine/base/philox.h"
#include "engine/plan/optimizer.h"

namespace engine::backend::cuda {
namespace {

bool IsElementType(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16;
}

std::size_t Bytes(const TensorView& view) {
  return static_cast<std::size_t>(view.shape.elements() * SizeOf(view.dtype));
}

}  // namespace

absl::StatusOr<Enqueue> PrepareSumSquares(Device&, const LaunchArgs& args) {
  const TensorView x = args.inputs[0];
  const TensorView sum = args.outputs[0];
  if (!IsElementType(x.dtype) || sum.dtype != DType::kF64) {
    return Unimplemented("sum_squares of {} into {}", Name(x.dtype), Name(sum.dtype));
  }
  const bool accumulate = (args.accumulate & 1U) != 0;
  auto* partial = reinterpret_cast<double*>(args.scratch.data());
  const int blocks = static_cast<int>(args.scratch.size() / sizeof(double));
  ENGINE_CHECK(blocks > 0, "sum_squares has no scratch");
  return [=](cudaStream_t stream, const KernelContext&) {
    SumSquares(x.data, x.dtype, x.shape.elements(), accumulate, partial, blocks, sum.as<double>(), stream);
    return ToStatus(cudaGetLastError(), "sum_squares");
  };
}

absl::StatusOr<Enqueue> PrepareClipFactor(Device&, const LaunchArgs& args) {
  const auto* scalars = args.inputs[0].as<double>();
  auto* control = args.outputs[0].as<double>();
  const graph::Attributes& attributes = args.instruction->attributes();
  ClipOptions options{.clip = attributes.Float("clip"), .dynamic = attributes.Int("dynamic", 0) != 0};
  options.skips = options.dynamic || attributes.Int("constant", 0) != 0;
  if (options.dynamic) {
    options.window = static_cast<double>(attributes.Int("window"));
    options.hysteresis = static_cast<double>(attributes.Int("hysteresis"));
    options.min_scale = attributes.Float("min_scale");
  }
  return [=](cudaStream_t stream, const KernelContext&) {
    ClipFactor(scalars, options, control, stream);
    return ToStatus(cudaGetLastError(), "clip_factor");
  };
}

namespace {

// An update's buffers in place, and the names of its draws (plan/optimizer.h).
struct PreparedUpdate {
  UpdateBuffers buffers;
  std::int64_t count = 0;
  const double* control = nullptr;
  std::int64_t offset = 0;
  std::string state_draws = {}, weight_draws = {};  // empty: none

  UpdateRounding RoundingOf(const KernelContext& context) const {
    return {.states = MakePhiloxKey(context.seed, state_draws),
            .weights = MakePhiloxKey(context.seed, weight_draws),
            .offset = offset};
  }
};

// Error: the kernels have no such types.
absl::StatusOr<PreparedUpdate> PrepareUpdate(const LaunchArgs& args, const plan::OptimizerDef& optimizer) {
  const std::size_t states = optimizer.states.size();
  PreparedUpdate update{.buffers = {.weights = args.outputs[0].data,
                                    .weight_dtype = args.inputs[0].dtype,
                                    .grad = args.inputs[1].data,
                                    .grad_dtype = args.inputs[1].dtype},
                        .count = args.inputs[0].shape.elements(),
                        .control = args.inputs[2 + states].as<double>()};
  UpdateBuffers& buffers = update.buffers;
  ENGINE_CHECK(states <= std::size(buffers.states), "{} keeps {} states", optimizer.kind, states);
  bool in_place = buffers.weights == args.inputs[0].data && args.outputs[0].dtype == buffers.weight_dtype;
  for (std::size_t s = 0; s < states; ++s) {
    const TensorView& state = args.inputs[2 + s];
    buffers.states[s] = state.data;
    if (s == 0) buffers.state_dtype = state.dtype;
    if (state.dtype != buffers.state_dtype) {
      return Unimplemented("{} with states in {} and {}: all are f32, or all bf16", optimizer.kernel,
                           Name(buffers.state_dtype), Name(state.dtype));
    }
    in_place = in_place && args.outputs[1 + s].data == state.data && args.outputs[1 + s].dtype == state.dtype;
  }
  ENGINE_CHECK(in_place, "{} works in place", optimizer.kernel);
  for (const auto& [what, dtype] :
       {std::pair("weights", buffers.weight_dtype), std::pair("gradients", buffers.grad_dtype),
        std::pair("states", buffers.state_dtype)}) {
    if (dtype == DType::kF32 || dtype == DType::kBF16) continue;
    return Unimplemented("{} with {} in {}: they are f32 or bf16", optimizer.kernel, what, Name(dtype));
  }
  if (args.outputs.size() > 1 + states) {
    const TensorView& parameter = args.outputs[1 + states];
    buffers.parameter = parameter.data;
    buffers.parameter_dtype = parameter.dtype;
    if (buffers.weight_dtype != DType::kF32 ||
        (parameter.dtype != DType::kBF16 && parameter.dtype != DType::kF16)) {
      return Unimplemented("{} of a parameter in {} beside master weights in {}", optimizer.kernel,
                           Name(parameter.dtype), Name(buffers.weight_dtype));
    }
  }
  const graph::Attributes& attributes = args.instruction->attributes();
  update.offset = attributes.Int("offset", 0);
  if (buffers.state_dtype == DType::kBF16) update.state_draws = attributes.String(plan::kStateDraws);
  if (buffers.weight_dtype == DType::kBF16) update.weight_draws = attributes.String(plan::kWeightDraws);
  return update;
}

}  // namespace

absl::StatusOr<Enqueue> PrepareAdamW(Device& device, const LaunchArgs& args) {
  ASSIGN_OR_RETURN(const PreparedUpdate update, PrepareUpdate(args, *plan::FindOptimizer("adamw")));
  const graph::Attributes& attributes = args.instruction->attributes();
  const AdamWOptions options{.beta1 = attributes.Float("beta1"),
                             .beta2 = attributes.Float("beta2"),
                             .epsilon = attributes.Float("epsilon"),
                             .weight_decay = attributes.Float(plan::kWeightDecay),
                             .learning_rate_scale = attributes.Float(plan::kLearningRateScale, 1)};
  const int multiprocessors = device.multiprocessors();
  return [=](cudaStream_t stream, const KernelContext& context) {
    AdamW(update.buffers, update.count, options, update.RoundingOf(context), update.control, multiprocessors,
          stream);
    return ToStatus(cudaGetLastError(), "adamw");
  };
}

absl::StatusOr<Enqueue> PrepareSgd(Device& device, const LaunchArgs& args) {
  ASSIGN_OR_RETURN(const PreparedUpdate update, PrepareUpdate(args, *plan::FindOptimizer("sgd")));
  const graph::Attributes& attributes = args.instruction->attributes();
  const SgdOptions options{.momentum = attributes.Float("momentum"),
                           .weight_decay = attributes.Float(plan::kWeightDecay),
                           .learning_rate_scale = attributes.Float(plan::kLearningRateScale, 1)};
  const int multiprocessors = device.multiprocessors();
  return [=](cudaStream_t stream, const KernelContext& context) {
    Sgd(update.buffers, update.count, options, update.RoundingOf(context), update.control, multiprocessors,
        stream);
    return ToStatus(cudaGetLastError(), "sgd");
  };
}

absl::StatusOr<Enqueue> PrepareSignStep(Device&, const LaunchArgs& args) {
  const TensorView weights = args.outputs[0];
  const TensorView grad = args.inputs[1];
  if (weights.dtype != DType::kF32 || grad.dtype != DType::kF32)
    return Unimplemented("sign_step of {} by {}", Name(weights.dtype), Name(grad.dtype));
  ENGINE_CHECK(weights.data == args.inputs[0].data, "sign_step works in place");
  const double step = args.instruction->attributes().Float(plan::kSignStep);
  const double* control = args.inputs[2].as<double>();
  return [=](cudaStream_t stream, const KernelContext&) {
    SignStep(weights.as<float>(), grad.as<float>(), weights.shape.elements(), step, control, stream);
    return ToStatus(cudaGetLastError(), "sign_step");
  };
}

absl::StatusOr<Enqueue> PrepareAddShard(Device&, const LaunchArgs& args) {
  const TensorView x = args.inputs[0];
  const TensorView sum = args.outputs[0];
  if (!IsElementType(x.dtype) || sum.dtype != DType::kF32) {
    return Unimplemented("add_shard of {} into {}", Name(x.dtype), Name(sum.dtype));
  }
  if (x.shape.elements() != sum.shape.elements()) {
    return Internal("add_shard of {} elements into {}", x.shape.elements(), sum.shape.elements());
  }
  const bool accumulate = (args.accumulate & 1U) != 0;
  return [=](cudaStream_t stream, const KernelContext&) {
    AddShard(x.data, x.dtype, x.shape.elements(), accumulate, sum.as<float>(), stream);
    return ToStatus(cudaGetLastError(), "add_shard");
  };
}

absl::StatusOr<Enqueue> PrepareZero(Device&, const LaunchArgs& args) {
  void* data = args.outputs[0].data;
  const std::size_t bytes = Bytes(args.outputs[0]);
  return [=](cudaStream_t stream, const KernelContext&) {
    return ToStatus(cudaMemsetAsync(data, 0, bytes, stream), "zero");
  };
}

absl::StatusOr<Enqueue> PrepareCopy(Device&, const LaunchArgs& args) {
  const void* from = args.inputs[0].data;
  void* to = args.outputs[0].data;
  const std::size_t bytes = Bytes(args.outputs[0]);
  return [=](cudaStream_t stream, const KernelContext&) {
    if (from == to) return absl::OkStatus();
    return ToStatus(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream), "copy");
  };
}

}  // namespace engine::backend::cuda
