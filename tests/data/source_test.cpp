#include "engine/data/source.h"

#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>
#include <set>
#include <thread>

#include "engine/base/status.h"
#include "tests/data/oracle.h"

namespace engine::data {
namespace {

void WriteDataset(const std::string& prefix, const std::vector<std::vector<std::int32_t>>& sequences,
                  TokenType type = TokenType::kU16) {
  absl::StatusOr<std::unique_ptr<IndexedDatasetWriter>> writer = IndexedDatasetWriter::Create(prefix, type);
  REQUIRE(writer.ok());
  for (const std::vector<std::int32_t>& sequence : sequences)
    REQUIRE((*writer)->AddDocument({&sequence, 1}).ok());
  REQUIRE((*writer)->Finish().ok());
}

// `count` sequences of `length` tokens, each equal to first + its number.
std::vector<std::vector<std::int32_t>> Numbered(std::int32_t count, std::size_t length,
                                                std::int32_t first = 0) {
  std::vector<std::vector<std::int32_t>> sequences;
  for (std::int32_t i = 0; i < count; ++i) sequences.emplace_back(length, first + i);
  return sequences;
}

recipe::Recipe MakeRecipe(const std::vector<std::string>& paths) {
  recipe::Recipe recipe;
  recipe.path = "r.toml";
  recipe.model.vocab = 1000;
  recipe.data.paths = paths;
  recipe.data.split = "1";
  recipe.data.sequence_length = 4;
  recipe.training.global_batch = 2;
  recipe.training.iterations = 3;
  return recipe;
}

Source OpenSource(const recipe::Recipe& recipe) {
  absl::StatusOr<Source> source = Source::Open(recipe);
  REQUIRE_MESSAGE(source.ok(), Message(source.status()));
  return *std::move(source);
}

std::string OpenError(const recipe::Recipe& recipe) { return Message(Source::Open(recipe).status()); }

std::vector<std::int32_t> Get(const Source& source, Split split, std::int64_t index) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(source.sequence_length()) + 1);
  const absl::Status status = source.Sample(split, index, tokens);
  REQUIRE_MESSAGE(status.ok(), Message(status));
  return tokens;
}

}  // namespace

TEST_CASE("samples are the tokens that the oracle fetches") {
  for (const nlohmann::json& oracle_case : Oracle().at("gpt")) {
    if (oracle_case["num_samples"].is_null()) continue;
    CAPTURE(oracle_case.dump());
    const TempDir dir;
    std::vector<std::vector<std::int32_t>> sequences;
    for (std::size_t k = oracle_case["begin"]; k < oracle_case["end"]; ++k) {
      sequences.emplace_back(oracle_case["lengths"][k].get<std::size_t>());
      std::iota(sequences.back().begin(), sequences.back().end(), static_cast<std::int32_t>(20 * k));
    }
    WriteDataset(dir / "d", sequences);
    recipe::Recipe recipe = MakeRecipe({dir / "d"});
    recipe.data.sequence_length = oracle_case["sequence_length"];
    recipe.training.seed = oracle_case["seed"];
    recipe.training.global_batch = 1;
    recipe.training.iterations = oracle_case["num_samples"];
    const Source source = OpenSource(recipe);
    CHECK(source.size(Split::kTrain) == oracle_case["num_samples"].get<std::int64_t>());
    for (const nlohmann::json& fetched : oracle_case["fetched"]) {
      if (fetched[0] >= source.size(Split::kTrain)) continue;
      std::vector<std::int32_t> expected;
      for (const nlohmann::json& place : fetched[1]) {
        expected.push_back(20 * place[0].get<std::int32_t>() + place[1].get<std::int32_t>());
      }
      CHECK(Get(source, Split::kTrain, fetched[0]) == expected);
    }
  }
}

TEST_CASE("sizes follow the recipe, and splits share no sequence") {
  const TempDir dir;
  WriteDataset(dir / "d", Numbered(100, 6));
  recipe::Recipe recipe = MakeRecipe({dir / "d"});
  recipe.data.split = "80,15,5";
  recipe.training.iterations = 21;
  CHECK(OpenSource(recipe).size(Split::kValid) == 0);
  CHECK(OpenSource(recipe).size(Split::kTest) == 0);
  recipe.evaluation.interval = 10;
  recipe.evaluation.iterations = 4;
  const Source source = OpenSource(recipe);
  CHECK(source.size(Split::kTrain) == 21 * 2);
  CHECK(source.size(Split::kValid) == (21 / 10 + 1) * 4 * 2);
  CHECK(source.size(Split::kTest) == 4 * 2);
  const std::array<std::pair<int, int>, 3> ranges = {{{0, 80}, {80, 95}, {95, 100}}};
  for (Split split : kSplits) {
    const auto [begin, end] = ranges[static_cast<std::size_t>(split)];
    for (std::int64_t i = 0; i < source.size(split); ++i) {
      for (std::int32_t token : Get(source, split, i)) CHECK((token >= begin && token < end));
    }
  }
  const std::string summary = source.Summary();
  CHECK(summary.find("600 tokens (uint16) in 100 sequences") != std::string::npos);
  CHECK(summary.find("validation: 24 samples of 4 + 1 tokens, from 2 epochs of 90 tokens") !=
        std::string::npos);
}

