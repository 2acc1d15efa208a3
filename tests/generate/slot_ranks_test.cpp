// Slots over the ranks of dp and ep: prompts, steps and whole answers are those of one rank, whichever rank holds a slot.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/generate/batch.h"
#include "tests/generate/decoding.h"
#include "tests/generate/invariant.h"
#include "tests/plan/plans.h"

namespace engine::generate {
namespace {

using testing::CheckLikeliest;
using testing::CheckRows;
using testing::Generating;
using testing::OfFamily;
using testing::RandomTokens;
using testing::WholeLogits;

struct RankLayout {
  std::int64_t dp = 1, tp = 1, pp = 1, cp = 1, ep = 1;
};

std::string TextOf(const RankLayout& layout) {
  return fmt::format("dp {} · tp {} · pp {} · cp {} · ep {}", layout.dp, layout.tp, layout.pp, layout.cp,
                     layout.ep);
}

recipe::Recipe OnRanks(recipe::Recipe recipe, const RankLayout& layout) {
  recipe.parallelism.dp = layout.dp;
  recipe.parallelism.tp = layout.tp;
  recipe.parallelism.pp = layout.pp;
  recipe.parallelism.cp = layout.cp;
  recipe.parallelism.ep = layout.ep;
  driver::SetForGeneration(&recipe);
  return recipe;
}

struct ModelOnRanks {
  const char* name;
  recipe::Recipe recipe;
  std::vector<RankLayout> layouts;
};

// A dense model, one with routed experts alone, and two with shared ones beside and attention of latents.
std::vector<ModelOnRanks> Models() {
  return {
      {"dense",
       plan::TinyRecipe(true, {"model.layers=2", "data.sequence_length=48"}),
       {{.dp = 2},
        {.dp = 2, .pp = 2},
        {.dp = 2, .tp = 2},
        {.dp = 4},
        {.cp = 2},
        {.dp = 2, .tp = 2, .cp = 2},
        {.pp = 2, .cp = 4}}},
      {"mixtral-8x7b",
       OfFamily("mixtral-8x7b", "D = 32, L = 2, H = 4, K = 2, E = 8, F = 32, X = 8, V = 300"),
       {{.ep = 2},
        {.tp = 2, .ep = 2},
        {.dp = 2},
        {.dp = 2, .pp = 2},
        {.dp = 2, .ep = 2},
        {.cp = 2, .ep = 2}}},
      {"deepseek-v2-lite",
       OfFamily("deepseek-v2-lite",
                "D = 32, L = 3, J = 1, H = 4, C = 16, N = 8, R = 4, U = 6, F = 48, X = 8, W = 8, V = 300"),
       {{.ep = 2}, {.tp = 2, .ep = 2}, {.dp = 2}, {.pp = 2, .ep = 2}, {.tp = 2, .cp = 2}}},
      {"deepseek-v3",
       OfFamily("deepseek-v3",
                "D = 32, L = 3, J = 1, H = 4, Q = 24, C = 16, N = 8, R = 4, U = 6, F = 48, X = 16, W = 8, "
                "V = 300"),
       {{.ep = 4}}}};
}

// Sequences in slots of a decoder: in even slots the first tokens of one text, in odd slots those of another.
class Stretches {
 public:
  explicit Stretches(const recipe::Recipe& recipe, const RankLayout& layout, std::int64_t slots)
      : run_(OnRanks(recipe, layout), slots), held_(static_cast<std::size_t>(run_.decoder->slots()), 0) {
    tokens_[0] = RandomTokens(recipe.data.sequence_length, recipe.model.vocab);
    tokens_[1].assign(tokens_[0].rbegin(), tokens_[0].rend());
    for (const std::size_t text : {0, 1}) whole_[text] = WholeLogits(recipe, tokens_[text]);
  }

  Decoder& decoder() { return *run_.decoder; }

