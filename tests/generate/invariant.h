// generate.invariant: what a decoder gives of a sequence, beside evaluation and training's forward pass of the same tokens.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/base/extent.h"
#include "engine/base/philox.h"
#include "engine/driver/compile_recipe.h"
#include "engine/generate/cached_decoder.h"
#include "engine/model/build.h"
#include "engine/state/ranks.h"
#include "engine/state/state.h"
#include "engine/state/weights.h"

namespace engine::generate::testing {

inline void MustBe(const absl::Status& status) { REQUIRE_MESSAGE(status.ok(), Message(status)); }

// The model of a plan on a device, with weights that the seed gives.
struct Model {
  Model(plan::Plan of, const state::Device& device) : plan(std::move(of)) {
    absl::StatusOr<std::unique_ptr<state::Ranks>> made = state::Ranks::Create(plan, device, 0);
    MustBe(made.status());
    ranks = *std::move(made);
    MustBe(
        ranks->Run([&](executor::RankExecutor& rank) { return state::InitializeParameters(plan, 7, rank); }));
  }
  plan::Plan plan;
  std::unique_ptr<state::Ranks> ranks;
};

// Of the next token at each place of a sequence.
struct Evaluated {
  std::vector<float> logits;             // [tokens, vocabulary]
  std::vector<float> log_probabilities;  // of the token that follows there
  double loss = 0;                       // that training's forward pass gives, summed over the places
};

// What ranks hold of the first sample of a tensor [samples, tokens, width], or of one without a width: whole[tokens, width] gets their elements.
inline void JoinSample(const Extent& extent, const Shape& shape, const std::vector<float>& part,
                       std::int64_t width, std::vector<float>* whole) {
  const std::int64_t columns = shape.rank() > 2 ? shape[2] : 1;
  for (std::int64_t i = 0; i < std::ssize(part); ++i) {
    if (LogicalIndex(extent.dims[0], i / (columns * shape[1])) != 0) continue;
    const std::int64_t token = LogicalIndex(extent.dims[1], i / columns % shape[1]);
    const std::int64_t column = shape.rank() > 2 ? LogicalIndex(extent.dims[2], i % columns) : 0;
    const std::int64_t at = token * width + column;
    if (token < 0 || column < 0 || column >= width || at >= std::ssize(*whole)) continue;
    (*whole)[static_cast<std::size_t>(at)] = part[static_cast<std::size_t>(i)];
  }
}

// Of the sequence, which every sample is.
inline Evaluated EvaluationOf(const recipe::Recipe& recipe, const std::function<state::Device()>& make_device,
                              const std::vector<std::int32_t>& tokens) {
  const executor::FeedFunction feed = [&](const std::string& input, std::int64_t,
                                          const backend::TensorView& host) -> absl::Status {
    const std::int64_t held = host.shape.elements(1, host.shape.rank());
    for (std::int64_t i = 0; i < host.shape.elements(); ++i) {
      const std::int64_t s = LogicalIndex(host.extent.dims[1], i % held);
      const std::int64_t at = input == model::kLabels ? s + 1 : s;
      const std::int32_t token = at < std::ssize(tokens) ? tokens[static_cast<std::size_t>(at)] : -1;
      host.as<std::int32_t>()[i] = input == model::kPositions ? static_cast<std::int32_t>(s) : token;
    }
    return absl::OkStatus();
  };
  const auto compiled = [&](const state::Device& device, bool training) {
    absl::StatusOr<plan::Plan> plan = driver::CompileRecipe(
        recipe, {.profile = device.profile, .training = training, .keep_logits = true, .keep_scores = true});
    MustBe(plan.status());
    return *std::move(plan);
  };
  Evaluated of;
  {
    const state::Device device = make_device();
    const Model trained(compiled(device, true), device);
    std::vector<double> sums;
    MustBe(trained.ranks->Run([&](executor::RankExecutor& rank) -> absl::Status {
      ASSIGN_OR_RETURN(const executor::IterationResult result, rank.Train(0, 1, 0.0, feed));
      if (rank.rank() == 0) sums = result.sums;
      return absl::OkStatus();
    }));
    const auto loss = std::find_if(trained.plan.metrics.begin(), trained.plan.metrics.end(),
                                   [](const plan::PlanMetric& metric) { return metric.name == "loss"; });
    REQUIRE(loss != trained.plan.metrics.end());  // beside those of routers
    of.loss = sums[static_cast<std::size_t>(loss->first)] / static_cast<double>(trained.plan.global_batch);
  }
  const state::Device device = make_device();
  const Model evaluated(compiled(device, false), device);
  MustBe(evaluated.ranks->Run([&](executor::RankExecutor& rank) { return rank.Evaluate(feed).status(); }));
  of.logits.resize(tokens.size() * static_cast<std::size_t>(evaluated.plan.vocab), NAN);
  of.log_probabilities.resize(tokens.size(), NAN);
  for (const std::unique_ptr<executor::RankExecutor>& rank : evaluated.ranks->executors()) {
    const auto scores = rank->Scores();
    MustBe(scores.status());
    if (!scores->has_value()) continue;  // of a stage that makes none
    const Extent& extent = (*scores)->extent;
    JoinSample(extent, {Length(extent.dims[0]), Length(extent.dims[1])}, (*scores)->log_probabilities, 1,
               &of.log_probabilities);
    const backend::TensorView view = rank->Logits();
    std::vector<float> part(static_cast<std::size_t>(view.shape.elements()));
    MustBe(state::DownloadFloats(view.data, view.dtype, rank->backend(), part));
    JoinSample(view.extent, view.shape, part, evaluated.plan.vocab, &of.logits);
  }
  return of;
}

// Logits and sums of logits of the sequence, [tokens, vocabulary] and [tokens]: a prompt in slot 1, then token by token beside
// others that come and go, in all slots at times. Without generate.invariant there are no sums.
struct Told {
  std::vector<float> logits, sums;
};
inline Told TokenByToken(Decoder& decoder, const std::vector<std::int32_t>& tokens, std::size_t prompt) {
  Told told;
  const std::span<const std::int32_t> all(tokens);
  const auto length = static_cast<std::int64_t>(prompt);
  const auto add_sums = [&](std::int64_t first, std::int64_t count) {
    const absl::StatusOr<std::vector<float>> sums = decoder.ReadLogSums(first, count);
    MustBe(sums.status());
    told.sums.insert(told.sums.end(), sums->begin(), sums->end());
  };
  MustBe(decoder.PrefillAndRead(1, all.first(prompt), length, &told.logits));
  add_sums(0, length);
  std::vector<float> rows;
  for (std::int64_t slot = 0; slot < decoder.slots(); ++slot) {
    if (slot != 1)
      MustBe(decoder.PrefillAndRead(slot, all.first(static_cast<std::size_t>(5 + slot % 2)), 1, &rows));
  }
  for (std::size_t s = prompt; s < tokens.size(); ++s) {
    std::vector<Decoder::Next> next = {{1, tokens[s]}};
    if (s % 2 == 0) next.insert(next.begin(), {0, tokens[s - 1]});
    for (std::int64_t slot = 2; slot < decoder.slots() && s % 3 == 0; ++slot)
      next.push_back({slot, tokens[s - static_cast<std::size_t>(slot % 5)]});
    MustBe(decoder.StepAndRead(next, &rows));
    const std::int64_t row = s % 2 == 0 ? 1 : 0;
    const auto first = rows.begin() + row * decoder.vocabulary();
    told.logits.insert(told.logits.end(), first, first + decoder.vocabulary());
    add_sums(row, 1);
    if (told.sums.empty()) continue;
    const absl::StatusOr<std::optional<Likeliest>> likeliest = decoder.ReadLikeliest(row);
    MustBe(likeliest.status());
    REQUIRE(likeliest->has_value());
    CHECK((*likeliest)->row_log_sum == told.sums.back());
  }
  return told;
}

// Places at which the first row differs, of rows of `width`; -1: none.
inline std::ptrdiff_t FirstUnequal(const std::vector<float>& a, const std::vector<float>& b,
                                   std::int64_t width) {
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] != b[i]) return static_cast<std::ptrdiff_t>(i) / width;
  }
  return -1;
}

