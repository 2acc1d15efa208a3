// Models on the CPU that generate, beside one pass over the whole sequence on one rank.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/base/philox.h"
#include "engine/driver/compile_recipe.h"
#include "engine/generate/cached_decoder.h"
#include "engine/model/build.h"
#include "engine/model/load.h"
#include "engine/state/ranks.h"
#include "engine/state/weights.h"
#include "tests/data/temp_dir.h"
#include "tests/generate/hash_decoder.h"
#include "tests/train/text_testing.h"

namespace engine::generate::testing {

inline constexpr std::uint64_t kSeed = 7;
// Sums of float32 in another order; a wrong row, position or mask gives errors of the logits' own size.
inline constexpr double kCacheTolerance = 3e-5;

inline constexpr const char* kRest = R"(
[data]
source = "random"
sequence_length = 96
[optimizer]
learning_rate = 1e-3
[training]
global_batch = 1
micro_batch = 1
iterations = 1
)";

inline recipe::Recipe OfText(const std::string& text, std::vector<std::string> sets = {}) {
  return train::testing::Loaded(
      model::LoadText(text + kRest, "test.toml", {.sets = std::move(sets), .root = {}}));
}

// A published family with few features.
inline recipe::Recipe OfFamily(const std::string& model, const std::string& dims) {
  const data::TempDir folder;
  const std::string path = folder / "recipe.toml";
  const std::string configs = std::filesystem::current_path() / "configs/models";
  data::WriteFile(path, fmt::format("extends = \"{}/{}.toml\"\n[model]\ninit_std = 0.1\ndims = {{ {} }}\n{}",
                                    configs, model, dims, kRest));
  return train::testing::Loaded(model::Load(path));
}

inline std::vector<std::int32_t> RandomTokens(std::int64_t count, std::int64_t vocab) {
  std::vector<std::int32_t> tokens;
  const PhiloxKey key = MakePhiloxKey(kSeed, "tokens");
  for (std::int64_t i = 0; i < count; ++i) {
    const double uniform = UniformFromWord(PhiloxWord(key, static_cast<std::uint64_t>(i)));
    tokens.push_back(static_cast<std::int32_t>(uniform * static_cast<double>(vocab)));
  }
  return tokens;
}

inline std::unique_ptr<state::Ranks> Started(const plan::Plan& plan, const state::Device& device) {
  absl::StatusOr<std::unique_ptr<state::Ranks>> ranks = state::Ranks::Create(plan, device, 0);
  REQUIRE_MESSAGE(ranks.ok(), Message(ranks.status()));
  const absl::Status status = (*ranks)->Run(
      [&](executor::RankExecutor& rank) { return state::InitializeParameters(plan, kSeed, rank); });
  REQUIRE_MESSAGE(status.ok(), Message(status));
  return *std::move(ranks);
}

// Those that follow each token, [tokens, vocabulary], of one pass over the whole sequence on one rank.
inline std::vector<float> WholeLogits(recipe::Recipe recipe, const std::vector<std::int32_t>& tokens) {
  recipe.parallelism = {};
  const state::Device device = train::testing::CpuDevice();
  absl::StatusOr<plan::Plan> plan =
      driver::CompileRecipe(recipe, {.profile = device.profile, .training = false, .keep_logits = true});
  REQUIRE_MESSAGE(plan.ok(), Message(plan.status()));
  const std::unique_ptr<state::Ranks> ranks = Started(*plan, device);
  executor::RankExecutor& rank = *ranks->executors()[0];
  const executor::FeedFunction feed = [&](const std::string& input, std::int64_t,
                                          const backend::TensorView& host) -> absl::Status {
    for (std::int64_t s = 0; s < host.shape.elements(); ++s) {
      const std::int32_t token = s < std::ssize(tokens) ? tokens[static_cast<std::size_t>(s)] : 0;
      host.as<std::int32_t>()[s] = input == model::kPositions ? static_cast<std::int32_t>(s) : token;
    }
    return absl::OkStatus();
  };
  REQUIRE(rank.Evaluate(feed).ok());
  std::vector<float> logits;
  const float* all = rank.Logits().as<float>();
  for (std::size_t s = 0; s < tokens.size(); ++s) {
    const float* row = all + static_cast<std::int64_t>(s) * plan->vocab_rows;
    logits.insert(logits.end(), row, row + plan->vocab);
  }
  return logits;
}

struct Generating {
  explicit Generating(const recipe::Recipe& recipe, std::int64_t slots = 3)
      : Generating(recipe, ShapeFor(slots, recipe.data.sequence_length, recipe.parallelism)) {}
  Generating(const recipe::Recipe& recipe, const driver::GenerationShape& of) : shape(of) {
    absl::StatusOr<plan::Plan> compiled =
        driver::CompileGeneration(recipe, {.profile = device.profile}, shape);
    REQUIRE_MESSAGE(compiled.ok(), Message(compiled.status()));
    plan = *std::move(compiled);
    ranks = Started(plan, device);
    decoder = MakeCachedDecoder(plan, *ranks, shape);
  }

  state::Device device = train::testing::CpuDevice();
  driver::GenerationShape shape;
  plan::Plan plan;
  std::unique_ptr<state::Ranks> ranks;
  std::unique_ptr<Decoder> decoder;
};

// Rows of […, vocabulary] from `first` on are those of the whole pass.
inline void CheckRows(const std::vector<float>& rows, const std::vector<float>& whole, std::int64_t first,
                      std::int64_t vocab) {
  double most = 0;
  REQUIRE(rows.size() + static_cast<std::size_t>(first * vocab) <= whole.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const double expected = whole[static_cast<std::size_t>(first * vocab) + i];
    most = std::max(most, std::abs(rows[i] - expected) / (1 + std::abs(expected)));
  }
  CHECK(most <= kCacheTolerance);
}

// What the device tells of these rows is what their logits say.
inline void CheckLikeliest(Decoder& decoder, std::int64_t first, const std::vector<double>& temperatures,
                           const std::vector<float>& rows) {
  const auto vocab = static_cast<std::size_t>(decoder.vocabulary());
  for (std::size_t r = 0; r < temperatures.size(); ++r) {
    const absl::StatusOr<std::optional<Likeliest>> told =
        decoder.ReadLikeliest(first + static_cast<std::int64_t>(r));
    REQUIRE_MESSAGE(told.ok(), Message(told.status()));
    REQUIRE(told->has_value());
    const Likeliest& likeliest = **told;
    const std::span<const float> logits =
        std::span(rows).subspan((static_cast<std::size_t>(first) + r) * vocab, vocab);
    const Likeliest expected = testing::LikeliestOf(logits, std::ssize(likeliest.tokens), temperatures[r]);
    CHECK(likeliest.tokens.size() >= std::min<std::size_t>(vocab, 20));
    for (std::size_t n = 0; n < expected.tokens.size(); ++n) {
      CHECK(likeliest.tokens[n].token == expected.tokens[n].token);
      CHECK(likeliest.tokens[n].value == expected.tokens[n].value);
    }
    CHECK(std::abs(likeliest.log_sum - expected.log_sum) < 1e-5);
    CHECK(std::abs(likeliest.tempered_log_sum - expected.tempered_log_sum) <
          1e-6 * (10 + std::abs(expected.tempered_log_sum)));
  }
}

}  // namespace engine::generate::testing