  // In each of these slots so many tokens begin; the logits of the last `rows` are looked at.
  struct Prompt {
    std::int64_t slot, count, rows;
  };
  void Begin(const std::vector<Prompt>& prompts) {
    if (decoder().slot_ranks() == 1 && prompts.size() > 1) {
      for (const Prompt& prompt : prompts) Begin({prompt});
      return;
    }
    std::vector<Decoder::Prompt> all;
    for (const Prompt& prompt : prompts)
      all.push_back(
          {.slot = prompt.slot,
           .tokens =
               std::span(tokens_[TextOfSlot(prompt.slot)]).first(static_cast<std::size_t>(prompt.count)),
           .rows = prompt.rows,
           .temperature = 0.5 + static_cast<double>(prompt.slot)});
    REQUIRE(decoder().Prefill(all).ok());
    std::int64_t row = 0;
    std::vector<float> logits;
    for (const Prompt& prompt : prompts) {
      CAPTURE(prompt.slot);
      REQUIRE(decoder().ReadLogits(row, prompt.rows, &logits).ok());
      CheckRows(logits, whole_[TextOfSlot(prompt.slot)], prompt.count - prompt.rows, decoder().vocabulary());
      row += prompt.rows;
      // Of all rows at once, so that rows are of the prompt that they are said to be.
      std::vector<float> until;
      REQUIRE(decoder().ReadLogits(0, row, &until).ok());
      CheckLikeliest(decoder(), row - 1, {0.5 + static_cast<double>(prompt.slot)}, until);
      held_[static_cast<std::size_t>(prompt.slot)] = prompt.count;
    }
  }

  void Step(const std::vector<std::int64_t>& slots) {
    std::vector<Decoder::Next> next;
    std::vector<double> temperatures;
    for (const std::int64_t slot : slots) {
      temperatures.push_back(1 + static_cast<double>(slot));
      const auto held = static_cast<std::size_t>(held_[static_cast<std::size_t>(slot)]);
      next.push_back({slot, tokens_[TextOfSlot(slot)][held], temperatures.back()});
    }
    std::vector<float> logits;
    REQUIRE(decoder().StepAndRead(next, &logits).ok());
    CheckLikeliest(decoder(), 0, temperatures, logits);
    const std::int64_t vocab = decoder().vocabulary();
    for (std::size_t i = 0; i < slots.size(); ++i) {
      CAPTURE(slots[i]);
      const auto begin = logits.begin() + static_cast<std::ptrdiff_t>(i) * vocab;
      CheckRows({begin, begin + vocab}, whole_[TextOfSlot(slots[i])],
                held_[static_cast<std::size_t>(slots[i])]++, vocab);
    }
  }

 private:
  static std::size_t TextOfSlot(std::int64_t slot) { return static_cast<std::size_t>(slot % 2); }

