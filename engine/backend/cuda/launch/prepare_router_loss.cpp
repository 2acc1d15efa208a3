#include "engine/backend/cuda/kernels/route.h"
#include "engine/backend/cuda/kernels/router_loss.h"
#include "engine/backend/cuda/launch/prepare.h"
#include "engine/backend/cuda/launch/prepare_checks.h"
#include "engine/backend/cuda/launch/router_score.h"
#include "engine/backend/cuda/libraries/status.h"

namespace engine::backend::cuda {
namespace {

absl::StatusOr<RouterTokens> TokensOf(const char* op, const LaunchArgs& args) {
  const TensorView& logits = args.inputs[0];
  RETURN_IF_ERROR(ExpectFloat(op, {&logits}));
  const int last = logits.shape.rank() - 1;
  if (logits.shape[last] > kMostExperts) {
    return Unimplemented("{}: {} experts, CUDA kernels take {}", op, logits.shape[last], kMostExperts);
  }
  const graph::Attributes& attributes = args.instruction->attributes();
  return RouterTokens{.logits = logits.as<float>(),
                      .tokens = logits.shape.elements(0, last),
                      .of_group = args.inputs.size() == 2 && args.inputs[1].shape[0] > 0
                                      ? logits.shape.elements(0, last) / args.inputs[1].shape[0]
                                      : 1,
                      .experts = static_cast<int>(logits.shape[last]),
                      .score = attributes.Has("score") ? RouterScoreOf(attributes) : RouterScore::kSoftmax};
}

// E/(k·S): of the chosen, by what they would be were all chosen alike.
double BalanceFactor(const LaunchArgs& args, const RouterTokens& tokens) {
  const graph::Attributes& attributes = args.instruction->attributes();
  return static_cast<double>(tokens.experts) /
         static_cast<double>(attributes.Int("k") * attributes.Int("tokens"));
}

// Where a loss goes, and the numbers that it is the sum of.
struct LossSums {
  double* partial = nullptr;
  int blocks = 0;
  bool accumulate = false;
  double* loss = nullptr;
};
absl::StatusOr<LossSums> SumsOf(const char* op, const LaunchArgs& args) {
  RETURN_IF_ERROR(ExpectScratch(op, args, sizeof(double)));
  return LossSums{.partial = reinterpret_cast<double*>(args.scratch.data()),
                  .blocks = static_cast<int>(args.scratch.size() / sizeof(double)),
                  .accumulate = (args.accumulate & 1U) != 0,
                  .loss = args.outputs[0].as<double>()};
}

}  // namespace

absl::StatusOr<Enqueue> PrepareBalanceLoss(Device&, const LaunchArgs& args) {
  ASSIGN_OR_RETURN(const RouterTokens tokens, TokensOf("balance_loss", args));
  ASSIGN_OR_RETURN(const LossSums sums, SumsOf("balance_loss", args));
  RETURN_IF_ERROR(ExpectFloat("balance_loss", {&args.inputs[1]}));
  const auto* const count = args.inputs[1].as<float>();
  return [=, factor = BalanceFactor(args, tokens)](cudaStream_t stream, const KernelContext&) {
    LaunchBalanceLoss(tokens, count, factor, sums.accumulate, sums.partial, sums.blocks, sums.loss, stream);
    return ToStatus(cudaGetLastError(), "balance_loss");
  };
}

absl::StatusOr<Enqueue> PrepareBalanceLossGrad(Device&, const LaunchArgs& args) {
  ASSIGN_OR_RETURN(const RouterTokens tokens, TokensOf("balance_loss_grad", args));
  RETURN_IF_ERROR(ExpectFloat("balance_loss_grad", {&args.inputs[1], &args.outputs[0]}));
  const auto* const count = args.inputs[1].as<float>();
  auto* const d_logits = args.outputs[0].as<float>();
  const double factor = BalanceFactor(args, tokens) * args.instruction->attributes().Float("scale");
  return [=](cudaStream_t stream, const KernelContext& context) {
    LaunchBalanceLossGrad(tokens, count, factor, context.control, d_logits, stream);
    return ToStatus(cudaGetLastError(), "balance_loss_grad");
  };
}

absl::StatusOr<Enqueue> PrepareRouterZLoss(Device&, const LaunchArgs& args) {
  ASSIGN_OR_RETURN(const RouterTokens tokens, TokensOf("router_z_loss", args));
  ASSIGN_OR_RETURN(const LossSums sums, SumsOf("router_z_loss", args));
  return [=](cudaStream_t stream, const KernelContext&) {
    LaunchRouterZLoss(tokens, sums.accumulate, sums.partial, sums.blocks, sums.loss, stream);
    return ToStatus(cudaGetLastError(), "router_z_loss");
  };
}

absl::StatusOr<Enqueue> PrepareRouterEntropy(Device&, const LaunchArgs& args) {
  ASSIGN_OR_RETURN(const RouterTokens tokens, TokensOf("router_entropy", args));
  ASSIGN_OR_RETURN(const LossSums sums, SumsOf("router_entropy", args));
  return [=](cudaStream_t stream, const KernelContext&) {
    LaunchRouterEntropy(tokens, sums.accumulate, sums.partial, sums.blocks, sums.loss, stream);
    return ToStatus(cudaGetLastError(), "router_entropy");
  };
}

absl::StatusOr<Enqueue> PrepareRouterZLossGrad(Device&, const LaunchArgs& args) {
  ASSIGN_OR_RETURN(const RouterTokens tokens, TokensOf("router_z_loss_grad", args));
  RETURN_IF_ERROR(ExpectFloat("router_z_loss_grad", {&args.outputs[0]}));
  auto* const d_logits = args.outputs[0].as<float>();
  const double factor = args.instruction->attributes().Float("scale");
  return [=](cudaStream_t stream, const KernelContext& context) {
    LaunchRouterZLossGrad(tokens, factor, context.control, d_logits, stream);
    return ToStatus(cudaGetLastError(), "router_z_loss_grad");
  };
}

}  // namespace engine::backend::cuda
