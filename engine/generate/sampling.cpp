#include "engine/generate/sampling.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <unordered_set>
#include <utility>

#include "engine/base/philox.h"
#include "engine/base/status.h"

namespace engine::generate {
namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();

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

// All tokens, the likeliest first, as they are asked for.
class HeapOfTokens {
 public:
  explicit HeapOfTokens(std::vector<Likelihood> logits) : left_(std::move(logits)) {
    std::ranges::make_heap(left_, ComesAfter);
  }
  bool has_all() const { return true; }
  std::optional<Likelihood> Next() {
    if (left_.empty()) return std::nullopt;
    std::ranges::pop_heap(left_, ComesAfter);
    const Likelihood next = left_.back();
    left_.pop_back();
    return next;
  }
  std::size_t most() const { return left_.size(); }

 private:
  static bool ComesAfter(const Likelihood& a, const Likelihood& b) { return IsLikelier(b, a); }
  std::vector<Likelihood> left_;
};

// Those that are known, in this order.
class ListOfTokens {
 public:
  ListOfTokens(std::span<const Likelihood> tokens, bool has_all) : tokens_(tokens), has_all_(has_all) {}
  bool has_all() const { return has_all_; }
  std::size_t most() const { return tokens_.size(); }
  std::optional<Likelihood> Next() {
    if (next_ == tokens_.size()) return std::nullopt;
    return tokens_[next_++];
  }

 private:
  std::span<const Likelihood> tokens_;
  bool has_all_;
  std::size_t next_ = 0;
};

// How tokens are cut off, and where it is enough to know those before.
struct Cut {
  const SamplingOptions& options;
  double highest;                                           // logit
  double total;                                             // of all weights
  double enough = std::numeric_limits<double>::infinity();  // a sum of probabilities
  bool in_float = false;                                    // weights, as the sums are that a device tells

