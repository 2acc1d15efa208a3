#include "engine/generate/sampling.h"

#include <doctest/doctest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/base/philox.h"
#include "engine/base/status.h"
#include "tests/generate/hash_decoder.h"

namespace engine::generate {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// tests/oracles/sampling.py
nlohmann::json SamplingOracle() {
  std::ifstream file(std::string(ENGINE_SOURCE_DIR) + "/tests/oracles/sampling.json");
  REQUIRE(file.good());
  return nlohmann::json::parse(file);
}

std::vector<float> OracleLogits(const nlohmann::json& oracle) {
  std::vector<float> logits;
  for (const nlohmann::json& logit : oracle["logits"])
    logits.push_back(logit.is_null() ? -kInfinity : logit.get<float>());
  return logits;
}

SamplingOptions OptionsOf(const nlohmann::json& json) {
  return {.repetition_penalty = json.value("repetition_penalty", 1.0),
          .temperature = json.value("temperature", 1.0),
          .top_k = json.value("top_k", std::int64_t{0}),
          .top_p = json.value("top_p", 1.0),
          .min_p = json.value("min_p", 0.0)};
}

std::vector<Likelihood> MustDistribute(const std::vector<float>& logits, const SamplingOptions& options,
                                       const std::vector<std::int32_t>& seen = {}) {
  const absl::StatusOr<std::vector<Likelihood>> distribution = Distribution(logits, seen, options);
  REQUIRE_MESSAGE(distribution.ok(), Message(distribution.status()));
  return *distribution;
}

}  // namespace

TEST_CASE("sampling: what a token is drawn from is the oracle's") {
  const nlohmann::json oracle = SamplingOracle();
  const std::vector<float> logits = OracleLogits(oracle);
  const auto seen = oracle["seen"].get<std::vector<std::int32_t>>();
  for (const nlohmann::json& one : oracle["cases"]) {
    INFO(one["options"].dump());
    const std::vector<Likelihood> distribution = MustDistribute(logits, OptionsOf(one["options"]), seen);
    std::map<std::string, double> probabilities;
    double last = 1;
    for (const Likelihood& token : distribution) {
      CHECK(token.value <= last);
      last = token.value;
      if (token.value > 0) probabilities[std::to_string(token.token)] = token.value;
    }
    REQUIRE(probabilities.size() == one["probabilities"].size());
    for (const auto& [token, probability] : one["probabilities"].items()) {
      REQUIRE(probabilities.count(token) == 1);
      // Sums of 40 numbers in float64, in another order.
      CHECK(std::abs(probabilities[token] - probability.get<double>()) < 40 * 0x1p-52);
    }
  }
}

TEST_CASE("sampling: log-probabilities are the oracle's, and those of the top the same floats") {
  const nlohmann::json oracle = SamplingOracle();
  const std::vector<float> logits = OracleLogits(oracle);
  const absl::StatusOr<LogProbabilities> all = LogProbabilities::Of(logits);
  REQUIRE(all.ok());
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const double value = (*all)[static_cast<std::int32_t>(i)];
    const nlohmann::json& expected = oracle["log_probabilities"][i];
    if (expected.is_null()) {
      CHECK(value == -std::numeric_limits<double>::infinity());
    } else {
      CHECK(std::abs(value - expected.get<double>()) < 1e-13);  // ln of a sum of 40 numbers, at most 20
    }
  }
  std::vector<std::int32_t> top;
  for (const Likelihood& one : all->Top(6)) {
    top.push_back(one.token);
    CHECK(one.value == (*all)[one.token]);
  }
  CHECK(top == oracle["top"].get<std::vector<std::int32_t>>());
  CHECK(all->Top(0).empty());
  CHECK(all->Top(1000).size() == logits.size());
}