TEST_CASE("a sample is a pure function, from any thread") {
  const TempDir dir;
  WriteDataset(dir / "d", Numbered(50, 7));
  recipe::Recipe recipe = MakeRecipe({dir / "d"});
  recipe.training.iterations = 60;
  const Source source = OpenSource(recipe);
  std::vector<std::vector<std::int32_t>> expected;
  for (std::int64_t i = 0; i < 120; ++i) expected.push_back(Get(source, Split::kTrain, i));
  std::vector<std::vector<std::int32_t>> seen(120, std::vector<std::int32_t>(5));
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (std::size_t i = t; i < seen.size(); i += 4) {
        if (!source.Sample(Split::kTrain, static_cast<std::int64_t>(i), seen[i]).ok()) seen[i].clear();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(seen == expected);
  std::vector<std::int32_t> tokens(5);
  CHECK(absl::IsOutOfRange(source.Sample(Split::kTrain, 120, tokens)));
  CHECK(absl::IsOutOfRange(source.Sample(Split::kTrain, -1, tokens)));
  CHECK(absl::IsOutOfRange(source.Sample(Split::kValid, 0, tokens)));
  tokens.resize(4);
  CHECK(absl::IsInvalidArgument(source.Sample(Split::kTrain, 0, tokens)));
}

TEST_CASE("a weighted blend deals its data sets by their weights") {
  const TempDir dir;
  WriteDataset(dir / "a", Numbered(30, 9, 0));
  WriteDataset(dir / "b", Numbered(30, 9, 500));
  recipe::Recipe recipe = MakeRecipe({dir / "a", dir / "b"});
  recipe.data.weights = {3, 7};
  recipe.training.iterations = 50;
  const Source source = OpenSource(recipe);
  std::string order;
  for (std::int64_t i = 0; i < 100; ++i) order += Get(source, Split::kTrain, i)[0] < 500 ? '0' : '1';
  CHECK(order.starts_with("1011011011"));
  CHECK(std::count(order.begin(), order.end(), '0') == 30);
  // The unigram entropy is the mixture's: each half is uniform over 30 tokens.
  CHECK(*source.UnigramEntropy() ==
        doctest::Approx(std::log(30.0) - 0.3 * std::log(0.3) - 0.7 * std::log(0.7)));
}

TEST_CASE("a data set with a weight is indexed for 0.5 % more samples than are taken") {
  const TempDir dir;
  WriteDataset(dir / "d", Numbered(10, 5));  // 12 samples an epoch
  recipe::Recipe recipe = MakeRecipe({dir / "d"});
  recipe.training.iterations = 6;
  CHECK(OpenSource(recipe).Summary().find("train: 12 samples of 4 + 1 tokens, from 1 epoch of") !=
        std::string::npos);
  recipe.data.weights = {2.5};
  CHECK(OpenSource(recipe).Summary().find("tokens, 100.0 % from 2 epochs of 50 tokens") != std::string::npos);
}

TEST_CASE("a blend without weights is one epoch of all, and no more") {
  const TempDir dir;
  WriteDataset(dir / "a", Numbered(10, 5, 0));    // (50 - 1) / 4 = 12 samples
  WriteDataset(dir / "b", Numbered(20, 5, 500));  // (100 - 1) / 4 = 24 samples
  recipe::Recipe recipe = MakeRecipe({dir / "a", dir / "b"});
  recipe.training.iterations = 18;
  const Source source = OpenSource(recipe);
  std::int64_t from_a = 0;
  for (std::int64_t i = 0; i < 36; ++i) from_a += Get(source, Split::kTrain, i)[0] < 500 ? 1 : 0;
  CHECK(from_a == 12);
  recipe.training.iterations = 19;
  CHECK(OpenError(recipe).find("one epoch of the 2 data sets has 36 train samples, the run needs 38; give "
                               "data.weights") != std::string::npos);
}

TEST_CASE("epochs of each data set are gone through whole, and no more") {
  const TempDir dir;
  WriteDataset(dir / "a", Numbered(10, 5, 0));    // (50 - 1) / 4 = 12 samples an epoch
  WriteDataset(dir / "b", Numbered(20, 5, 500));  // 2 epochs: (200 - 1) / 4 = 49 samples
  recipe::Recipe recipe = MakeRecipe({dir / "a", dir / "b"});
  recipe.data.epochs = {1, 2};
  recipe.training.iterations = 30;
  const Source source = OpenSource(recipe);
  std::map<std::int32_t, int> seen;  // of each sequence, its tokens
  std::int64_t from_a = 0;
  for (std::int64_t i = 0; i < 60; ++i) {
    const std::vector<std::int32_t> sample = Get(source, Split::kTrain, i);
    from_a += sample[0] < 500 ? 1 : 0;
    for (std::size_t t = 0; t < 4; ++t) ++seen[sample[t]];
  }
  CHECK(from_a == 12);
  CHECK(std::all_of(seen.begin(), seen.end(),
                    [](const auto& entry) { return entry.second <= (entry.first < 500 ? 5 : 10); }));
  CHECK(source.Summary().find("78.7 % from 2 epochs of 100 tokens") == std::string::npos);
  CHECK(source.Summary().find("from 2 epochs of 100 tokens") != std::string::npos);
  recipe.training.iterations = 31;
  recipe.provenance["data.epochs"].span = {"r.toml", 7, 9, 3};
  CHECK(OpenError(recipe).starts_with(
      "r.toml:7:9: error: data.epochs: so many epochs of the 2 data sets has 61 "
      "train samples, the run needs 62; give more epochs"));
  recipe.data.epochs = {2};  // one number for all
  CHECK(OpenError(recipe).empty());
  // One data set alone is not repeated either; validation goes by no epochs of training.
  recipe.data.paths = {dir / "b"};
  recipe.data.split = "1,1";
  recipe.training.iterations = 6;
  recipe.evaluation.interval = 1;
  recipe.data.epochs = {1};
  CHECK(OpenSource(recipe).size(Split::kValid) == 7 * 10 * 2);
  recipe.training.iterations = 13;
  CHECK(OpenError(recipe).find("so many epochs of the data set has 12 train samples, the run needs 26") !=
        std::string::npos);
  recipe.data.weights = {1};
  CHECK(OpenError(recipe).find("data.epochs: stands beside weights") != std::string::npos);
}

// Each split its own blend, of whole data sets, as Megatron-LM's --train-data-path and its like.
TEST_CASE("splits have data sets of their own, which are used whole") {
  const TempDir dir;
  WriteDataset(dir / "a", Numbered(30, 9, 0));
  WriteDataset(dir / "b", Numbered(30, 9, 300));
  WriteDataset(dir / "c", Numbered(30, 9, 600));
  recipe::Recipe recipe = MakeRecipe({});
  recipe.data.train = {.paths = {dir / "a", dir / "b"}, .weights = {3, 7}, .epochs = {}};
  recipe.data.validation = {.paths = {dir / "c", dir / "a"}, .weights = {1, 1}, .epochs = {}};
  recipe.data.test = {.paths = {dir / "c"}, .weights = {}, .epochs = {}};
  recipe.training.iterations = 50;
  recipe.evaluation.interval = 25;
  const Source source = OpenSource(recipe);
  std::string order;
  for (std::int64_t i = 0; i < 100; ++i) order += Get(source, Split::kTrain, i)[0] < 300 ? '0' : '1';
  CHECK(order.starts_with("1011011011"));
  for (std::int64_t i = 0; i < source.size(Split::kValid); ++i) {
    const std::int32_t token = Get(source, Split::kValid, i)[0];
    CHECK((token < 300 || token >= 600));
  }
  REQUIRE(source.size(Split::kTest) == 20);
  std::set<std::int32_t> of_test;
  for (std::int64_t i = 0; i < 20; ++i) of_test.insert(Get(source, Split::kTest, i)[0]);
  CHECK(*of_test.begin() >= 600);
  // The samples are those of the same data sets by themselves.
  recipe::Recipe alone = MakeRecipe({dir / "a", dir / "b"});
  alone.data.weights = {3, 7};
  alone.training.iterations = 50;
  const Source expected = OpenSource(alone);
  for (std::int64_t i = 0; i < 100; ++i)
    CHECK(Get(source, Split::kTrain, i) == Get(expected, Split::kTrain, i));
  // Mistakes are told at the split's own keys.
  recipe.provenance["data.validation.paths"].span = {"r.toml", 3, 1, 1};
  recipe.data.validation.paths[1] = dir / "no";
  CHECK(
      OpenError(recipe).starts_with("r.toml:3:1: error: data.validation.paths: cannot open " + (dir / "no")));
  recipe.data.validation.paths.pop_back();
  CHECK(OpenError(recipe).find("data.validation.weights: 2 weights for 1 data sets") != std::string::npos);
  recipe.data.validation = {};
  CHECK(OpenError(recipe).starts_with("r.toml:3:1: error: data.validation.paths: names no data set"));
  recipe.evaluation.interval = 0;
  CHECK(OpenError(recipe).empty());
}

TEST_CASE("the unigram entropy is the train split's") {
  const TempDir dir;
  WriteDataset(dir / "d", {{1, 1, 2, 3}, {1, 2, 1, 1}, {9, 9, 9, 9, 9, 9}});
  recipe::Recipe recipe = MakeRecipe({dir / "d"});
  recipe.data.split = "2,1";
  const double expected =
      -(5.0 / 8 * std::log(5.0 / 8) + 2.0 / 8 * std::log(2.0 / 8) + 1.0 / 8 * std::log(1.0 / 8));
  CHECK(*OpenSource(recipe).UnigramEntropy() == doctest::Approx(expected).epsilon(1e-14));
}

TEST_CASE("what is wrong with the data is said before the run, at the recipe's key") {
  const TempDir dir;
  WriteDataset(dir / "d", Numbered(10, 5));
  recipe::Recipe recipe = MakeRecipe({dir / "d"});
  recipe.provenance["data.paths"].span = {"r.toml", 7, 9, 3};
  const auto error = [&](auto change) {
    recipe::Recipe changed = recipe;
    change(&changed);
    return OpenError(changed);
  };
  CHECK(error([&](auto* r) {
          r->data.paths = {dir / "no"};
        }).starts_with("r.toml:7:9: error: data.paths: cannot open " + (dir / "no") + ".idx: No such file"));
  const std::string absent = error([&](auto* r) {
    r->data.paths = {"sub/web_text_document"};
    r->data.tokenizer = {.kind = "gpt2", .vocab_file = "v.json", .merges_file = "m.txt"};
  });
  CHECK(absent.find("hint: `engine data build --input TEXT.jsonl --append-eod --output-prefix sub/web") !=
        std::string::npos);
  CHECK(error([](auto* r) { r->data.paths = {}; }).find("data.paths: names no data set") !=
        std::string::npos);
  CHECK(error([&](auto* r) { r->model.vocab = 9; })
            .find("d.bin: token 9 (sequence 9, position 45 of the file) is outside the model's vocabulary, 0 "
                  "to 8") != std::string::npos);
  CHECK(error([](auto* r) { r->data.sequence_length = 50; })
            .find("train split (\"1\") of " + (dir / "d") +
                  ": 50 tokens in 10 sequences are too few: one sample of "
                  "sequence length 50 needs 51") != std::string::npos);
  CHECK(error([](auto* r) { r->evaluation.interval = 1; }).find("validation split (\"1\")") !=
        std::string::npos);
  CHECK(error([](auto* r) { r->data.split = "a"; }).find("data.split: ") != std::string::npos);
  CHECK(error([](auto* r) {
          r->data.weights = {1, 2};
        }).find("2 weights for 1 data sets") != std::string::npos);
  CHECK(error([](auto* r) { r->data.weights = {-1}; }).find("data.weights: weight -1") != std::string::npos);
  CHECK(error([](auto* r) { r->training.seed = -1; }).find("training.seed: -1 is not from 0") !=
        std::string::npos);
  CHECK(error([](auto* r) { r->training.seed = std::int64_t{1} << 32; }).find("training.seed") !=
        std::string::npos);
  CHECK(error([](auto* r) {
          r->training.iterations = std::int64_t{1} << 62;
        }).find("training.iterations: 4611686018427387904 iterations of 2 samples") != std::string::npos);
  CHECK(error([](auto* r) { r->training.iterations = std::int64_t{1} << 61; }).find("samples asked for") !=
        std::string::npos);
  CHECK(error([](auto*) {}).empty());
  WriteDataset(dir / "n", {{1, -2, 3, 4, 5}}, TokenType::kI32);
  CHECK(error([&](auto* r) { r->data.paths = {dir / "n"}; }).find("token -2 (sequence 0, position 1") !=
        std::string::npos);
}

TEST_CASE("a test split without text is empty, not an error") {
  const TempDir dir;
  WriteDataset(dir / "d", Numbered(10, 5));
  recipe::Recipe recipe = MakeRecipe({dir / "d"});
  recipe.data.split = "8,2,0";
  recipe.evaluation.interval = 1;
  const Source source = OpenSource(recipe);
  CHECK(source.size(Split::kValid) == 4 * 10 * 2);
  CHECK(source.size(Split::kTest) == 0);
}

TEST_CASE("ranks and microbatches share out each iteration without overlap") {
  CHECK(FirstSample(100, 0, 0, 4, 2) == 100);
  CHECK(FirstSample(100, 0, 1, 4, 2) == 104);
  CHECK(FirstSample(100, 1, 0, 4, 2) == 108);
  std::set<std::int64_t> samples;
  for (std::int64_t microbatch = 0; microbatch < 3; ++microbatch) {
    for (std::int64_t rank = 0; rank < 5; ++rank) {
      for (std::int64_t i = 0; i < 2; ++i) samples.insert(FirstSample(60, microbatch, rank, 2, 5) + i);
    }
  }
  CHECK(samples.size() == 30);
  CHECK(*samples.begin() == 60);
  CHECK(*samples.rbegin() == 89);
}

namespace {

SampleTokens Whole(const Source& source, std::int64_t index) {
  absl::StatusOr<SampleTokens> sample = source.Read(Split::kTrain, index);
  REQUIRE_MESSAGE(sample.ok(), Message(sample.status()));
  return *std::move(sample);
}

// Labels of all samples that count, one by one.
std::int64_t Counted(const Source& source) {
  std::int64_t counted = 0;
  for (std::int64_t i = 0; i < source.size(Split::kTrain); ++i) {
    const SampleTokens sample = Whole(source, i);
    for (std::int64_t s = 0; s < source.sequence_length(); ++s) counted += sample.Label(s, 1) >= 0 ? 1 : 0;
  }
  return counted;
}

}  // namespace

// Megatron-LM's loss_mask[data == eod] = 0, where data are the inputs.
TEST_CASE("what is predicted behind an end-of-document token does not count where the recipe says so") {
  const TempDir dir;
  std::vector<std::vector<std::int32_t>> sequences(40, std::vector<std::int32_t>(7));
  for (std::size_t n = 0; n < sequences.size(); ++n) {
    for (std::size_t p = 0; p < 7; ++p) sequences[n][p] = static_cast<std::int32_t>(7 * n + p);
    for (std::size_t p = 0; p < 7; ++p) {
      if ((n + p) % 4 == 0) sequences[n][p] = 256;
    }
  }
  WriteDataset(dir / "d", sequences);
  recipe::Recipe recipe = MakeRecipe({dir / "d"});
  recipe.data.sequence_length = 20;
  recipe.training.iterations = 6;
  CHECK_FALSE(OpenSource(recipe).masks_loss());
  recipe.data.mask_end_of_document_loss = true;
  const Source source = OpenSource(recipe);
  CHECK(source.masks_loss());
  CHECK(source.Summary().find("what is predicted behind token 256 does not count") != std::string::npos);
  CHECK(source.Fingerprint().at("end-of-document token") == "256");
  int masked = 0;
  for (std::int64_t index = 0; index < 12; ++index) {
    const SampleTokens sample = Whole(source, index);
    CHECK(sample.starts == std::vector<std::int32_t>{0});
    for (std::int64_t s = 0; s < 20; ++s) {
      const auto at = static_cast<std::size_t>(s);
      const bool counts = sample.tokens[at] != 256;
      masked += counts ? 0 : 1;
      CHECK(sample.Label(s, 1) == (counts ? sample.tokens[at + 1] : -1));
      // What is predicted further on goes with the token that it follows.
      if (s > 0) CHECK(sample.Label(s - 1, 2) == (counts ? sample.tokens[at + 1] : -1));
    }
    CHECK(sample.Label(19, 2) == -1);
  }
  CHECK(masked > 24);
  CHECK(*source.CountedLabels(Split::kTrain, 0, 12) == 12 * 20 - masked);
  recipe.model.vocab = 256;
  CHECK(OpenError(recipe).find("its end-of-document token is 256") != std::string::npos);
}

TEST_CASE("labels are counted the same in blocks of samples and on several threads") {
  for (const auto& [length, samples] : {std::pair{20, 600}, std::pair{8192, 70}}) {
    CAPTURE(length);
    const TempDir dir(MemoryFolder());
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(length * samples) + 1);
    for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = i * i % 7 == 2 ? 256 : 1;
    WriteDataset(dir / "d", {tokens});
    recipe::Recipe recipe = MakeRecipe({dir / "d"});
    recipe.data.sequence_length = length;
    recipe.data.mask_end_of_document_loss = true;
    recipe.training.iterations = samples / 2;
    const Source source = OpenSource(recipe);
    std::int64_t wanted = 0;
    for (std::int64_t i = 3; i < samples; ++i) wanted += *source.CountedLabels(Split::kTrain, i, 1);
    CHECK(*source.CountedLabels(Split::kTrain, 3, samples - 3) == wanted);
    CHECK(wanted < std::int64_t{length} * (samples - 3) * 3 / 4);
    CHECK(wanted > std::int64_t{length} * (samples - 3) * 2 / 3);
    CHECK(absl::IsOutOfRange(source.CountedLabels(Split::kTrain, 3, samples).status()));
  }
}

