#include "engine/generate/sampling.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <unordered_set>

#include "engine/base/philox.h"
#include "engine/base/status.h"

namespace engine::generate {
namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();

bool IsLikelier(const Likelihood& a, const Likelihood& b) {
  return a.value > b.value || (a.value == b.value && a.token < b.token);
}

// Puts the n likeliest in front, in order, and drops the others.
void KeepLikeliest(std::int64_t n, std::vector<Likelihood>* all) {
  const auto kept = std::min(n, static_cast<std::int64_t>(all->size()));
  std::partial_sort(all->begin(), all->begin() + kept, all->end(), IsLikelier);
  all->resize(static_cast<std::size_t>(kept));
}

// The largest logit.
absl::StatusOr<double> Highest(std::span<const float> logits) {
  double highest = kNever;
  for (const float logit : logits) {
    if (!(logit < std::numeric_limits<float>::infinity()))
      return Internal("the model gave a logit that is {}", logit);
    highest = std::max(highest, static_cast<double>(logit));
  }
  if (highest == kNever) return Internal("the model gave no logit that is finite");
  return highest;
}

std::vector<Likelihood> Penalised(std::span<const float> logits, std::span<const std::int32_t> seen,
                                  double penalty) {
  std::vector<Likelihood> all(logits.size());
  for (std::size_t i = 0; i < logits.size(); ++i)
    all[i] = {.token = static_cast<std::int32_t>(i), .value = logits[i]};
  if (penalty == 1) return all;
  for (const std::int32_t token : std::unordered_set<std::int32_t>(seen.begin(), seen.end())) {
    double& value = all[static_cast<std::size_t>(token)].value;
    value = value > 0 ? value / penalty : value * penalty;
  }
  return all;
}

// Logits, of which the first is the largest, to probabilities.
void Soften(double temperature, std::vector<Likelihood>* all) {
  const double highest = all->front().value;
  double sum = 0;
  for (Likelihood& one : *all) {
    one.value = std::exp((one.value - highest) / temperature);
    sum += one.value;
  }
  for (Likelihood& one : *all) one.value /= sum;
}

// How many of the likeliest have probabilities that sum to p or more.
std::size_t CountOfTopP(const std::vector<Likelihood>& all, double p) {
  double sum = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    sum += all[i].value;
    if (sum >= p) return i + 1;
  }
  return all.size();
}

}  // namespace

absl::Status CheckSampling(const SamplingOptions& options) {
  const auto check = [](const char* name, double value, double least, double most) {
    if (value >= least && value <= most) return absl::OkStatus();
    return InvalidArgument("{} is {}, and must be from {} to {}", name, value, least, most);
  };
  RETURN_IF_ERROR(check("repetition_penalty", options.repetition_penalty, 0.01, 100));
  RETURN_IF_ERROR(check("temperature", options.temperature, 0, 100));
  RETURN_IF_ERROR(check("top_p", options.top_p, 0, 1));
  RETURN_IF_ERROR(check("min_p", options.min_p, 0, 1));
  if (options.top_k < 0) return InvalidArgument("top_k is {}, and must not be negative", options.top_k);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Likelihood>> Distribution(std::span<const float> logits,
                                                     std::span<const std::int32_t> seen,
                                                     const SamplingOptions& options) {
  RETURN_IF_ERROR(Highest(logits).status());
  std::vector<Likelihood> all = Penalised(logits, seen, options.repetition_penalty);
  if (options.temperature == 0) {
    const Likelihood best = *std::min_element(all.begin(), all.end(), IsLikelier);
    return std::vector<Likelihood>{{.token = best.token, .value = 1}};
  }
  const auto count = static_cast<std::int64_t>(all.size());
  KeepLikeliest(options.top_k > 0 ? options.top_k : count, &all);
  Soften(options.temperature, &all);
  all.resize(CountOfTopP(all, options.top_p));
  const double least = options.min_p * all.front().value;
  while (all.back().value < least) all.pop_back();
  double sum = 0;
  for (const Likelihood& one : all) sum += one.value;
  for (Likelihood& one : all) one.value /= sum;
  return all;
}

double DrawUniform(std::uint64_t seed, std::uint64_t request, std::uint64_t position) {
  const std::array<std::uint32_t, 4> words = Philox4x32(MakePhiloxKey(seed, "generate"), position, request);
  const std::uint64_t bits = (std::uint64_t{words[0]} << 32) | words[1];
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

std::int32_t DrawToken(std::span<const Likelihood> distribution, double uniform) {
  double sum = 0;
  for (const Likelihood& one : distribution) {
    sum += one.value;
    if (uniform < sum) return one.token;
  }
  return distribution.back().token;  // the sum is 1 but for rounding
}

absl::StatusOr<LogProbabilities> LogProbabilities::Of(std::span<const float> logits) {
  ASSIGN_OR_RETURN(const double highest, Highest(logits));
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - highest);
  return LogProbabilities(logits, highest + std::log(sum));
}

std::vector<Likelihood> LogProbabilities::Top(std::int64_t n) const {
  std::vector<Likelihood> all(logits_.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto token = static_cast<std::int32_t>(i);
    all[i] = {.token = token, .value = (*this)[token]};
  }
  KeepLikeliest(n, &all);
  return all;
}

}  // namespace engine::generate
