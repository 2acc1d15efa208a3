#include <string>

#include "engine/backend/cuda/device/device.h"
#include "engine/backend/cuda/kernels/optimizer.h"
#include "engine/backend/cuda/launch/prepare.h"
#include "engine/base/philox.h"

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
  const graph::Attributes& attributes = args.instruction->attributes;
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

absl::StatusOr<Enqueue> PrepareAdamW(Device& device, const LaunchArgs& args) {
  constexpr const char* kInputs[] = {"weights", "gradients", "first moments", "second moments"};
  for (int i = 0; i < 4; ++i) {
    const DType dtype = args.inputs[i].dtype;
    if (dtype == DType::kF32 || dtype == DType::kBF16) continue;
    return Unimplemented("adamw with {} in {}: they are f32 or bf16", kInputs[i], Name(dtype));
  }
  AdamWBuffers buffers{.weights = args.outputs[0].data,
                       .weight_dtype = args.inputs[0].dtype,
                       .grad = args.inputs[1].data,
                       .grad_dtype = args.inputs[1].dtype,
                       .m = args.outputs[1].data,
                       .v = args.outputs[2].data,
                       .moment_dtype = args.inputs[2].dtype};
  if (args.inputs[3].dtype != buffers.moment_dtype) {
    return Unimplemented("adamw with moments in {} and {}: both are f32, or both bf16",
                         Name(buffers.moment_dtype), Name(args.inputs[3].dtype));
  }
  ENGINE_CHECK(buffers.weights == args.inputs[0].data && buffers.m == args.inputs[2].data &&
                   buffers.v == args.inputs[3].data && args.outputs[0].dtype == buffers.weight_dtype &&
                   args.outputs[1].dtype == buffers.moment_dtype &&
                   args.outputs[2].dtype == buffers.moment_dtype,
               "adamw works in place");
  if (args.outputs.size() > 3) {
    buffers.parameter = args.outputs[3].data;
    buffers.parameter_dtype = args.outputs[3].dtype;
    if (buffers.weight_dtype != DType::kF32 ||
        (buffers.parameter_dtype != DType::kBF16 && buffers.parameter_dtype != DType::kF16)) {
      return Unimplemented("adamw of a parameter in {} beside master weights in {}",
                           Name(buffers.parameter_dtype), Name(buffers.weight_dtype));
    }
  }
  const graph::Attributes& attributes = args.instruction->attributes;
  const AdamWOptions options{.beta1 = attributes.Float("beta1"),
                             .beta2 = attributes.Float("beta2"),
                             .epsilon = attributes.Float("epsilon"),
                             .weight_decay = attributes.Float("weight_decay")};
  const std::int64_t count = args.inputs[0].shape.elements();
  const auto* control = args.inputs[4].as<double>();
  const int multiprocessors = device.multiprocessors();
  const std::int64_t offset = attributes.Int("offset", 0);
  const auto draws = [&](DType dtype, const char* name) {
    return dtype == DType::kBF16 ? attributes.String(name) : std::string();
  };
  const std::string moments = draws(buffers.moment_dtype, "stream");
  const std::string weights = draws(buffers.weight_dtype, "weight_stream");
  return [=](cudaStream_t stream, const KernelContext& context) {
    const AdamWRounding rounding{.moments = MakePhiloxKey(context.seed, moments),
                                 .weights = MakePhiloxKey(context.seed, weights),
                                 .offset = offset};
    AdamW(buffers, count, options, rounding, control, multiprocessors, stream);
    return ToStatus(cudaGetLastError(), "adamw");
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
