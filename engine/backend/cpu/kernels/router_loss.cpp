#include <cmath>
#include <vector>

#include "engine/backend/cpu/kernels/kernels.h"
#include "engine/backend/cpu/kernels/loops.h"
#include "engine/backend/cpu/kernels/loss_scale.h"
#include "engine/backend/cpu/kernels/router_score.h"

namespace engine::backend::cpu {
namespace {

// The scores of one token, as shares of their sum, and the logarithm of that sum: both losses are made of them.
template <typename T>
struct TokenScores {
  TokenScores(const T* logits, std::int64_t experts, RouterScore kind) : p(static_cast<size_t>(experts)) {
    const auto score = [&](std::int64_t e) -> T& { return p[static_cast<size_t>(e)]; };
    const T most = MaxOf(experts, logits);
    for (std::int64_t e = 0; e < experts; ++e)
      score(e) = kind == RouterScore::kSoftmax ? Exp(logits[e] - most) : ScoreAlone(kind, logits[e]);
    sum = GuardedSum(kind, SumOf<T>(experts, score));
    for (std::int64_t e = 0; e < experts; ++e) score(e) /= sum;
    log_sum = most + std::log(sum);
  }
  std::vector<T> p;  // of sum 1
  T sum;             // of the scores before
  T log_sum;         // of exp(logits), of a softmax
};

struct Tokens {
  std::int64_t experts, count;
};
Tokens TokensOf(const TensorView& logits) {
  const int last = logits.shape.rank() - 1;
  return {logits.shape[last], logits.shape.elements(0, last)};
}

// The counts of a token's group of samples.
template <typename T>
const T* CountsOf(const KernelArgs& args, const Tokens& tokens, std::int64_t token) {
  const std::int64_t of_group = tokens.count / args.inputs[1].shape[0];
  return args.inputs[1].as<T>() + token / of_group * tokens.experts;
}

// Blocks of tokens, whose sums are added in order.
constexpr std::int64_t kBlock = 256;

template <typename Term>
void SumTokens(const KernelArgs& args, std::int64_t tokens, const Term& term) {
  std::vector<double> parts(static_cast<size_t>((tokens + kBlock - 1) / kBlock), 0.0);
  ForEachBlock(args, tokens, kBlock, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t token = first; token < last; ++token)
      parts[static_cast<size_t>(first / kBlock)] += term(token);
  });
  double sum = Accumulates(args, 0) ? *args.outputs[0].as<double>() : 0.0;
  for (const double part : parts) sum += part;
  *args.outputs[0].as<double>() = sum;
}

// E/(k·S): of the chosen, by what they would be were all chosen alike.
double BalanceFactor(const KernelArgs& args, std::int64_t experts) {
  return static_cast<double>(experts) /
         static_cast<double>(args.attributes->Int("k") * args.attributes->Int("tokens"));
}

}  // namespace

template <typename T>
void BalanceLoss(const KernelArgs& args) {
  const Tokens tokens = TokensOf(args.inputs[0]);
  const RouterScore kind = RouterScoreOf(*args.attributes);
  const double factor = BalanceFactor(args, tokens.experts);
  SumTokens(args, tokens.count, [&](std::int64_t token) {
    const TokenScores<T> scores(args.inputs[0].as<T>() + token * tokens.experts, tokens.experts, kind);
    const T* count = CountsOf<T>(args, tokens, token);
    return factor * static_cast<double>(SumOf<T>(tokens.experts, [&](std::int64_t e) {
             return count[e] * scores.p[static_cast<size_t>(e)];
           }));
  });
}

template <typename T>
void BalanceLossGrad(const KernelArgs& args) {
  const Tokens tokens = TokensOf(args.inputs[0]);
  const RouterScore kind = RouterScoreOf(*args.attributes);
  const T factor =
      static_cast<T>(BalanceFactor(args, tokens.experts) * args.attributes->Float("scale") * LossScale(args));
  ForEachBlock(args, tokens.count, kBlock, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t token = first; token < last; ++token) {
      const TokenScores<T> scores(args.inputs[0].as<T>() + token * tokens.experts, tokens.experts, kind);
      const T* count = CountsOf<T>(args, tokens, token);
      const auto p = [&](std::int64_t e) { return scores.p[static_cast<size_t>(e)]; };
      const T mean = SumOf<T>(tokens.experts, [&](std::int64_t e) { return count[e] * p(e); });
      T* d = args.outputs[0].as<T>() + token * tokens.experts;
      for (std::int64_t e = 0; e < tokens.experts; ++e) {
        // The derivative of p_e by its own logit, but for the factor that all experts share: p_e of a softmax, s'/Σ of
        // others.
        const T slope =
            kind == RouterScore::kSoftmax ? p(e) : SlopeAlone(kind, p(e) * scores.sum) / scores.sum;
        d[e] = factor * slope * (count[e] - mean);
      }
    }
  });
}

template <typename T>
void RouterZLoss(const KernelArgs& args) {
  const Tokens tokens = TokensOf(args.inputs[0]);
  SumTokens(args, tokens.count, [&](std::int64_t token) {
    const TokenScores<T> scores(args.inputs[0].as<T>() + token * tokens.experts, tokens.experts,
                                RouterScore::kSoftmax);
    return static_cast<double>(scores.log_sum) * static_cast<double>(scores.log_sum);
  });
}

template <typename T>
void RouterEntropy(const KernelArgs& args) {
  const Tokens tokens = TokensOf(args.inputs[0]);
  const RouterScore kind = RouterScoreOf(*args.attributes);
  SumTokens(args, tokens.count, [&](std::int64_t token) {
    const TokenScores<T> scores(args.inputs[0].as<T>() + token * tokens.experts, tokens.experts, kind);
    double entropy = 0;
    for (const T p : scores.p)
      entropy -= p > T(0) ? static_cast<double>(p) * std::log(static_cast<double>(p)) : 0.0;
    return entropy;
  });
}

template <typename T>
void RouterZLossGrad(const KernelArgs& args) {
  const Tokens tokens = TokensOf(args.inputs[0]);
  const T factor = static_cast<T>(2 * args.attributes->Float("scale") * LossScale(args));
  ForEachBlock(args, tokens.count, kBlock, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t token = first; token < last; ++token) {
      const TokenScores<T> scores(args.inputs[0].as<T>() + token * tokens.experts, tokens.experts,
                                  RouterScore::kSoftmax);
      T* d = args.outputs[0].as<T>() + token * tokens.experts;
      for (std::int64_t e = 0; e < tokens.experts; ++e)
        d[e] = factor * scores.log_sum * scores.p[static_cast<size_t>(e)];
    }
  });
}

template void BalanceLoss<float>(const KernelArgs&);
template void BalanceLoss<double>(const KernelArgs&);
template void BalanceLossGrad<float>(const KernelArgs&);
template void BalanceLossGrad<double>(const KernelArgs&);
template void RouterEntropy<float>(const KernelArgs&);
template void RouterEntropy<double>(const KernelArgs&);
template void RouterZLoss<float>(const KernelArgs&);
template void RouterZLoss<double>(const KernelArgs&);
template void RouterZLossGrad<float>(const KernelArgs&);
template void RouterZLossGrad<double>(const KernelArgs&);

}  // namespace engine::backend::cpu