TEST_CASE("a data set's mask says which of its tokens count") {
  const TempDir dir;
  std::vector<std::vector<std::int32_t>> sequences(30, std::vector<std::int32_t>(7));
  std::vector<std::vector<std::int32_t>> masks = sequences;
  for (std::size_t n = 0; n < sequences.size(); ++n) {
    for (std::size_t p = 0; p < 7; ++p) {
      sequences[n][p] = static_cast<std::int32_t>(7 * n + p);
      masks[n][p] = (n * p + p) % 3 == 0 ? 0 : 1;
    }
  }
  WriteDataset(dir / "d", sequences);
  WriteDataset(dir / "plain", Numbered(30, 7, 500));
  WriteDataset(dir / "d_loss_mask", masks, TokenType::kU8);
  recipe::Recipe recipe = MakeRecipe({dir / "d", dir / "plain"});
  recipe.data.weights = {1, 1};
  recipe.data.sequence_length = 10;
  recipe.training.iterations = 8;
  const Source source = OpenSource(recipe);
  CHECK(source.Summary().find((dir / "d_loss_mask") + " says which count in the loss") != std::string::npos);
  CHECK(source.Fingerprint().contains("data " + (dir / "d_loss_mask") + ".bin"));
  for (std::int64_t index = 0; index < 16; ++index) {
    const SampleTokens sample = Whole(source, index);
    for (std::int64_t s = 0; s < 10; ++s) {
      const std::int32_t next = sample.tokens[static_cast<std::size_t>(s) + 1];
      const auto of = static_cast<std::size_t>(next);
      const bool counts = next >= 500 || masks[of / 7][of % 7] == 1;
      CHECK(sample.Label(s, 1) == (counts ? next : -1));
    }
  }
  CHECK(*source.CountedLabels(Split::kTrain, 0, 16) == Counted(source));
  CHECK(Counted(source) < 160);
  // A mask of other data.
  recipe.provenance["data.paths"].span = {"r.toml", 7, 9, 3};
  const auto error = [&](std::vector<std::vector<std::int32_t>> mask, TokenType type) {
    WriteDataset(dir / "d_loss_mask", mask, type);
    return OpenError(recipe);
  };
  CHECK(error(masks, TokenType::kU16)
            .starts_with("r.toml:7:9: error: data.paths: " + (dir / "d_loss_mask") +
                         ".idx: a mask of the loss is of uint8, not uint16"));
  std::vector<std::vector<std::int32_t>> other = masks;
  other[3].pop_back();
  CHECK(error(other, TokenType::kU8).find("sequence 3 has 6 numbers, and its ") != std::string::npos);
  other = masks;
  other.pop_back();
  CHECK(error(other, TokenType::kU8).find("d_loss_mask.idx has 29 sequences, and ") != std::string::npos);
  other = masks;
  for (auto& sequence : other) sequence[4] = 7;
  CHECK(error(other, TokenType::kU8).empty());
  const Source wrong = OpenSource(recipe);
  std::string told;
  for (std::int64_t index = 0; index < 16 && told.empty(); ++index)
    told = Message(wrong.Read(Split::kTrain, index).status());
  CHECK(told.starts_with((dir / "d_loss_mask") + ".bin: number 7 (sequence "));
  CHECK(Message(wrong.CountedLabels(Split::kTrain, 0, 16).status()) == told);  // the first sample's
  std::filesystem::remove((dir / "d_loss_mask") + ".bin");
  CHECK(OpenError(recipe).find("the mask of the loss: ") != std::string::npos);
}