// Random tokens for the whole context.
inline std::vector<std::int32_t> TokensFor(const recipe::Recipe& recipe) {
  std::vector<std::int32_t> tokens;
  for (std::int64_t i = 0; i < recipe.data.sequence_length; ++i) {
    const double uniform =
        UniformFromWord(PhiloxWord(MakePhiloxKey(7, "tokens"), static_cast<std::uint64_t>(i)));
    tokens.push_back(static_cast<std::int32_t>(uniform * static_cast<double>(recipe.model.vocab)));
  }
  return tokens;
}

// The recipe's model, generating in so many slots.
struct Decoding {
  Decoding(const recipe::Recipe& recipe, const std::function<state::Device()>& make_device,
           std::int64_t slots)
      : device(make_device()),
        shape(ShapeFor(slots, recipe.data.sequence_length, recipe.parallelism)),
        model(PlanOf(recipe), device) {
    decoder = MakeCachedDecoder(model.plan, *model.ranks, shape);
  }

  state::Device device;
  driver::GenerationShape shape;
  Model model;
  std::unique_ptr<Decoder> decoder;

 private:
  plan::Plan PlanOf(recipe::Recipe recipe) const {
    driver::SetForGeneration(&recipe);
    absl::StatusOr<plan::Plan> plan = driver::CompileGeneration(recipe, {.profile = device.profile}, shape);
    MustBe(plan.status());
    return *std::move(plan);
  }
};

