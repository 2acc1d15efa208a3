// Which tokens a rank gets: of all ranks together each token once, at the place that its extent names.
#include "engine/train/feed.h"

#include <chrono>

#include "engine/model/build.h"
#include "tests/train/run_testing.h"

namespace engine::train::testing {
namespace {

struct Fed {
  Extent extent;
  Shape shape;
  std::vector<std::int32_t> values;
};

Fed FeedOf(const plan::Plan& plan, const executor::FeedFunction& feed, const std::string& input,
           std::int64_t rank, std::int64_t microbatch) {
  const auto value = std::find_if(plan.values.begin(), plan.values.end(), [&](const plan::LocalValue& v) {
    return v.name == input && v.kind == graph::ValueKind::kInput;
  });
  REQUIRE(value != plan.values.end());
  Fed fed;
  fed.shape = value->local;
  fed.extent = value->layout.ExtentOf(value->shape, plan.mesh, plan.mesh.CoordinatesOf(rank));
  fed.values.assign(static_cast<size_t>(fed.shape.elements()), -7);
  backend::TensorView host;
  host.data = fed.values.data();
  host.dtype = DType::kI32;
  host.shape = value->local;
  host.logical = value->shape;
  host.extent = fed.extent;
  REQUIRE(feed(input, microbatch, host).ok());
  return fed;
}

}  // namespace

TEST_CASE("every rank's slice of the global batch, zigzag halves of a sequence included") {
  const TempDir folder;
  WriteDataset(folder / "text", 60);
  const recipe::Recipe recipe = RunRecipe(
      folder, {"parallelism.dp=2", "parallelism.cp=2", "parallelism.tp=2", "training.micro_batch=2"});
  const auto source = data::Source::Open(recipe);
  REQUIRE_MESSAGE(source.ok(), Message(source.status()));
  const auto plan = driver::CompileRecipe(recipe, {.profile = CpuDevice().profile});
  REQUIRE_MESSAGE(plan.ok(), Message(plan.status()));
  constexpr std::int64_t kFirst = 16;  // of the third iteration
  const executor::FeedFunction feed =
      MakeFeed(*plan, *source, data::Split::kTrain, {kFirst, plan->global_batch}, {}).inputs;
  REQUIRE(plan->microbatches == 2);
  std::vector<std::int32_t> sample(17);
  for (std::int64_t microbatch = 0; microbatch < 2; ++microbatch) {
    for (std::int64_t rank = 0; rank < plan->mesh.world(); ++rank) {
      const plan::Coordinates at = plan->mesh.CoordinatesOf(rank);
      const std::int64_t dp = at.axis[static_cast<size_t>(plan::Axis::kDp)];
      const std::int64_t cp = at.axis[static_cast<size_t>(plan::Axis::kCp)];
      INFO("microbatch " << microbatch << " rank " << rank);
      const Fed tokens = FeedOf(*plan, feed, model::kTokens, rank, microbatch);
      const Fed labels = FeedOf(*plan, feed, model::kLabels, rank, microbatch);
      const Fed positions = FeedOf(*plan, feed, model::kPositions, rank, microbatch);
      REQUIRE((tokens.shape == Shape{2, 8}));
      for (std::int64_t b = 0; b < 2; ++b) {
        // Megatron's dealing: chunks of micro_batch × dp consecutive samples, micro_batch of them to each dp
        // rank.
        REQUIRE(
            source->Sample(data::Split::kTrain, data::FirstSample(kFirst, microbatch, dp, 2, 2) + b, sample)
                .ok());
        for (std::int64_t i = 0; i < 8; ++i) {
          // Chunks of 4 tokens: cp rank 0 has the first and the last, rank 1 the two in the middle.
          const std::int64_t chunk = i < 4 ? cp : 3 - cp;
          const std::int64_t s = 4 * chunk + i % 4;
          const auto flat = static_cast<size_t>(8 * b + i);
          REQUIRE(tokens.values[flat] == sample[static_cast<size_t>(s)]);
          REQUIRE(labels.values[flat] == sample[static_cast<size_t>(s + 1)]);
          REQUIRE(positions.values[flat] == s);
        }
      }
    }
  }
}

// The host's work for an iteration of 32,768 tokens.
TEST_CASE("a feed takes little of the host's time") {
  const TempDir folder;
  WriteDataset(folder / "text", 8000);
  recipe::Recipe recipe = RunRecipe(folder, {"data.documents=masked", "data.tokenizer.kind=byte"});
  recipe.data.sequence_length = 4096;
  recipe.evaluation.interval = 0;
  const auto source = data::Source::Open(recipe);
  REQUIRE_MESSAGE(source.ok(), Message(source.status()));
  plan::Plan plan;
  plan.sequence = 4096;
  plan.microbatch_samples = 8;
  std::vector<std::int32_t> values(8 * 4096 * 2);
  double least_ms = 1e9;
  for (int iteration = 0; iteration < 5; ++iteration) {
    const executor::Feed feed = MakeFeed(plan, *source, data::Split::kTrain, {8 * iteration, 8}, {});
    const auto begin = std::chrono::steady_clock::now();
    for (const char* input : {model::kTokens, model::kLabels, model::kPositions, model::kSequencePositions,
                              model::kDocumentSpans}) {
      backend::TensorView host;
      host.data = values.data();
      host.shape = input == model::kDocumentSpans ? Shape{8, 4096, 2} : Shape{8, 4096};
      host.extent = Extent::Whole(host.shape);
      REQUIRE(feed.inputs(input, 0, host).ok());
    }
    const std::chrono::duration<double, std::milli> ms = std::chrono::steady_clock::now() - begin;
    least_ms = std::min(least_ms, ms.count());
  }
  MESSAGE("32768 tokens in " << least_ms << " ms");
  CHECK(least_ms < 5);  // 0.5 ms on a machine that does nothing else
}

TEST_CASE("a sample that is not there is an error") {
  const TempDir folder;
  WriteDataset(folder / "text", 60);
  const recipe::Recipe recipe = RunRecipe(folder, {});
  const auto source = data::Source::Open(recipe);
  REQUIRE(source.ok());
  const auto plan = driver::CompileRecipe(recipe, {.profile = CpuDevice().profile});
  REQUIRE(plan.ok());
  const executor::FeedFunction feed =
      MakeFeed(*plan, *source, data::Split::kTrain, {40, 8}, {}).inputs;  // 5 iterations of 8
  std::vector<std::int32_t> values(8 * 16);
  backend::TensorView host;
  host.data = values.data();
  host.shape = {8, 16};
  host.extent = Extent::Whole(host.shape);
  CHECK(Message(feed(model::kTokens, 0, host)) == "sample 40 of the train split, which has 40");
}

}  // namespace engine::train::testing