TEST_CASE("packed samples are whole documents, and padding") {
  const TempDir dir;
  std::vector<std::vector<std::int32_t>> sequences;
  for (std::int32_t n = 0; n < 60; ++n) {
    sequences.emplace_back(static_cast<std::size_t>(1 + n * 7 % 30));
    for (std::size_t p = 0; p < sequences.back().size(); ++p)
      sequences.back()[p] = static_cast<std::int32_t>(300 + 40 * n) + static_cast<std::int32_t>(p);
  }
  WriteDataset(dir / "d", sequences);
  recipe::Recipe recipe = MakeRecipe({dir / "d"});
  recipe.model.vocab = 3000;
  recipe.data.sequence_length = 20;
  recipe.data.documents = "masked";
  recipe.data.packing = "best_fit";
  recipe.data.tokenizer.kind = "none";
  recipe.data.epochs = {1};
  recipe.training.global_batch = 1;
  recipe.training.iterations = 1;
  const std::string full = OpenSource(recipe).Summary();
  CHECK(full.find(" pieces of documents in ") != std::string::npos);
  CHECK(full.find(", 18 documents cut") != std::string::npos);
  const auto samples = static_cast<int>(std::stol(full.substr(full.find(" pieces of documents in ") + 24)));
  recipe.training.iterations = samples;
  const Source source = OpenSource(recipe);
  std::set<std::int32_t> predicted;
  std::int64_t padding = 0;
  for (std::int64_t index = 0; index < samples; ++index) {
    const SampleTokens sample = Whole(source, index);
    REQUIRE(sample.tokens.size() == 21);
    for (std::int64_t s = 0; s < 20; ++s) {
      const auto at = static_cast<std::size_t>(s);
      const auto next = std::upper_bound(sample.starts.begin(), sample.starts.end(), s);
      const std::int32_t begin = *(next - 1);
      const std::int32_t end = next == sample.starts.end() ? 21 : *next;
      const std::int32_t token = sample.tokens[at];
      // Within a document tokens are consecutive, and so are labels, of the next and of the one after it.
      if (token >= 300) CHECK(sample.tokens[static_cast<std::size_t>(begin)] + (s - begin) == token);
      for (std::int64_t ahead = 1; ahead <= 2; ++ahead) {
        const bool counts =
            token >= 300 && s + ahead < end && sample.tokens[static_cast<std::size_t>(s + ahead)] >= 300;
        CHECK(sample.Label(s, ahead) == (counts ? token + ahead : -1));
      }
      padding += token < 300 ? 1 : 0;
      if (sample.Label(s, 1) >= 0) CHECK(predicted.insert(sample.Label(s, 1)).second);
    }
  }
  CHECK(padding > 0);
  for (const auto& sequence : sequences) {
    for (std::size_t p = 1; p < sequence.size(); ++p) CHECK(predicted.contains(sequence[p]));
  }
  CHECK(*source.CountedLabels(Split::kTrain, 0, samples) == Counted(source));
  CHECK(Counted(source) == static_cast<std::int64_t>(predicted.size()));
  recipe.training.iterations = samples + 1;
  CHECK(OpenError(recipe).find("so many epochs of the data set has") != std::string::npos);
  recipe.data.epochs = {};  // repeated as often as needed
  CHECK(OpenSource(recipe).Summary().find("from 2 epochs of") != std::string::npos);
  recipe.data.long_documents = "drop";
  CHECK(OpenSource(recipe).Summary().find(" documents left out") != std::string::npos);
  // A split in which nothing fits a sample is empty where it is the test split, as one without text is; others are refused.
  recipe.data.paths.clear();
  recipe.data.train.paths = {dir / "d"};
  recipe.data.train.epochs = {1};
  recipe.data.validation.paths = {dir / "d"};
  WriteDataset(dir / "long", Numbered(5, 22));
  recipe.data.test.paths = {dir / "long"};
  recipe.training.iterations = 1;
  recipe.evaluation.interval = 1;
  recipe.evaluation.iterations = 1;
  CHECK(OpenSource(recipe).size(Split::kTest) == 0);
  recipe.data.long_documents = "cut";
  CHECK(OpenSource(recipe).size(Split::kTest) == 1);
  WriteDataset(dir / "long", Numbered(5, 21));
  recipe.data.long_documents = "drop";
  CHECK(OpenSource(recipe).size(Split::kTest) == 1);
  WriteDataset(dir / "long", Numbered(5, 22));
  recipe.data.validation.paths = {dir / "long"};
  CHECK(OpenError(recipe).find("all have less than 2 or more than 21 tokens") != std::string::npos);
}

