// What an evaluation tells of each token: against logits in float64, and every layout against one rank.
#include <algorithm>
#include <cmath>
#include <map>

#include "engine/model/load.h"
#include "tests/executor/testing.h"

namespace engine::executor::testing {
namespace {

constexpr std::int64_t kScoredVocab = 259;

// Of the whole batch, [samples, sequence].
struct BatchScores {
  std::vector<float> log_probabilities, ranks;
  std::vector<float>
      logits;  // of the last microbatch, [samples of one, sequence, kScoredVocab]; of one rank alone
};

// Labels are the token's place in a cycle of 7, and every fifth does not count.
std::int32_t LabelAt(std::int64_t sample, std::int64_t place) {
  if ((sample + place) % 5 == 4) return -1;
  return static_cast<std::int32_t>((31 * sample + 7 * place) % kScoredVocab);
}

FeedFunction LabelledFeed(const plan::Plan& plan) {
  return [&plan](const std::string& input, std::int64_t microbatch,
                 const backend::TensorView& host) -> absl::Status {
    std::int32_t* out = host.as<std::int32_t>();
    for (std::int64_t i = 0; i < host.shape.elements(); ++i) {
      const std::int64_t sample =
          microbatch * plan.microbatch_samples + LogicalIndex(host.extent.dims[0], i / host.shape[1]);
      const std::int64_t place = LogicalIndex(host.extent.dims[1], i % host.shape[1]);
      *out++ = input == model::kPositions ? static_cast<std::int32_t>(place)
               : input == model::kLabels
                   ? LabelAt(sample, place)
                   : static_cast<std::int32_t>((13 * sample + 5 * place) % kScoredVocab);
    }
    return absl::OkStatus();
  };
}

// The same parameters on every layout. Of matrices whose rows are classes, row v is row v + 130 too, so that every class has the
// same logit as another one.
absl::Status FillWithTwins(RankExecutor& rank, const plan::Plan& plan) {
  for (const LocalTensor& tensor : rank.Parameters()) {
    const backend::TensorView& view = tensor.view;
    const plan::PlanParameter& parameter = plan.parameters[static_cast<size_t>(tensor.parameter)];
    std::vector<float> values(static_cast<size_t>(view.shape.elements()));
    const PhiloxKey key = MakePhiloxKey(5, parameter.name);
    for (size_t i = 0; i < values.size(); ++i) {
      std::int64_t logical = 0;
      std::int64_t rest = static_cast<std::int64_t>(i);
      std::int64_t stride = 1;
      for (int dim = view.shape.rank() - 1; dim >= 0; --dim) {
        logical += LogicalIndex(view.extent.dims[static_cast<size_t>(dim)], rest % view.shape[dim]) * stride;
        rest /= view.shape[dim];
        stride *= view.logical[dim];
      }
      if (view.shape.rank() == 2 && parameter.logical_shape[0] == kScoredVocab)
        logical %= 130 * view.logical[1];
      values[i] = static_cast<float>(0.5 * PhiloxNormal(key, static_cast<std::uint64_t>(logical)));
    }
    RETURN_IF_ERROR(rank.backend().Upload(static_cast<std::byte*>(view.data), values.data(),
                                          static_cast<std::int64_t>(values.size() * sizeof(float))));
  }
  return absl::OkStatus();
}

BatchScores ScoresOf(const recipe::Recipe& recipe, bool logits = false) {
  std::vector<Probe> probes(static_cast<size_t>(recipe.world_size()));
  const state::Device device = ProbedDevice(&probes);
  const absl::StatusOr<plan::Plan> plan =
      driver::CompileRecipe(recipe, {.profile = device.profile, .keep_logits = logits, .keep_scores = true});
  REQUIRE_MESSAGE(plan.ok(), Message(plan.status()));
  const auto ranks = state::Ranks::Create(*plan, device, 3);
  REQUIRE_MESSAGE(ranks.ok(), Message(ranks.status()));
  const auto count = static_cast<size_t>(plan->global_batch * plan->sequence);
  BatchScores batch;
  batch.log_probabilities.assign(count, -1000);
  batch.ranks.assign(count, -1000);
  std::map<std::int64_t, TokenScores> of_ranks;
  for (const auto& rank : (*ranks)->executors()) of_ranks[rank->rank()];
  const absl::Status status = (*ranks)->Run([&](RankExecutor& rank) -> absl::Status {
    RETURN_IF_ERROR(FillWithTwins(rank, *plan));
    // Twice, so that a launch that is recorded and one that is replayed give the same.
    for (int i = 0; i < 2; ++i) RETURN_IF_ERROR(rank.Evaluate(LabelledFeed(*plan)).status());
    ASSIGN_OR_RETURN(std::optional<TokenScores> scores, rank.Scores());
    const bool makes = plan->StageOfRank(rank.rank()) == plan->mesh.pp - 1;
    if (scores.has_value() != makes) return Internal("rank {} has scores, or none", rank.rank());
    if (scores) of_ranks.at(rank.rank()) = *std::move(scores);
    return absl::OkStatus();
  });
  REQUIRE_MESSAGE(status.ok(), Message(status));
  std::vector<bool> known(count, false);
  for (const auto& [rank, scores] : of_ranks) {
    if (scores.ranks.empty()) continue;
    const std::int64_t samples = Length(scores.extent.dims[0]);
    const std::int64_t places = Length(scores.extent.dims[1]);
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(scores.ranks.size()); ++i) {
      const std::int64_t microbatch = i / (samples * places);
      const std::int64_t sample =
          microbatch * plan->microbatch_samples + LogicalIndex(scores.extent.dims[0], i / places % samples);
      const auto at =
          static_cast<size_t>(sample * plan->sequence + LogicalIndex(scores.extent.dims[1], i % places));
      const auto k = static_cast<size_t>(i);
      // Those of ranks along tp are the same.
      if (known[at]) CHECK(batch.ranks[at] == scores.ranks[k]);
      known[at] = true;
      batch.log_probabilities[at] = scores.log_probabilities[k];
      batch.ranks[at] = scores.ranks[k];
    }
  }
  CHECK(std::count(known.begin(), known.end(), false) == 0);
  if (logits) {
    const RankExecutor& rank = *(*ranks)->executors()[0];
    const float* row = rank.Logits().as<float>();
    for (std::int64_t token = 0; token < plan->microbatch_samples * plan->sequence;
         ++token, row += plan->vocab_rows)
      batch.logits.insert(batch.logits.end(), row, row + plan->vocab);
  }
  return batch;
}

// A model without attention, whose loss has these attributes.
recipe::Recipe TextRecipe(const std::string& terms, const std::string& set = "") {
  const std::string text = R"(
[model]
dims = { D = 16, V = 259 }
inputs = { tokens = "i32[B,S]", labels = "i32[B,S]" }
vocab_multiple = 4
main = [
  { do = "embedding", as = "embedding.tokens", of = "tokens", rows = "V", width = "D" },
  { do = "stack", as = "layers", repeat = 2, layer = ["mlp"] },
  { do = "linear", as = "head", out = ["V"] },
  { do = "cross_entropy", as = "loss")" +
                           terms +
                           R"( },
]
[block.mlp]
steps = [
  { do = "linear", as = "fc", out = ["D"], of = "x" },
  { do = "residual", as = "residual", of = ["x", "fc"], to = "x" },
]
[data]
paths = ["none"]
sequence_length = 16
[optimizer]
learning_rate = 1e-2
[training]
global_batch = 8
micro_batch = 2
iterations = 5
)";
  recipe::LoadOptions options;
  if (!set.empty()) options.sets.push_back(set);
  const recipe::LoadResult loaded = model::LoadText(text, "text.toml", options);
  std::string errors;
  for (const Diagnostic& diagnostic : loaded.diagnostics) errors += Format(diagnostic);
  REQUIRE_MESSAGE(loaded.ok(), errors);
  return loaded.recipe;
}

}  // namespace

