// What an evaluation on the GPU tells of each token: against its loss, and against the CPU.
#include <cmath>
#include <numeric>
#include <optional>

#include "tests/gpu/world.h"

namespace engine::gpu_test {
namespace {

// Where a recipe has tasks its plan keeps scores; nobody reads the tasks here.
const Sets kAsked = {"evaluation.interval=1", "evaluation.tasks=[\"lambada=none.jsonl\"]",
                     "model.dropout.embedding=0", "model.dropout.hidden=0", "model.dropout.attention=0"};

struct Scored {
  executor::TokenScores scores;
  double loss = 0;  // the sum over all tokens
};

// The third run of the program, which is recorded by then.
Scored ScoresOn(bool gpu, const std::string& compute, const std::string& micro_batch) {
  Sets sets = kAsked;
  sets.push_back("precision.compute=" + compute);
  sets.push_back("training.micro_batch=" + micro_batch);
  const World world(kGptLike, sets, gpu);
  Scored scored;
  for (int run = 0; run < 3; ++run) {
    const auto result = world.rank().Evaluate(train::testing::CounterFeed(world.plan(), 1000));
    Must(result.status());
    const auto scores = world.rank().Scores();
    Must(scores.status());
    REQUIRE(scores->has_value());
    if (run > 0) CHECK((*scores)->log_probabilities == scored.scores.log_probabilities);
    if (run > 0) CHECK((*scores)->ranks == scored.scores.ranks);
    scored = {.scores = **scores, .loss = result->sums[0]};
  }
  return scored;
}

}  // namespace

TEST_CASE("gpu model: scores of tokens add up to the loss, and follow the CPU") {
  const Scored cpu = ScoresOn(/*gpu=*/false, "fp32", "8");
  for (const char* compute : {"fp32", "bf16"}) {
    for (const char* micro_batch : {"8", "2"}) {
      INFO(compute << ", micro_batch " << micro_batch);
      const Scored gpu = ScoresOn(/*gpu=*/true, compute, micro_batch);
      const std::vector<float>& log_probabilities = gpu.scores.log_probabilities;
      REQUIRE(log_probabilities.size() == cpu.scores.log_probabilities.size());
      const double sum = std::accumulate(log_probabilities.begin(), log_probabilities.end(), 0.0);
      // Both are of the same two numbers in fp32, subtracted and added in other orders.
      CHECK(std::abs(-sum / gpu.loss - 1) < 1e-5);
      // Logits of at most 4 that are rounded to bf16 are off by 2⁻⁸ of themselves, twice in a token's loss, and what is before
      // them by some 16 roundings.
      const double bound = std::string(compute) == "fp32" ? 1e-4 : 0x1p-3;
      double largest = 0;
      double moved = 0;
      for (size_t i = 0; i < log_probabilities.size(); ++i) {
        largest = std::max(
            largest, std::abs(static_cast<double>(log_probabilities[i]) - cpu.scores.log_probabilities[i]));
        moved = std::max(moved, std::abs(static_cast<double>(gpu.scores.ranks[i]) - cpu.scores.ranks[i]));
      }
      CHECK(largest < bound);
      if (std::string(compute) == "fp32") CHECK(moved <= 2);
      MESSAGE(fmt::format("{}: log-probabilities differ by {:.3g}, ranks by {}", compute, largest, moved));
    }
  }
}

}  // namespace engine::gpu_test
