#include <vector>

#include "engine/backend/cpu/kernels/kernels.h"
#include "engine/backend/cpu/kernels/loops.h"

namespace engine::backend::cpu {
namespace {

constexpr double kSinkhornGuard = 1e-8;

// C of a sample, [tokens, experts], and the two factors that balance it.
struct Sample {
  std::int64_t tokens, experts;
  std::vector<double> c, of_token, of_expert;
};

// One round: the tokens', then the experts'.
void Balance(Sample* sample) {
  const std::int64_t experts = sample->experts;
  std::vector<double> sums(static_cast<size_t>(experts), 0.0);
  for (std::int64_t t = 0; t < sample->tokens; ++t) {
    const double* c = sample->c.data() + t * experts;
    const double sum = SumOf<double>(
        experts, [&](std::int64_t e) { return c[e] * sample->of_expert[static_cast<size_t>(e)]; });
    const double d0 = 1.0 / static_cast<double>(sample->tokens) / (sum + kSinkhornGuard);
    sample->of_token[static_cast<size_t>(t)] = d0;
    for (std::int64_t e = 0; e < experts; ++e) sums[static_cast<size_t>(e)] += d0 * c[e];
  }
  for (std::int64_t e = 0; e < experts; ++e) {
    const auto at = static_cast<size_t>(e);
    sample->of_expert[at] = 1.0 / static_cast<double>(experts) / (sums[at] + kSinkhornGuard);
  }
}

}  // namespace

// In float64 whatever the type: its sums go over all tokens of a sample.
template <typename T>
void Sinkhorn(const KernelArgs& args) {
  const TensorView& logits = args.inputs[0];
  const int last = logits.shape.rank() - 1;
  const std::int64_t experts = logits.shape[last];
  const std::int64_t tokens = logits.shape.elements(1, last);
  ForEachBlock(args, logits.shape[0], 1, [&](std::int64_t at, std::int64_t) {
    const T* of_sample = logits.as<T>() + at * tokens * experts;
    T* ranks = args.outputs[0].as<T>() + at * tokens * experts;
    Sample sample = {tokens, experts, std::vector<double>(static_cast<size_t>(tokens * experts)),
                     std::vector<double>(static_cast<size_t>(tokens)),
                     std::vector<double>(static_cast<size_t>(experts), 1.0)};
    for (std::int64_t t = 0; t < tokens; ++t) {
      const T most = MaxOf(experts, of_sample + t * experts);
      for (std::int64_t i = t * experts; i < (t + 1) * experts; ++i)
        sample.c[static_cast<size_t>(i)] = std::exp(static_cast<double>(of_sample[i] - most));
    }
    for (std::int64_t round = 0; round < args.attributes->Int("rounds"); ++round) Balance(&sample);
    for (std::int64_t i = 0; i < tokens * experts; ++i) {
      ranks[i] = static_cast<T>(sample.of_token[static_cast<size_t>(i / experts)] *
                                sample.c[static_cast<size_t>(i)] *
                                sample.of_expert[static_cast<size_t>(i % experts)]);
    }
  });
}

template void Sinkhorn<float>(const KernelArgs&);
template void Sinkhorn<double>(const KernelArgs&);

}  // namespace engine::backend::cpu