// One token a character: then what was rearranged can be put together again.
TEST_CASE("documents are rearranged to be filled in in the middle, as the sample's number draws it") {
  const TempDir dir;
  nlohmann::json vocab = {{"<unk>", 0}, {"<pre>", 1}, {"<mid>", 2}, {"<suf>", 3}, {"<eod>", 4}};
  for (char c = 'a'; c <= 'z'; ++c) vocab[std::string(1, c)] = 10 + c - 'a';
  const nlohmann::json file = {{"version", "1.0"},
                               {"truncation", nullptr},
                               {"padding", nullptr},
                               {"added_tokens", nlohmann::json::array()},
                               {"normalizer", nullptr},
                               {"pre_tokenizer", nullptr},
                               {"post_processor", nullptr},
                               {"decoder", {{"type", "Fuse"}}},
                               {"model",
                                {{"type", "BPE"},
                                 {"dropout", nullptr},
                                 {"unk_token", "<unk>"},
                                 {"continuing_subword_prefix", nullptr},
                                 {"end_of_word_suffix", nullptr},
                                 {"fuse_unk", false},
                                 {"byte_fallback", false},
                                 {"ignore_merges", false},
                                 {"vocab", vocab},
                                 {"merges", nlohmann::json::array()}}}};
  std::ofstream(dir / "tokenizer.json") << file.dump();
  std::vector<std::vector<std::int32_t>> sequences;
  for (std::int32_t n = 0; n < 60; ++n) {
    sequences.emplace_back();
    for (std::int32_t p = 0; p < 3 + n % 9; ++p) sequences.back().push_back(10 + (n + p) % 26);
    sequences.back().push_back(4);
  }
  WriteDataset(dir / "d", sequences);
  recipe::Recipe recipe = MakeRecipe({dir / "d"});
  recipe.data.sequence_length = 30;
  recipe.training.iterations = 100;
  recipe.data.tokenizer.kind = "file";
  recipe.data.tokenizer.path = dir / "tokenizer.json";
  recipe.data.tokenizer.end_of_document = "<eod>";
  const Source plain = OpenSource(recipe);
  recipe.data.fim = {.rate = 0.5,
                     .spm_rate = 0.25,
                     .prefix_token = "<pre>",
                     .middle_token = "<mid>",
                     .suffix_token = "<suf>"};
  recipe.data.documents = "masked";
  const Source source = OpenSource(recipe);
  int documents = 0;
  int rearranged = 0;
  int suffix_first = 0;
  for (std::int64_t index = 0; index < 200; ++index) {
    const SampleTokens before = Whole(plain, index);
    const SampleTokens after = Whole(source, index);
    CHECK(after.tokens == Whole(source, index).tokens);
    std::string text;  // of all documents, put together again as far as they are whole
    std::string expected;
    for (const std::int32_t token : before.tokens)
      expected += static_cast<char>(token == 4 ? '.' : 'a' + token - 10);
    for (std::size_t d = 0; d < after.starts.size(); ++d) {
      const bool last = d + 1 == after.starts.size();
      const auto end = last ? after.tokens.end() : after.tokens.begin() + after.starts[d + 1];
      std::vector<std::int32_t> document(after.tokens.begin() + after.starts[d], end);
      if (document.back() != 4) continue;  // cut off by the sample's end
      ++documents;
      document.pop_back();
      std::string parts[3];  // prefix, middle, suffix
      std::string* part = &parts[0];
      bool is_rearranged = false;
      bool spm = false;
      for (const std::int32_t token : document) {
        if (token == 1) is_rearranged = true;
        if (token == 3) {
          spm = parts[0].empty();
          part = &parts[2];
        }
        if (token == 2) part = spm ? &parts[0] : &parts[1];
        if (token >= 10) *part += static_cast<char>('a' + token - 10);
      }
      rearranged += is_rearranged ? 1 : 0;
      suffix_first += is_rearranged && spm ? 1 : 0;
      text += parts[0] + parts[1] + parts[2] + ".";
    }
    CHECK(expected.starts_with(text));
    CHECK(after.tokens.size() == 31);
    CHECK(after.tokens != Whole(source, (index + 1) % 200).tokens);
  }
  // About half of the documents, and of these about a quarter with the suffix first; of others the prefix may be empty.
  CHECK(rearranged > 0.4 * documents);
  CHECK(rearranged < 0.6 * documents);
  CHECK(suffix_first > 0.2 * rearranged);
  CHECK(suffix_first < 0.55 * rearranged);
  recipe.data.fim.rate = 1e-12;  // nothing is drawn: the same samples
  const Source never = OpenSource(recipe);
  for (std::int64_t index = 0; index < 20; ++index)
    CHECK(Whole(never, index).tokens == Whole(plain, index).tokens);
  recipe.data.fim.middle_token = "<hole>";
  recipe.provenance["data.fim.middle_token"].span = {"r.toml", 3, 1, 1};
  CHECK(OpenError(recipe) == "r.toml:3:1: error: data.fim.middle_token: " + (dir / "tokenizer.json") +
                                 " (tokenizer.json): has no token \"<hole>\"");
  recipe.data.fim.middle_token = "<mid>";
  WriteDataset(dir / "d_loss_mask", sequences, TokenType::kU8);
  CHECK(OpenError(recipe).find("data.fim.rate: rearranges documents, and ") != std::string::npos);
}