TEST_CASE("sampling: draws are keyed by seed, request and position") {
  const nlohmann::json oracle = SamplingOracle();
  for (const nlohmann::json& one : oracle["draws"]) {
    CHECK(DrawUniform(one["seed"], one["request"], one["position"]) == one["uniform"].get<double>());
  }
}

// Over 20,000 draws the sum of (count − n p)² / n p has k − 1 degrees of freedom: its mean is k − 1, its variance 2 (k − 1).
TEST_CASE("sampling: draws have the probabilities of the distribution") {
  const std::vector<Likelihood> distribution = MustDistribute(
      {2.0F, 0.5F, 1.0F, -1.0F, 0.0F, 3.0F, 1.5F, -2.0F}, {.temperature = 1.3, .top_k = 7, .min_p = 0.02});
  REQUIRE(distribution.size() == 7);
  constexpr int kDraws = 20000;
  for (const bool by_position : {true, false}) {
    std::map<std::int32_t, int> counts;
    for (int i = 0; i < kDraws; ++i) {
      const auto number = static_cast<std::uint64_t>(i);
      ++counts[DrawToken(distribution, DrawUniform(5, by_position ? 3 : number, by_position ? number : 3))];
    }
    double chi_squared = 0;
    for (const Likelihood& one : distribution) {
      const double expected = kDraws * one.value;
      chi_squared += (counts[one.token] - expected) * (counts[one.token] - expected) / expected;
    }
    const double freedom = static_cast<double>(distribution.size() - 1);
    CHECK(chi_squared < freedom + 5 * std::sqrt(2 * freedom));
  }
}

TEST_CASE("sampling: the draw takes the token at which the sum exceeds the uniform number") {
  const std::vector<Likelihood> distribution = {{4, 0.5}, {2, 0.25}, {9, 0.25}};
  CHECK(DrawToken(distribution, 0) == 4);
  CHECK(DrawToken(distribution, 0.49) == 4);
  CHECK(DrawToken(distribution, 0.5) == 2);
  CHECK(DrawToken(distribution, 0.75) == 9);
  CHECK(DrawToken(distribution, std::nextafter(1.0, 0.0)) == 9);
  CHECK(DrawToken(std::vector<Likelihood>{{4, 0.5}, {2, 0.4999}}, 0.99999) ==
        2);  // where rounding leaves less than 1
}

// Logits of which many are equal, and those of 40 likely tokens.
std::vector<float> SpreadLogits(int spread) {
  std::vector<float> logits;
  for (std::uint64_t v = 0; v < 300; ++v) {
    const float uniform = UniformFromWord(PhiloxWord({7, 7}, v, static_cast<std::uint64_t>(spread)));
    logits.push_back(std::round(10 * uniform * static_cast<float>(spread)) / 10 + (v % 8 == 3 ? 3.0F : 0.0F));
  }
  return logits;
}

std::vector<SamplingOptions> ManyOptions() {
  std::vector<SamplingOptions> all;
  for (const double temperature : {0.0, 0.3, 1.0, 2.5}) {
    for (const std::int64_t top_k : {0, 1, 7, 60, 1000}) {
      for (const double top_p : {0.0, 0.4, 0.95, 1.0}) {
        for (const double min_p : {0.0, 0.2, 1.0})
          all.push_back({.temperature = temperature, .top_k = top_k, .top_p = top_p, .min_p = min_p});
      }
    }
  }
  return all;
}

// Sums in another order differ in their last bits, so that a number close to the border of two tokens may give either.
bool IsAtBorder(const std::vector<Likelihood>& distribution, double uniform) {
  double sum = 0;
  for (const Likelihood& one : distribution) {
    sum += one.value;
    if (std::abs(sum - uniform) < 1e-12) return true;
  }
  return false;
}