// Logits and log-probabilities have the bits of an evaluation, and what training adds up, in float64, is sums and logits with the
// same bits, whatever part of the sequence is the prompt. The recipe is made invariant, without dropout, of one
// sample an iteration on each of dp · ep ranks.
inline void CheckInvariant(recipe::Recipe recipe, const std::function<state::Device()>& make_device,
                           std::int64_t slots = 3) {
  recipe.generate.invariant = true;
  recipe.model.dropout = {};
  recipe.training.micro_batch = 1;
  recipe.training.global_batch = driver::SlotRanks(recipe);
  const std::vector<std::int32_t> tokens = TokensFor(recipe);
  const Evaluated whole = EvaluationOf(recipe, make_device, tokens);
  const Decoding run(recipe, make_device, slots);
  const auto vocab = static_cast<std::size_t>(run.decoder->vocabulary());
  for (const std::size_t prompt : {std::size_t{7}, tokens.size() / 2}) {
    CAPTURE(prompt);
    const Told told = TokenByToken(*run.decoder, tokens, prompt);
    CHECK(FirstUnequal(told.logits, whole.logits, run.decoder->vocabulary()) == -1);
    REQUIRE(told.sums.size() == tokens.size());
    double loss = 0;
    for (std::size_t s = 0; s + 1 < tokens.size(); ++s) {
      const auto logits = std::span(told.logits).subspan(s * vocab, vocab);
      const absl::StatusOr<LogProbabilities> of = LogProbabilities::Of(logits, told.sums[s]);
      MustBe(of.status());
      CHECK((*of)[tokens[s + 1]] == static_cast<double>(whole.log_probabilities[s]));
      loss += static_cast<double>(told.sums[s]) -
              static_cast<double>(logits[static_cast<std::size_t>(tokens[s + 1])]);
    }
    CHECK(loss == whole.loss);
  }
}

// Without the key some bit is another: what CheckInvariant checks does not come by itself.
inline void CheckNotInvariant(recipe::Recipe recipe, const std::function<state::Device()>& make_device) {
  recipe.training.micro_batch = recipe.training.global_batch = 1;
  const std::vector<std::int32_t> tokens = TokensFor(recipe);
  const Evaluated whole = EvaluationOf(recipe, make_device, tokens);
  const Decoding run(recipe, make_device, /*slots=*/3);
  const Told told = TokenByToken(*run.decoder, tokens, /*prompt=*/7);
  CHECK(told.sums.empty());
  CHECK(FirstUnequal(told.logits, whole.logits, run.decoder->vocabulary()) >= 0);
}

}  // namespace engine::generate::testing