  double WeightOf(double logit) const {
    const double exponent = (logit - highest) / options.temperature;
    return in_float ? static_cast<double>(std::exp(static_cast<float>(exponent))) : std::exp(exponent);
  }
};

// The tokens that top_p and min_p leave, and their probabilities before these leave any out. Nullopt: not all of them are known.
// `weight_of` gives the weight of a token that Tokens gives.
template <typename Tokens, typename Weight>
std::optional<std::vector<Likelihood>> Left(const Cut& cut, Tokens* tokens, const Weight& weight_of) {
  std::vector<Likelihood> left;
  left.reserve(std::min(tokens->most(), std::size_t{128}));
  const double least = cut.options.min_p / cut.total;
  double sum = 0;
  while (const std::optional<Likelihood> one = tokens->Next()) {
    const double probability = weight_of(*one) / cut.total;
    if (probability < least || probability == 0) return left;
    left.push_back({one->token, probability});
    sum += probability;
    if (sum >= cut.options.top_p || sum > cut.enough) return left;
  }
  if (!tokens->has_all()) return std::nullopt;
  return left;
}

// The same, after top_k. `cut`: of all tokens.
template <typename Tokens>
std::optional<std::vector<Likelihood>> LeftOfTop(Cut cut, Tokens* tokens) {
  const auto count = static_cast<std::size_t>(cut.options.top_k);
  if (count == 0)
    return Left(cut, tokens, [&](const Likelihood& logit) { return cut.WeightOf(logit.value); });
  std::vector<Likelihood> top;  // weights
  top.reserve(std::min(count, tokens->most()));
  cut.total = 0;
  while (top.size() < count) {
    const std::optional<Likelihood> one = tokens->Next();
    if (!one && tokens->has_all()) break;
    if (!one) return std::nullopt;
    top.push_back({one->token, cut.WeightOf(one->value)});
    cut.total += top.back().value;
  }
  ListOfTokens list(top, /*has_all=*/true);
  return Left(cut, &list, [](const Likelihood& weight) { return weight.value; });
}

// Whether no token is left out: probabilities then sum to 1 as they are, and tokens behind the drawn one do not matter.
bool IsPlain(const SamplingOptions& options) { return options.top_p == 1 && options.min_p == 0; }

double SumOf(std::span<const Likelihood> all) {
  double sum = 0;
  for (const Likelihood& one : all) sum += one.value;
  return sum;
}

double HighestOf(std::span<const Likelihood> logits) {
  double highest = kNever;
  for (const Likelihood& one : logits) highest = std::max(highest, one.value);
  return highest;
}

// LeftOfTop of all logits, with the temperature not 0.
std::vector<Likelihood> LeftOfAll(std::vector<Likelihood> logits, const SamplingOptions& options) {
  const double highest = HighestOf(logits);
  double total = 0;
  for (const Likelihood& one : logits) total += std::exp((one.value - highest) / options.temperature);
  HeapOfTokens tokens(std::move(logits));
  return *LeftOfTop({.options = options, .highest = highest, .total = total}, &tokens);
}

// DrawToken of all tokens' probabilities, whose order is not needed but close to the draw: a part of them is split at some token, and
// the side on which the draw lies is the next part (quickselect, by sums of probabilities).
std::int32_t DrawOfAll(std::vector<Likelihood> logits, double temperature, double uniform) {
  constexpr std::ptrdiff_t kFew = 64;
  const double highest = HighestOf(logits);
  for (Likelihood& one : logits) one.value = std::exp((one.value - highest) / temperature);
  double left = uniform * SumOf(logits);  // of the sum, behind what comes before the part
  std::span<Likelihood> part = logits;
  while (std::ssize(part) > kFew) {
    std::array<Likelihood, 3> some = {part.front(), part[part.size() / 2], part.back()};
    std::ranges::sort(some, IsLikelier);
    const Likelihood pivot = some[1];  // so that neither side is empty
    const auto behind = std::partition(part.begin(), part.end(),
                                       [&](const Likelihood& one) { return IsLikelier(one, pivot); });
    const auto count = static_cast<std::size_t>(behind - part.begin());
    const std::span<Likelihood> before = part.first(count);
    const double sum = SumOf(before);
    if (left < sum || pivot.value == 0) {  // behind it is nothing that could be drawn
      part = before;
    } else {
      left -= sum;
      part = part.subspan(count);
    }
  }
  std::ranges::sort(part, IsLikelier);
  std::int32_t token = part.front().token;
  for (const Likelihood& one : part) {
    if (one.value == 0) break;  // where rounding leaves the draw behind all
    token = one.token;
    left -= one.value;
    if (left < 0) break;
  }
  return token;
}

// By a number in [0, 1), of probabilities that are as before any token was left out.
std::int32_t DrawOfLeft(std::span<const Likelihood> left, const SamplingOptions& options, double uniform) {
  return DrawToken(left, IsPlain(options) ? uniform : uniform * SumOf(left));
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
  std::vector<Likelihood> left = LeftOfAll(std::move(all), options);
  const double sum = SumOf(left);
  for (Likelihood& one : left) one.value /= sum;
  return left;
}

absl::StatusOr<std::int32_t> ChooseToken(std::span<const float> logits, std::span<const std::int32_t> seen,
                                         const SamplingOptions& options, double uniform) {
  RETURN_IF_ERROR(Highest(logits).status());
  std::vector<Likelihood> all = Penalised(logits, seen, options.repetition_penalty);
  if (options.temperature == 0) return std::min_element(all.begin(), all.end(), IsLikelier)->token;
  if (IsPlain(options) && options.top_k == 0) return DrawOfAll(std::move(all), options.temperature, uniform);
  return DrawOfLeft(LeftOfAll(std::move(all), options), options, uniform);
}

std::optional<std::int32_t> ChooseToken(const Likeliest& likeliest, const SamplingOptions& options,
                                        double uniform) {
  if (options.repetition_penalty != 1 || likeliest.tokens.empty()) return std::nullopt;
  if (options.temperature == 0) return likeliest.tokens.front().token;
  // The sum is rounded to fp32, and so is the temperature that it was made by: its logarithm has to be small enough for the sum to
  // have four digits at least.
  constexpr double kLargestLogSum = 512;
  if (!(std::abs(likeliest.tempered_log_sum) < kLargestLogSum)) return std::nullopt;
  SamplingOptions rounded = options;
  rounded.temperature = static_cast<double>(static_cast<float>(options.temperature));
  const double highest = likeliest.tokens.front().value;
  const double total = std::exp(likeliest.tempered_log_sum - highest / rounded.temperature);
  ListOfTokens tokens(likeliest.tokens, /*has_all=*/false);
  Cut cut = {.options = rounded, .highest = highest, .total = total, .in_float = true};
  if (IsPlain(options)) cut.enough = uniform;
  const std::optional<std::vector<Likelihood>> left = LeftOfTop(cut, &tokens);
  if (!left) return std::nullopt;
  return DrawOfLeft(*left, options, uniform);
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

absl::StatusOr<LogProbabilities> LogProbabilities::Of(std::span<const float> logits,
                                                      std::optional<float> log_sum) {
  ASSIGN_OR_RETURN(const double highest, Highest(logits));
  if (log_sum) return LogProbabilities(logits, static_cast<double>(*log_sum), /*in_float=*/true);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - highest);
  return LogProbabilities(logits, highest + std::log(sum), /*in_float=*/false);
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
