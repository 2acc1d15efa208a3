// training.pad_batch: an iteration whose last microbatches have empty samples has the data, the losses and the weights of any other.
#include <cmath>
#include <limits>

#include "engine/plan/print.h"
#include "tests/train/documents.h"
#include "tests/train/run_testing.h"

namespace engine::train::testing {
namespace {

// As in layout_test.cpp: one formula in float32, in different orders of sums.
constexpr double kPaddedBound = 4 * 110 * std::numeric_limits<float>::epsilon();

// Losses, validation losses and consumed samples, line by line.
void CheckAlike(const std::string& expected, const std::string& actual) {
  const std::vector<nlohmann::json> a = LossMetrics(expected);
  const std::vector<nlohmann::json> b = LossMetrics(actual);
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    CAPTURE(i);
    for (const char* key : {"loss", "validation_loss", "grad_norm"}) {
      CAPTURE(std::string(key));
      REQUIRE(a[i].contains(key) == b[i].contains(key));
      if (!a[i].contains(key)) continue;
      const auto value = a[i][key].get<double>();
      CHECK(std::abs(b[i][key].get<double>() - value) <= kPaddedBound * (1 + std::abs(value)));
    }
    for (const char* key : {"iteration", "consumed_samples", "global_batch", "learning_rate"})
      CHECK(a[i].value(key, nlohmann::json()) == b[i].value(key, nlohmann::json()));
  }
}

}  // namespace

TEST_CASE("padded batches: a run, its evaluations, a batch that grows and labels that do not count") {
  const TempDir folder;
  WriteDocuments(folder / "text", true);
  const std::vector<std::string> base = {"training.iterations=6", "evaluation.interval=2",
                                         "evaluation.iterations=2", "checkpoint.interval=3"};
  struct Case {
    const char* name;
    std::vector<std::string> sets;
  };
  for (const Case& of : {Case{"plain", {}},
                         Case{"masked",
                              {"data.documents=masked", "data.packing=best_fit", "data.tokenizer.kind=byte",
                               "data.mask_end_of_document_loss=true"}},
                         Case{"grows",
                              {"training.rampup.start=2", "training.rampup.increment=2",
                               "training.rampup.samples=18", "training.micro_batch=1"}}}) {
    CAPTURE(std::string(of.name));
    std::vector<std::string> sets = base;
    sets.insert(sets.end(), of.sets.begin(), of.sets.end());
    const std::string one = folder / of.name + "-one";
    MustRun(RunRecipe(folder, sets), one);
    sets.insert(sets.end(), {"parallelism.dp=3", "training.micro_batch=1", "training.pad_batch=true"});
    const std::string three = folder / of.name + "-three";
    const recipe::Recipe padded = RunRecipe(folder, sets);
    MustRun(padded, three);
    CheckAlike(one, three);
    // And on from its checkpoint with another number of ranks.
    sets.insert(sets.end(), {"parallelism.dp=1", "training.iterations=8"});
    MustRun(RunRecipe(folder, sets), three);
    CHECK(IterationMetrics(three).size() == 8);
  }
}

TEST_CASE("padded batches: what the plan says, and what is refused") {
  const TempDir folder;
  WriteDataset(folder / "text", 100);
  const recipe::Recipe padded = RunRecipe(folder, {"parallelism.dp=3", "training.micro_batch=1",
                                                   "training.pad_batch=true", "training.iterations=2"});
  CHECK(padded.microbatches() == 3);
  const absl::StatusOr<plan::Plan> plan = driver::CompileRecipe(padded, {.profile = CpuDevice().profile});
  REQUIRE_MESSAGE(plan.ok(), Message(plan.status()));
  CHECK(plan->global_batch == 8);
  CHECK(plan->microbatches * plan->microbatch_samples == 9);
  const std::string text = plan::Summary(*plan);
  CHECK(text.find("8 samples in 3 microbatches × 1 samples × 3 (dp × ep)") != std::string::npos);
  CHECK(text.find("padding   1 of an iteration's samples are empty") != std::string::npos);
}

}  // namespace engine::train::testing
