#include "engine/backend/cuda/kernels/route.h"
#include "engine/backend/cuda/kernels/sinkhorn.h"
#include "engine/backend/cuda/launch/logical_dims.h"
#include "engine/backend/cuda/launch/prepare.h"
#include "engine/backend/cuda/launch/prepare_checks.h"
#include "engine/backend/cuda/launch/router_score.h"
#include "engine/backend/cuda/libraries/status.h"

namespace engine::backend::cuda {
namespace {

absl::StatusOr<ForcedRoute> ForcedOf(const char* op, const graph::Attributes& attributes) {
  if (!attributes.Has("force")) return ForcedRoute::kNone;
  const std::string& force = attributes.String("force");
  if (force == "even") return ForcedRoute::kEven;
  if (force == "zipf") return ForcedRoute::kZipf;
  return Unimplemented("{}: no CUDA kernel forces choices that are {}", op, force);
}

absl::StatusOr<Routing> RoutingOf(const char* op, const LaunchArgs& args) {
  const graph::Attributes& attributes = args.instruction->attributes();
  const TensorView& logits = args.inputs[0];
  const int last = logits.shape.rank() - 1;
  if (logits.shape[last] > kMostExperts) {
    return Unimplemented("{}: {} experts, CUDA kernels take {}", op, logits.shape[last], kMostExperts);
  }
  Routing routing;
  routing.experts = static_cast<int>(logits.shape[last]);
  routing.k = static_cast<int>(attributes.Int("k"));
  routing.groups = static_cast<int>(attributes.Int("groups", 1));
  routing.kept = static_cast<int>(attributes.Int("kept", 1));
  routing.best = static_cast<int>(attributes.Int("best", 1));
  routing.score = RouterScoreOf(attributes);
  routing.normalize = attributes.Int("normalize") != 0;
  routing.scale = static_cast<float>(attributes.Float("scale", 1));
  ASSIGN_OR_RETURN(routing.forced, ForcedOf(op, attributes));
  if (routing.forced == ForcedRoute::kNone) return routing;
  ASSIGN_OR_RETURN(routing.tokens, LogicalDimsOf(op, logits));
  --routing.tokens.rank;  // without that of experts
  return routing;
}

}  // namespace

absl::StatusOr<Enqueue> PrepareRoute(Device&, const LaunchArgs& args) {
  const TensorView logits = args.inputs[0];
  const TensorView weight = args.outputs[1];
  const TensorView other = args.inputs.size() == 2 ? args.inputs[1] : TensorView{};
  RETURN_IF_ERROR(ExpectFloat("route", {&logits, &weight}));
  if (other.data != nullptr) RETURN_IF_ERROR(ExpectFloat("route", {&other}));
  const bool by_rank = args.instruction->attributes().Has("select");
  const float* const bias = by_rank ? nullptr : other.as<float>();
  const float* const ranks = by_rank ? other.as<float>() : nullptr;
  ASSIGN_OR_RETURN(const Routing routing, RoutingOf("route", args));
  auto* const choice = args.outputs[0].as<std::int32_t>();
  const std::int64_t tokens = logits.shape.elements() / routing.experts;
  return [=](cudaStream_t stream, const KernelContext& context) {
    Routing now = routing;
    now.key = MakePhiloxKey(context.seed, "route");
    LaunchRoute(now, tokens, logits.as<float>(), bias, ranks, choice, weight.as<float>(), stream);
    return ToStatus(cudaGetLastError(), "route");
  };
}

absl::StatusOr<Enqueue> PrepareRouteGrad(Device&, const LaunchArgs& args) {
  const TensorView logits = args.inputs[0];
  const TensorView d_weight = args.inputs[2];
  const TensorView d_logits = args.outputs[0];
  RETURN_IF_ERROR(ExpectFloat("route_grad", {&logits, &d_weight, &d_logits}));
  ASSIGN_OR_RETURN(const Routing routing, RoutingOf("route_grad", args));
  const auto* const choice = args.inputs[1].as<std::int32_t>();
  const std::int64_t tokens = logits.shape.elements() / routing.experts;
  return [=](cudaStream_t stream, const KernelContext&) {
    LaunchRouteGrad(routing, tokens, logits.as<float>(), choice, d_weight.as<float>(), d_logits.as<float>(),
                    stream);
    return ToStatus(cudaGetLastError(), "route_grad");
  };
}

absl::StatusOr<Enqueue> PrepareSinkhorn(Device&, const LaunchArgs& args) {
  const TensorView logits = args.inputs[0];
  const TensorView ranks = args.outputs[0];
  RETURN_IF_ERROR(ExpectFloat("sinkhorn", {&logits, &ranks}));
  const int last = logits.shape.rank() - 1;
  const std::int64_t of_sample = logits.shape.elements(1, last);
  constexpr std::int64_t kMostTokens = std::int64_t{1} << 30;
  if (logits.shape[last] > kMostExperts || of_sample > kMostTokens)
    return Unimplemented("sinkhorn of {}", logits.shape.ToString());
  const auto experts = static_cast<int>(logits.shape[last]);
  const auto rounds = static_cast<int>(args.instruction->attributes().Int("rounds"));
  return [=](cudaStream_t stream, const KernelContext&) {
    LaunchSinkhorn(logits.as<float>(), logits.shape[0], of_sample, experts, rounds, ranks.as<float>(),
                   stream);
    return ToStatus(cudaGetLastError(), "sinkhorn");
  };
}

}  // namespace engine::backend::cuda
