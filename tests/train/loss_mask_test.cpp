// Labels that do not count, and packed documents: every layout gives the one-rank run's numbers, and a packed batch gives what its
// documents give alone.
#include "engine/train/feed.h"
#include "tests/train/documents.h"
#include "tests/train/equality.h"
#include "tests/train/run_testing.h"

namespace engine::train::testing {
namespace {

recipe::Recipe RecipeOf(const char* model, const TempDir& folder, std::vector<std::string> sets) {
  sets.insert(sets.begin(), {"data.paths=[\"" + folder / "text" + "\"]", "data.split=\"1\""});
  return MakeRecipe(model, sets);
}

Trained TrainOnData(const recipe::Recipe& recipe, int iterations) {
  const auto source = data::Source::Open(recipe);
  REQUIRE_MESSAGE(source.ok(), Message(source.status()));
  CHECK(source->masks_loss());
  const state::Device device = CpuDevice();
  return TrainFor(recipe, driver::CompileRecipe(recipe, {.profile = device.profile}), iterations, device,
                  [&](const plan::Plan& plan, std::int64_t first) -> executor::Feed {
                    first %= 1000;  // that of the evaluation
                    return MakeFeed(plan, *source, data::Split::kTrain, {first, plan.global_batch},
                                    {first, plan.global_batch});
                  });
}

constexpr const char* kEnds = "mask_end_of_document_loss=true tokenizer.kind=byte";
constexpr const char* kPacked = "documents=masked packing=best_fit tokenizer.kind=none";

std::vector<std::string> With(const char* data, const char* layout) {
  std::vector<std::string> sets = SetsOf(layout);
  for (const std::string& set : SetsOf(data)) sets.push_back("data." + set.substr(set.find('.') + 1));
  return sets;
}

}  // namespace

TEST_CASE("loss masks: every layout gives the one-rank run's numbers") {
  struct Case {
    const char* model;
    const char* data;
    bool mask;
  };
  for (const Case& of : {Case{kGptLike, kEnds, false}, Case{kLlamaLike, "documents=across", true},
                         Case{kLlamaLike, kPacked, true}}) {
    CAPTURE(of.data);
    const TempDir folder;
    WriteDocuments(folder / "text", of.mask);
    const Trained expected = TrainOnData(RecipeOf(of.model, folder, With(of.data, "")), 2);
    for (const char* layout :
         {"micro_batch=2", "dp=2 micro_batch=2", "tp=2 sequence_parallel=true micro_batch=4", "cp=2",
          "pp=2 micro_batch=2", "dp=2 tp=2 pp=2 micro_batch=1",
          "cp=2 dp=2 tp=2 sequence_parallel=true zero_stage=1 micro_batch=2"}) {
      INFO(layout);
      CheckEqual(expected, TrainOnData(RecipeOf(of.model, folder, With(of.data, layout)), 2));
    }
    // The head and the loss in chunks of some tokens.
    std::vector<std::string> chunks = With(of.data, "micro_batch=4");
    chunks.emplace_back("training.logits_bytes=8000");
    CheckEqual(expected, TrainOnData(RecipeOf(of.model, folder, chunks), 2));
  }
}

// Means over two parts of the labels, each divided by a count of its own, give the mean over all of them.
TEST_CASE("loss masks: loss and gradients are means over the labels that count") {
  const TempDir folder;
  WriteDocuments(folder / "text", true);
  const recipe::Recipe recipe = RecipeOf(kLlamaLike, folder, {});
  const auto source = data::Source::Open(recipe);
  REQUIRE(source.ok());
  const state::Device device = CpuDevice();
  const auto plan = driver::CompileRecipe(recipe, {.profile = device.profile});
  std::int64_t counted = 0;
  const auto part = [&](int parity) {
    return TrainFor(
        recipe, plan, 1, device, [&, parity](const plan::Plan& of, std::int64_t) -> executor::Feed {
          const executor::Feed all = MakeFeed(of, *source, data::Split::kTrain, {0, of.global_batch}, {});
          executor::Feed feed([all, parity, &counted](const std::string& input, std::int64_t microbatch,
                                                      const backend::TensorView& host) {
            const absl::Status status = all.inputs(input, microbatch, host);
            auto* out = host.as<std::int32_t>();
            if (input != model::kLabels) return status;
            counted = 0;
            for (std::int64_t i = 0; i < host.shape.elements(); ++i) {
              if ((i % 3 == 0) != (parity == 0)) out[i] = -1;
              counted += out[i] >= 0 ? 1 : 0;
            }
            return status;
          });
          feed.label_factor = [&counted]() -> absl::StatusOr<double> {
            return 128.0 / static_cast<double>(counted);
          };
          return feed;
        });
  };
  const Trained first = part(0);
  const auto firsts = static_cast<double>(counted);
  const Trained second = part(1);
  const auto seconds = static_cast<double>(counted);
  const Trained all = TrainOnData(recipe, 1);
  CHECK(firsts != seconds);
  CHECK(firsts + seconds == static_cast<double>(*source->CountedLabels(data::Split::kTrain, 0, 8)));
  CHECK(firsts + seconds < 100);
  const auto mean = [&](double of_first, double of_second) {
    return (firsts * of_first + seconds * of_second) / (firsts + seconds);
  };
  CHECK(std::abs(mean(first.losses[0], second.losses[0]) - all.losses[0]) <= kBound * all.losses[0]);
  for (size_t p = 0; p < all.names.size(); ++p) {
    std::vector<float> expected = first.gradients[0][p];
    for (size_t i = 0; i < expected.size(); ++i)
      expected[i] = static_cast<float>(mean(first.gradients[0][p][i], second.gradients[0][p][i]));
    double scale = 0;
    const double difference = LargestDifference(expected, all.gradients[0][p], &scale);
    INFO(all.names[p]);
    CHECK(difference <= kBound * all.grad_norms[0]);
  }
}

TEST_CASE("packing: a packed batch gives the loss and the gradients of its documents alone") {
  for (const bool mask : {false, true}) {
    CAPTURE(mask);
    const TempDir folder;
    WriteDocuments(folder / "text", mask);
    // Learned positions show where they begin again; dropout goes by the place in the sample.
    const char* model = mask ? kLlamaLike : kGptLike;
    const std::vector<std::string> no_dropout = {"model.dropout.embedding=0", "model.dropout.hidden=0",
                                                 "model.dropout.attention=0"};
    std::vector<std::string> sets = With(kPacked, "micro_batch=4");
    sets.insert(sets.end(), no_dropout.begin(), no_dropout.end());
    const recipe::Recipe packed = RecipeOf(model, folder, sets);
    const auto source = data::Source::Open(packed);
    REQUIRE_MESSAGE(source.ok(), Message(source.status()));
    // Each document of the first batch: its tokens, and whether each counts.
    struct Alone {
      std::vector<std::int32_t> tokens, labels;
    };
    std::vector<Alone> documents;
    std::int64_t counted = 0;
    for (std::int64_t index = 0; index < 8; ++index) {
      const auto sample = source->Read(data::Split::kTrain, index);
      REQUIRE(sample.ok());
      for (std::size_t d = 0; d < sample->pieces.size(); ++d) {
        const std::int32_t end = d + 1 < sample->pieces.size() ? sample->pieces[d + 1] : 17;
        Alone alone;
        for (std::int32_t s = sample->pieces[d]; s < std::min(end, 16); ++s) {
          alone.tokens.push_back(sample->tokens[static_cast<size_t>(s)]);
          const bool counts = s + 1 < end && sample->targets[static_cast<size_t>(s) + 1] != 0;
          alone.labels.push_back(counts ? sample->tokens[static_cast<size_t>(s) + 1] : -1);
          counted += counts ? 1 : 0;
        }
        documents.push_back(alone);
      }
    }
    REQUIRE(documents.size() > 12);
    sets = no_dropout;
    sets.insert(sets.end(),
                {fmt::format("training.global_batch={}", documents.size()), "training.micro_batch=1"});
    const recipe::Recipe recipe = RecipeOf(model, folder, sets);
    const state::Device device = CpuDevice();
    const Trained expected =
        TrainFor(recipe, driver::CompileRecipe(recipe, {.profile = device.profile}), 1, device,
                 [&](const plan::Plan& plan, std::int64_t) -> executor::Feed {
                   executor::Feed feed([&](const std::string& input, std::int64_t microbatch,
                                           const backend::TensorView& host) {
                     const Alone& alone = documents[static_cast<size_t>(microbatch)];
                     auto* out = host.as<std::int32_t>();
                     for (std::size_t s = 0; s < 16; ++s) {
                       const bool there = s < alone.tokens.size();
                       out[s] = input == model::kTokens   ? (there ? alone.tokens[s] : 0)
                                : input == model::kLabels ? (there ? alone.labels[s] : -1)
                                                          : static_cast<std::int32_t>(s);
                     }
                     return absl::OkStatus();
                   });
                   const double labels = 16.0 * static_cast<double>(plan.global_batch);
                   feed.label_factor = [labels, counted]() -> absl::StatusOr<double> {
                     return labels / static_cast<double>(counted);
                   };
                   return feed;
                 });
    CheckEqual(expected, TrainOnData(packed, 1));
  }
}

TEST_CASE("loss masks: a batch without a label that counts changes nothing by its gradient") {
  const TempDir folder;
  const std::vector<std::int32_t> tokens(200, 'a');
  const std::vector<std::int32_t> none(200, 0);
  for (const auto& [name, content, type] : {std::tuple("text", &tokens, data::TokenType::kU16),
                                            std::tuple("text_loss_mask", &none, data::TokenType::kU8)}) {
    auto writer = data::IndexedDatasetWriter::Create(folder / name, type);
    REQUIRE(writer.ok());
    REQUIRE((*writer)->AddDocument({content, 1}).ok());
    REQUIRE((*writer)->Finish().ok());
  }
  const Trained trained = TrainOnData(RecipeOf(kLlamaLike, folder, {}), 1);
  CHECK(trained.losses[0] == 0);
  CHECK(trained.grad_norms[0] == 0);
}

}  // namespace engine::train::testing