TEST_CASE("scores: log-probability and rank of each label, by float64 from the logits") {
  const BatchScores batch = ScoresOf(TinyRecipe("training.micro_batch=8"), /*logits=*/true);
  REQUIRE(batch.logits.size() == batch.ranks.size() * static_cast<size_t>(kScoredVocab));
  std::int64_t ties = 0;
  for (std::int64_t token = 0; token < static_cast<std::int64_t>(batch.ranks.size()); ++token) {
    const auto at = static_cast<size_t>(token);
    const std::int32_t label = LabelAt(token / 16, token % 16);
    if (label < 0) {
      CHECK(batch.log_probabilities[at] == 0);
      CHECK(batch.ranks[at] == 0);
      continue;
    }
    const float* z = batch.logits.data() + token * kScoredVocab;
    double sum = 0;
    for (std::int64_t v = 0; v < kScoredVocab; ++v) sum += std::exp(static_cast<double>(z[v]) - z[label]);
    // 259 terms, each and their logarithm rounded: 16 units of float32 of numbers up to about 10.
    CHECK(std::abs(batch.log_probabilities[at] + std::log(sum)) <= 16 * 1.2e-7 * (1 + std::log(sum)));
    std::int64_t before = 0;
    for (std::int64_t v = 0; v < kScoredVocab; ++v) {
      before += z[v] > z[label] || (z[v] == z[label] && v < label) ? 1 : 0;
      ties += z[v] == z[label] && v != label ? 1 : 0;
    }
    CHECK(batch.ranks[at] == static_cast<float>(before));
  }
  CHECK(ties > 50);
}

TEST_CASE("scores: every layout gives what one rank gives") {
  const BatchScores expected = ScoresOf(TinyRecipe(""));
  for (const std::string layout : kLayouts) {
    INFO("layout " << layout);
    const BatchScores batch = ScoresOf(TinyRecipe(layout));
    REQUIRE(batch.ranks.size() == expected.ranks.size());
    double largest = 0;
    std::int64_t others = 0;
    for (size_t i = 0; i < expected.ranks.size(); ++i) {
      largest = std::max(
          largest, static_cast<double>(std::abs(batch.log_probabilities[i] - expected.log_probabilities[i])));
      others += batch.ranks[i] != expected.ranks[i] ? 1 : 0;
    }
    CHECK(largest <= 2e-5);
    // Sums in another order may part classes that are equal, or nearly so.
    CHECK(others <= 2);
  }
}

TEST_CASE("scores: the terms that a loss has besides are no part of them") {
  const BatchScores expected = ScoresOf(TextRecipe(""));
  for (const std::string layout : {"", "parallelism.tp=2"}) {
    INFO("layout " << layout);
    const BatchScores batch = ScoresOf(TextRecipe(", smoothing = 0.2, z_loss = 0.1", layout));
    REQUIRE(batch.ranks.size() == expected.ranks.size());
    double largest = 0;
    for (size_t i = 0; i < expected.ranks.size(); ++i) {
      largest = std::max(
          largest, std::abs(static_cast<double>(batch.log_probabilities[i]) - expected.log_probabilities[i]));
    }
    CHECK(largest <= 2e-5);
    CHECK(batch.ranks == expected.ranks);
  }
}

}  // namespace engine::executor::testing
