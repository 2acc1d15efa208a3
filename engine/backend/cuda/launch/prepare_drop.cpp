#include "engine/backend/cuda/kernels/drop.h"
#include "engine/backend/cuda/launch/prepare.h"
#include "engine/backend/cuda/launch/prepare_checks.h"
#include "engine/backend/cuda/libraries/status.h"
#include "engine/plan/control.h"

namespace engine::backend::cuda {

absl::StatusOr<Enqueue> PrepareDrop(Device&, const LaunchArgs& args) {
  const TensorView choice = args.inputs[0];
  const TensorView weight = args.inputs[1];
  const TensorView kept = args.outputs[0];
  if (choice.dtype != DType::kI32 || weight.dtype != DType::kF32)
    return Unimplemented("drop of {} by {}", Name(choice.dtype), Name(weight.dtype));
  const graph::Attributes& attributes = args.instruction->attributes();
  const std::int64_t of_group = attributes.Int("samples", 1);
  const SampleChoices choices = {.choice = choice.as<std::int32_t>(),
                                 .samples = choice.shape[0] / of_group,
                                 .of_sample = of_group * choice.shape.elements(1, choice.shape.rank()),
                                 .experts = static_cast<std::int32_t>(attributes.Int("experts"))};
  constexpr std::int64_t kMostSamples = 65535;  // of a grid's second dim
  if (choices.samples > kMostSamples) return Unimplemented("drop of {} samples", choices.samples);
  const float* by = attributes.String("by") == "weight" ? weight.as<float>() : nullptr;
  const std::int64_t cap = attributes.Int("cap");
  return [=](cudaStream_t stream, const KernelContext&) {
    Drop(choices, by, cap, kept.as<std::int32_t>(), stream);
    return ToStatus(cudaGetLastError(), "drop");
  };
}

absl::StatusOr<Enqueue> PrepareDropCount(Device&, const LaunchArgs& args) {
  const TensorView kept = args.inputs[0];
  const TensorView count = args.outputs[0];
  const bool accumulate = (args.accumulate & 1U) != 0;
  return [=](cudaStream_t stream, const KernelContext&) {
    DropCount(kept.as<std::int32_t>(), kept.shape.elements(), accumulate, count.as<double>(), stream);
    return ToStatus(cudaGetLastError(), "drop_count");
  };
}

absl::StatusOr<Enqueue> PrepareRouteLoad(Device&, const LaunchArgs& args) {
  const TensorView choice = args.inputs[0];
  const TensorView load = args.outputs[0];
  if (load.dtype != DType::kF32) return Unimplemented("route_load in {}", Name(load.dtype));
  const bool accumulate = (args.accumulate & 1U) != 0;
  return [=](cudaStream_t stream, const KernelContext&) {
    RouteLoad(choice.as<std::int32_t>(), choice.shape.elements(), static_cast<std::int32_t>(load.shape[0]),
              accumulate, load.as<float>(), stream);
    return ToStatus(cudaGetLastError(), "route_load");
  };
}

absl::StatusOr<Enqueue> PrepareRouteCount(Device&, const LaunchArgs& args) {
  const TensorView choice = args.inputs[0];
  const TensorView count = args.outputs[0];
  constexpr std::int64_t kMost = 12288;  // whose counts fill 48 KiB of shared memory
  if (count.shape[0] > kMost) return Unimplemented("route_count of {} experts", count.shape[0]);
  const bool accumulate = (args.accumulate & 1U) != 0;
  return [=](cudaStream_t stream, const KernelContext&) {
    RouteCount(choice.as<std::int32_t>(), choice.shape.elements(), static_cast<std::int32_t>(count.shape[0]),
               accumulate, count.as<double>(), stream);
    return ToStatus(cudaGetLastError(), "route_count");
  };
}

absl::StatusOr<Enqueue> PrepareRunningLoad(Device&, const LaunchArgs& args) {
  const TensorView count = args.inputs[0];
  const TensorView mean = args.outputs[1];
  RETURN_IF_ERROR(ExpectFloat("running_load", {&count, &mean, &args.inputs[1], &args.outputs[0]}));
  const auto* const before = args.inputs[1].as<float>();
  auto* const load = args.outputs[0].as<float>();
  return [=](cudaStream_t stream, const KernelContext& context) {
    RunningLoad(count.as<float>(), count.shape[0], static_cast<std::int32_t>(count.shape[1]), before,
                context.control + plan::kIteration, mean.as<float>(), load, stream);
    return ToStatus(cudaGetLastError(), "running_load");
  };
}

}  // namespace engine::backend::cuda