  std::array<std::vector<std::int32_t>, 2> tokens_;
  std::array<std::vector<float>, 2> whole_;
  Generating run_;
  std::vector<std::int64_t> held_;  // tokens, by slot
};

TEST_CASE(
    "slot ranks: prompts at once, steps of some slots, and prompts and steps while others' ranks idle") {
  for (const ModelOnRanks& model : Models()) {
    for (const RankLayout& layout : model.layouts) {
      CAPTURE(std::string(model.name));
      CAPTURE(TextOf(layout));
      const std::int64_t ranks =
          std::max<std::int64_t>(2, layout.dp * layout.ep);  // of slots below, even if one has all
      Stretches run(model.recipe, layout, 3 * ranks);
      CHECK(run.decoder().slots() == 3 * ranks);
      CHECK(run.decoder().slot_ranks() == layout.dp * layout.ep);
      run.Begin(
          {{1, 11, 11}, {0, 30, 1}});  // unlike lengths, in two programs' sizes, beside ranks without any
      for (int i = 0; i < 3; ++i) run.Step({0, 1});
      run.Begin({{ranks, 5, 2}});  // of the first rank: others are idle, and their slots are as they were
      run.Step({1, 0, ranks});     // in any order; the first rank has two, the others one or none
      run.Begin({{2 * ranks + 1, 17, 3}});                       // of the second rank
      for (int i = 0; i < 5; ++i) run.Step({2 * ranks + 1, 1});  // the first rank is idle
      for (int i = 0; i < 5; ++i) run.Step({0});
      run.Begin({{1, 3, 1}, {ranks * 2, 20, 20}});  // slots begin anew
      for (int i = 0; i < 3; ++i) run.Step({ranks, 0, 1, 2 * ranks, 2 * ranks + 1});
    }
  }
}

TEST_CASE("slot ranks: rows of a prompt that are more than a run gives are those of further runs") {
  const recipe::Recipe recipe = plan::TinyRecipe(true, {"model.layers=2", "data.sequence_length=48"});
  const std::vector<std::int32_t> tokens = RandomTokens(48, recipe.model.vocab);
  const std::vector<float> whole = WholeLogits(recipe, tokens);
  for (const std::int64_t dp : {1, 2}) {
    const recipe::Recipe on_ranks = OnRanks(recipe, {.dp = dp});
    driver::GenerationShape shape = ShapeFor(4, 48, on_ranks.parallelism);
    shape.logits_bytes = std::int64_t{7} * 264 * 4;  // 7 rows
    const Generating run(on_ranks, shape);
    const std::int64_t vocab = run.decoder->vocabulary();
    std::vector<Decoder::Prompt> prompts = {{.slot = 0, .tokens = std::span(tokens).first(33), .rows = 33}};
    if (dp == 2) prompts.push_back({.slot = 3, .tokens = std::span(tokens).first(16), .rows = 10});
    REQUIRE(run.decoder->Prefill(prompts).ok());
    std::vector<float> logits;
    REQUIRE(run.decoder->ReadLogits(0, 33, &logits).ok());
    CheckRows(logits, whole, 0, vocab);
    CheckLikeliest(*run.decoder, 32, {1}, logits);
    REQUIRE(run.decoder->ReadLogits(5, 4, &logits).ok());
    CheckRows(logits, whole, 5, vocab);
    if (dp == 2) {
      REQUIRE(run.decoder->ReadLogits(33, 10, &logits).ok());
      CheckRows(logits, whole, 6, vocab);
    }
    const std::vector<Decoder::Next> next = {{0, tokens[33], 1}};  // caches are of all the tokens
    REQUIRE(run.decoder->StepAndRead(next, &logits).ok());
    CheckRows(logits, whole, 33, vocab);
  }
}

// What requests get.
struct Answered {
  std::vector<std::vector<std::int32_t>> tokens;
  std::vector<Finish> finishes;
};

// Prompts of unlike lengths, some with their scores asked for, some beyond the context; the fourth is given up after five tokens.
Answered AnswersOf(Decoder& decoder, std::int64_t vocab, std::int64_t prompts) {
  Answered answered;
  answered.tokens.resize(static_cast<std::size_t>(prompts));
  answered.finishes.resize(static_cast<std::size_t>(prompts), Finish::kFailed);
  Batch batch(&decoder, static_cast<std::size_t>(prompts));
  std::vector<Request> requests;
  std::vector<Batch::Cancel> cancels;
  for (std::size_t i = 0; i < static_cast<std::size_t>(prompts); ++i) {
    const auto length = static_cast<std::int64_t>(1 + (i * 11) % 37);
    Request request{.tokens = RandomTokens(length, vocab - static_cast<std::int64_t>(i)),
                    .most_tokens = 9 + static_cast<std::int64_t>(i % 3) * 20,
                    .sampling = {.temperature = i % 2 == 0 ? 0.0 : 0.9, .top_k = 20, .seed = 4},
                    .number = i,
                    .slides = true};
    request.scores_prompt = i % 4 == 1;
    request.on_prompt = [](const std::vector<ScoredToken>&) {};
    request.on_token = [&answered, &cancels, i](const ScoredToken& token) {
      answered.tokens[i].push_back(token.token);
      if (i == 3 && answered.tokens[i].size() == 5) *cancels[i] = true;
      return true;
    };
    request.on_finish = [&answered, i](Finish finish, const absl::Status& status) {
      REQUIRE_MESSAGE(status.ok(), Message(status));
      answered.finishes[i] = finish;
    };
    requests.push_back(std::move(request));
  }
  absl::StatusOr<std::vector<Batch::Cancel>> submitted = batch.Submit(std::move(requests));
  REQUIRE(submitted.ok());
  cancels = *std::move(submitted);
  while (batch.Advance()) {
  }
  return answered;
}

TEST_CASE(
    "slot ranks: answers are those of one rank, with more prompts than slots, and of one prompt alone") {
  for (const ModelOnRanks& model : Models()) {
    CAPTURE(std::string(model.name));
    recipe::Recipe recipe = model.recipe;
    recipe.data.sequence_length = 48;
    const Generating one(OnRanks(recipe, {}), 3);
    const std::int64_t vocab = one.decoder->vocabulary();
    const Answered expected = AnswersOf(*one.decoder, vocab, 11);
    CHECK(expected.finishes[3] == Finish::kCancelled);
    CHECK(expected.finishes[4] == Finish::kLength);
    for (const RankLayout& layout : model.layouts) {
      CAPTURE(TextOf(layout));
      const Generating run(OnRanks(recipe, layout), 3);
      const Answered answers = AnswersOf(*run.decoder, vocab, 11);
      CHECK(answers.tokens == expected.tokens);
      CHECK(answers.finishes == expected.finishes);
      const Answered alone = AnswersOf(*run.decoder, vocab, 1);
      CHECK(alone.tokens[0] == expected.tokens[0]);
    }
  }
}

TEST_CASE("slot ranks: invariant, the bits of logits and of their sums are those of one rank") {
  recipe::Recipe recipe = plan::TinyRecipe(true, {"model.layers=2", "data.sequence_length=48"});
  recipe.generate.invariant = true;
  const std::vector<std::int32_t> tokens = RandomTokens(48, recipe.model.vocab);
  const std::span<const std::int32_t> all(tokens);
  std::vector<std::vector<float>> told;
  for (const RankLayout& layout : {RankLayout{}, RankLayout{.dp = 2}, RankLayout{.dp = 2, .pp = 2}}) {
    const Generating run(OnRanks(recipe, layout), 4);
    std::vector<float>& numbers = told.emplace_back();
    std::vector<float> logits;
    const auto append = [&](std::int64_t rows) {
      REQUIRE(run.decoder->ReadLogits(0, rows, &logits).ok());
      numbers.insert(numbers.end(), logits.begin(), logits.end());
      const absl::StatusOr<std::vector<float>> sums = run.decoder->ReadLogSums(0, rows);
      REQUIRE(sums.ok());
      REQUIRE(std::ssize(*sums) == rows);
      numbers.insert(numbers.end(), sums->begin(), sums->end());
    };
    for (const Decoder::Prompt& prompt : {Decoder::Prompt{.slot = 3, .tokens = all.first(20), .rows = 20},
                                          Decoder::Prompt{.slot = 0, .tokens = all.first(7), .rows = 2}}) {
      REQUIRE(run.decoder->Prefill({&prompt, 1}).ok());
      append(prompt.rows);
    }
    for (std::size_t i = 0; i < 5; ++i) {
      REQUIRE(run.decoder->Step(std::vector<Decoder::Next>{{3, tokens[20 + i]}, {0, tokens[7 + i]}}).ok());
      append(2);
    }
  }
  CHECK(told[0] == told[1]);
  CHECK(told[0] == told[2]);
}

TEST_CASE("slot ranks: invariant, the bits are those of training and evaluation in the same layout") {
  for (const ModelOnRanks& model : Models()) {
    CAPTURE(std::string(model.name));
    std::vector<RankLayout> layouts = model.layouts;
    if (model.recipe.model.experts == 0) layouts.push_back({.tp = 4});
    for (const RankLayout& layout : layouts) {
      for (const bool sequence_parallel : {false, true}) {
        if (sequence_parallel && layout.tp == 1) continue;
        CAPTURE(TextOf(layout));
        CAPTURE(sequence_parallel);
        recipe::Recipe recipe = OnRanks(model.recipe, layout);
        recipe.data.sequence_length = 48;
        recipe.parallelism.sequence_parallel = sequence_parallel;
        testing::CheckInvariant(recipe, [] { return train::testing::CpuDevice(); });
      }
    }
  }
}

TEST_CASE("slot ranks: a rank has the caches of its own slots, in the plan's bytes") {
  const recipe::Recipe recipe =
      OfFamily("mixtral-8x7b", "D = 32, L = 2, H = 4, K = 2, E = 8, F = 32, X = 8, V = 300");
  const auto cache_bytes = [&](const RankLayout& layout, std::int64_t slots) {
    const Generating run(OnRanks(recipe, layout), slots);
    std::int64_t bytes = 0;
    for (const plan::State& state : run.plan.stages[0].states) bytes += state.buffer.bytes();
    CHECK(run.plan.stages[0].memory.activations >= bytes);
    return bytes;
  };
  const std::int64_t of_slot =
      std::int64_t{2} * 2 * 96 * 2 * 8 * 4;  // layers, keys and values, rows, heads, features, f32
  CHECK(cache_bytes({}, 8) == 8 * of_slot);
  CHECK(cache_bytes({.dp = 2}, 8) == 4 * of_slot);
  CHECK(cache_bytes({.ep = 4}, 8) == 2 * of_slot);
  CHECK(cache_bytes({.tp = 2, .ep = 2}, 8) == 2 * of_slot);
  CHECK(cache_bytes({.dp = 2, .ep = 2}, 5) == 2 * of_slot);  // 8 slots, as many on every rank
}

}  // namespace
}  // namespace engine::generate
