// From logits to the next token, and to log-probabilities.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace engine::generate {

// How the next token is chosen. The steps are done in the order in which they stand here, which is that of Hugging Face's
// transformers.
struct SamplingOptions {
  // Logits of tokens that the sequence has already: z / ρ where z > 0, else z · ρ (Keskar et al., arXiv 1909.05858). 1: as they are.
  double repetition_penalty = 1;
  double temperature = 1;  // logits are divided by it; 0: the likeliest token, whatever the keys below say
  std::int64_t top_k = 0;  // only the k likeliest tokens; 0: all
  double top_p = 1;  // only the smallest number of the likeliest tokens whose probabilities sum to p or more
  double min_p = 0;  // only tokens that are at least so many times as likely as the likeliest
  std::uint64_t seed = 0;
};

// "top_p is 2, and must be from 0 to 1": InvalidArgument where an option is out of its range.
absl::Status CheckSampling(const SamplingOptions& options);

struct Likelihood {
  std::int32_t token = 0;
  double value = 0;  // a probability, or its logarithm
};

// Whether a comes before b: it is likelier, or of the lower id if they are equally likely.
inline bool IsLikelier(const Likelihood& a, const Likelihood& b) {
  return a.value > b.value || (a.value == b.value && a.token < b.token);
}

// What is known of the tokens that may come next where not all logits are read.
struct Likeliest {
  // Logits, the likeliest first (of equals the one of the lower id). Every other token comes after them.
  std::vector<Likelihood> tokens;
  double log_sum = 0;                               // ln Σ exp z, over all tokens
  double tempered_log_sum = 0;                      // ln Σ exp (z / temperature), likewise
  std::optional<float> row_log_sum = std::nullopt;  // Decoder::ReadLogSums of the row, where there is one

  // The logarithm of the probability of a token with this logit.
  double LogProbabilityOf(double logit) const {
    return row_log_sum ? static_cast<double>(static_cast<float>(logit) - *row_log_sum) : logit - log_sum;
  }
};

// What a token is drawn from: the tokens that are left, the likeliest first (of equals the one of the lower id), and their
// probabilities, whose sum is 1; those behind that would not change the sum may be left out. `seen`: the sequence's tokens so far. Internal: a logit
// is NaN or +∞, or all are −∞.
absl::StatusOr<std::vector<Likelihood>> Distribution(std::span<const float> logits,
                                                     std::span<const std::int32_t> seen,
                                                     const SamplingOptions& options);

// Uniform in [0, 1) with 53 bits, for the token at `position` (from 0, the prompt's counted) of a request. It depends on nothing else, so
// that a sequence does not depend on what is computed beside it.
double DrawUniform(std::uint64_t seed, std::uint64_t request, std::uint64_t position);

// The token of a Distribution at which the sum of probabilities exceeds `uniform`.
std::int32_t DrawToken(std::span<const Likelihood> distribution, double uniform);

// DrawToken of the Distribution, without making more of it than the draw asks for.
absl::StatusOr<std::int32_t> ChooseToken(std::span<const float> logits, std::span<const std::int32_t> seen,
                                         const SamplingOptions& options, double uniform);
// The same but for the rounding of sums and weights to fp32, of what is known; nullopt: the draw asks for more. `likeliest` is of the options'
// temperature.
std::optional<std::int32_t> ChooseToken(const Likeliest& likeliest, const SamplingOptions& options,
                                        double uniform);

// Logarithms of probabilities of one position, of the logits as the model gives them: in float64, or, where the sum is given
// (Decoder::ReadLogSums), in float32 as a logit less the sum, which is what evaluation computes.
class LogProbabilities {
 public:
  // The logits must outlive it. Internal: as Distribution.
  static absl::StatusOr<LogProbabilities> Of(std::span<const float> logits,
                                             std::optional<float> log_sum = std::nullopt);

  double operator[](std::int32_t token) const {
    const float logit = logits_[static_cast<std::size_t>(token)];
    return in_float_ ? static_cast<double>(logit - static_cast<float>(log_sum_)) : logit - log_sum_;
  }
  // The n likeliest, the likeliest first (of equals the one of the lower id).
  std::vector<Likelihood> Top(std::int64_t n) const;

 private:
  LogProbabilities(std::span<const float> logits, double log_sum, bool in_float)
      : logits_(logits), log_sum_(log_sum), in_float_(in_float) {}

  std::span<const float> logits_;
  double log_sum_;  // ln Σ exp z
  bool in_float_;
};

}  // namespace engine::generate
