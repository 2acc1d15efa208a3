#include "engine/data/random_tokens.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <vector>

#include "engine/base/status.h"
#include "engine/data/source.h"

namespace engine::data {
namespace {

std::vector<std::int32_t> Drawn(std::uint64_t seed, Split split, std::int64_t index, std::int64_t vocab,
                                std::size_t count) {
  std::vector<std::int32_t> tokens(count);
  RandomSample(seed, split, index, vocab, tokens);
  return tokens;
}

recipe::Recipe RandomRecipe() {
  recipe::Recipe recipe;
  recipe.model.vocab = 50;
  recipe.data.source = "random";
  recipe.data.sequence_length = 8;
  recipe.training.global_batch = 2;
  recipe.training.iterations = 3;
  recipe.evaluation.interval = 2;
  recipe.evaluation.iterations = 1;
  return recipe;
}

}  // namespace

TEST_CASE("random tokens: seed, split and sample each change all of a sample") {
  const std::vector<std::int32_t> one = Drawn(7, Split::kTrain, 3, 1 << 20, 101);
  CHECK(Drawn(7, Split::kTrain, 3, 1 << 20, 101) == one);
  for (const std::vector<std::int32_t>& other :
       {Drawn(8, Split::kTrain, 3, 1 << 20, 101), Drawn(7, Split::kValid, 3, 1 << 20, 101),
        Drawn(7, Split::kTest, 3, 1 << 20, 101), Drawn(7, Split::kTrain, 4, 1 << 20, 101)}) {
    int equal = 0;
    for (std::size_t i = 0; i < one.size(); ++i) equal += one[i] == other[i] ? 1 : 0;
    CHECK(equal <= 1);
  }
}

TEST_CASE("random tokens: uniform over the vocabulary, in every place of a sample") {
  constexpr std::int64_t kVocab = 11;
  constexpr std::int64_t kSamples = 2000;
  constexpr std::size_t kLength = 5;
  std::vector<std::vector<double>> counts(kLength, std::vector<double>(kVocab));
  for (std::int64_t sample = 0; sample < kSamples; ++sample) {
    const std::vector<std::int32_t> tokens = Drawn(1, Split::kTrain, sample, kVocab, kLength);
    for (std::size_t i = 0; i < kLength; ++i) {
      REQUIRE((tokens[i] >= 0 && tokens[i] < kVocab));
      ++counts[i][static_cast<std::size_t>(tokens[i])];
    }
  }
  for (const std::vector<double>& of_place : counts) {
    double chi_squared = 0;
    const double expected = static_cast<double>(kSamples) / kVocab;
    for (const double count : of_place) chi_squared += (count - expected) * (count - expected) / expected;
    CHECK(chi_squared < 35.6);  // 10 degrees of freedom: 1 in 10,000 is above
  }
  // 32 bits of randomness would not do: of 2^32 numbers 8/3 would fall on each token of 3·2^29, 3 on two of
  // every three and 2 on the third.
  constexpr std::int64_t kLarge = std::int64_t{3} << 29;
  std::array<int, 3> residues{};
  for (const std::int32_t token : Drawn(1, Split::kTrain, 0, kLarge, 10000))
    ++residues[static_cast<std::size_t>(token % 3)];
  for (const int count : residues) CHECK(std::abs(count - 3333) < 4 * 47);  // four standard deviations
}

TEST_CASE("random source: no files; sizes of the recipe; samples whatever the run's length and batch") {
  const absl::StatusOr<Source> source = Source::Open(RandomRecipe());
  REQUIRE_MESSAGE(source.ok(), Message(source.status()));
  CHECK(source->size(Split::kTrain) == 6);
  CHECK(source->size(Split::kValid) == 4);
  CHECK(source->size(Split::kTest) == 2);
  CHECK(*source->UnigramEntropy() == doctest::Approx(std::log(50.0)).epsilon(1e-15));
  CHECK(source->Summary() ==
        "random tokens of [0, 50): no data set; the loss stays at ln 50 = 3.9120\n"
        "train: 6 samples of 8 + 1 tokens\nvalidation: 4 samples of 8 + 1 tokens\n"
        "test: 2 samples of 8 + 1 tokens\n");
  recipe::Recipe longer = RandomRecipe();
  longer.training.global_batch = 5;
  longer.training.iterations = 1000;
  longer.data.paths = {"/nowhere"};  // not used, so not opened
  longer.data.weights = {1, 2, 3};
  const absl::StatusOr<Source> other = Source::Open(longer);
  REQUIRE_MESSAGE(other.ok(), Message(other.status()));
  std::vector<std::int32_t> a(9);
  std::vector<std::int32_t> b(9);
  for (const Split split : kSplits) {
    for (std::int64_t i = 0; i < source->size(split); ++i) {
      REQUIRE(source->Sample(split, i, a).ok());
      REQUIRE(other->Sample(split, i, b).ok());
      CHECK(a == b);
    }
  }
  CHECK(absl::IsOutOfRange(source->Sample(Split::kTrain, 6, a)));
  std::vector<std::int32_t> short_one(8);
  CHECK(!source->Sample(Split::kTrain, 0, short_one).ok());
}

}  // namespace engine::data