namespace {

std::vector<std::int32_t> StartsOf(const Source& source, std::int64_t index) {
  return source.Read(Split::kTrain, index)->starts;
}

}  // namespace

// Token p of sequence n is 1000 + 7·n + p, so that borders of sequences can be seen; one of each is 256, at its end or within it.
TEST_CASE("documents of a sample end where sequences do, and behind the end-of-document token") {
  const TempDir dir;
  std::vector<std::vector<std::int32_t>> sequences(40, std::vector<std::int32_t>(7));
  for (std::size_t n = 0; n < sequences.size(); ++n) {
    for (std::size_t p = 0; p < 7; ++p) sequences[n][p] = static_cast<std::int32_t>(1000 + 7 * n + p);
    sequences[n][1 + n % 6] = 256;  // the byte tokenizer's end of a document
  }
  WriteDataset(dir / "d", sequences);
  recipe::Recipe recipe = MakeRecipe({dir / "d"});
  recipe.model.vocab = 2000;
  recipe.data.sequence_length = 20;
  recipe.training.iterations = 8;
  const Source across = OpenSource(recipe);
  recipe.data.documents = "masked";
  const Source bytes = OpenSource(recipe);
  recipe.data.tokenizer.kind = "none";
  const Source none = OpenSource(recipe);
  CHECK(bytes.masks_documents());
  CHECK_FALSE(across.masks_documents());
  CHECK(bytes.Summary().find("documents end where sequences do, and behind token 256\n") !=
        std::string::npos);
  CHECK(none.Summary().find("documents end where sequences do\n") != std::string::npos);
  CHECK(across.Summary().find("documents") == std::string::npos);
  int within = 0;
  for (std::int64_t index = 0; index < 16; ++index) {
    CAPTURE(index);
    const std::vector<std::int32_t> sample = Get(bytes, Split::kTrain, index);
    std::vector<std::int32_t> by_bytes = {0};
    std::vector<std::int32_t> by_sequences = {0};
    for (std::size_t s = 1; s < 20; ++s) {  // the last of the 21 tokens is a label alone
      const bool begins = sample[s] != 256 && (sample[s] - 1000) % 7 == 0;
      const bool behind_end = sample[s - 1] == 256;
      if (begins) by_sequences.push_back(static_cast<std::int32_t>(s));
      if (begins || behind_end) by_bytes.push_back(static_cast<std::int32_t>(s));
      within += behind_end && !begins ? 1 : 0;
    }
    CHECK(StartsOf(none, index) == by_sequences);
    CHECK(StartsOf(bytes, index) == by_bytes);
    CHECK(StartsOf(across, index) == std::vector<std::int32_t>{0});
  }
  CHECK(within > 16);
  // GPT-2's end is in its vocabulary's file.
  recipe.data.tokenizer.kind = "gpt2";
  recipe.data.tokenizer.vocab_file = dir / "vocab.json";
  recipe.data.tokenizer.merges_file = dir / "merges.txt";
  const std::string error = OpenError(recipe);
  CHECK(error.find("data.tokenizer.kind: ") != std::string::npos);
  CHECK(error.find("vocab.json") != std::string::npos);
  CHECK(error.find("hint: data.documents = \"masked\" asks it for its end-of-document token") !=
        std::string::npos);
  // A resumed run tells by it that another token divides the samples.
  CHECK(bytes.Fingerprint().at("end-of-document token") == "256");
  CHECK(none.Fingerprint().count("end-of-document token") == 0);
  CHECK(across.Fingerprint().count("end-of-document token") == 0);
  // An end that the model has no token for would never come.
  recipe.data.tokenizer.kind = "byte";
  recipe.model.vocab = 256;
  const std::string beyond = OpenError(recipe);
  CHECK(beyond.find("its end-of-document token is 256, and the model's vocabulary has 256 tokens") !=
        std::string::npos);
  recipe.model.vocab = 257;
  CHECK(OpenError(recipe).find("its end-of-document token") == std::string::npos);
  // Random tokens, of which some are 256, need no tokenizer.
  recipe.data.source = recipe::kRandomSource;
  const Source random = OpenSource(recipe);
  for (std::int64_t index = 0; index < 16; ++index)
    CHECK(StartsOf(random, index) == std::vector<std::int32_t>{0});
}

}  // namespace engine::data