TEST_CASE("sampling: a token that is chosen is the draw of the distribution") {
  for (const int spread : {1, 6}) {
    const std::vector<float> logits = SpreadLogits(spread);
    for (SamplingOptions options : ManyOptions()) {
      for (const double penalty : {1.0, 1.7}) {
        options.repetition_penalty = penalty;
        const std::vector<std::int32_t> seen = {3, 11, 5};
        const std::vector<Likelihood> distribution = MustDistribute(logits, options, seen);
        for (std::uint64_t i = 0; i < 20; ++i) {
          const double uniform = DrawUniform(1, 2, i);
          if (IsAtBorder(distribution, uniform)) continue;
          const absl::StatusOr<std::int32_t> chosen = ChooseToken(logits, seen, options, uniform);
          REQUIRE(chosen.ok());
          CHECK(*chosen == DrawToken(distribution, uniform));
        }
      }
    }
  }
}

TEST_CASE("sampling: of the likeliest tokens alone the same is chosen, or none where more must be known") {
  int chosen = 0, asked = 0;
  for (const int spread : {1, 6}) {
    const std::vector<float> logits = SpreadLogits(spread);
    for (const SamplingOptions& options : ManyOptions()) {
      const Likeliest likeliest = testing::LikeliestOf(logits, 60, options.temperature);
      const std::vector<Likelihood> distribution = MustDistribute(logits, options);
      for (std::uint64_t i = 0; i < 20; ++i) {
        const double uniform = DrawUniform(1, 2, i);
        if (IsAtBorder(distribution, uniform)) continue;
        const std::optional<std::int32_t> token = ChooseToken(likeliest, options, uniform);
        ++asked;
        if (!token) continue;
        ++chosen;
        CHECK(*token == DrawToken(distribution, uniform));
      }
      // What 60 tokens tell for certain.
      const bool is_told = options.temperature == 0 || (options.top_k > 0 && options.top_k <= 60) ||
                           (options.min_p == 1 && options.top_k == 0) || options.top_p == 0;
      if (is_told && options.top_k <= 60) CHECK(ChooseToken(likeliest, options, 0.999).has_value());
    }
    CHECK(!ChooseToken(testing::LikeliestOf(logits, 60, 1), {.repetition_penalty = 1.1}, 0.5).has_value());
    CHECK(!ChooseToken(testing::LikeliestOf(logits, 60, 1), {}, 0.99999).has_value());
  }
  CHECK(chosen > asked / 2);
  CHECK(chosen < asked);
}

TEST_CASE("sampling: equal logits, logits that are no numbers, options out of range") {
  CHECK(MustDistribute({1, 3, 3, 2}, {.temperature = 0})[0].token == 1);
  CHECK(MustDistribute({1, 3, 3, 2}, {.top_k = 2})[1].token == 2);
  CHECK(MustDistribute({1, -kInfinity}, {.temperature = 1e-300})[0].value == 1);
  for (const std::vector<float>& logits : {std::vector<float>{1, NAN}, std::vector<float>{kInfinity, 1},
                                           std::vector<float>{-kInfinity, -kInfinity}}) {
    CHECK(absl::IsInternal(Distribution(logits, {}, {}).status()));
    CHECK(absl::IsInternal(LogProbabilities::Of(logits).status()));
    CHECK(absl::IsInternal(ChooseToken(logits, {}, {}, 0.5).status()));
  }
  const auto why = [](const SamplingOptions& options) { return Message(CheckSampling(options)); };
  CHECK(why({}).empty());
  CHECK(why({.repetition_penalty = 0}) == "repetition_penalty is 0, and must be from 0.01 to 100");
  CHECK(why({.temperature = -1}) == "temperature is -1, and must be from 0 to 100");
  CHECK(why({.temperature = NAN}) == "temperature is nan, and must be from 0 to 100");
  CHECK(why({.top_k = -1}) == "top_k is -1, and must not be negative");
  CHECK(why({.top_p = 1.5}) == "top_p is 1.5, and must be from 0 to 1");
  CHECK(why({.min_p = -0.5}) == "min_p is -0.5, and must be from 0 to 1");
}

}  // namespace engine::generate
