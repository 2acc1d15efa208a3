#include "engine/data/gpt_index.h"

#include <doctest/doctest.h>

#include "engine/base/status.h"
#include "tests/data/oracle.h"

namespace engine::data {
namespace {

using Rows = std::vector<SampleStart>;

GptIndex Build(const std::vector<std::int32_t>& lengths, const GptIndexOptions& options) {
  absl::StatusOr<GptIndex> index = BuildGptIndex(lengths, options);
  REQUIRE_MESSAGE(index.ok(), Message(index.status()));
  return *std::move(index);
}

GptIndex Known(std::int64_t num_samples) {
  return Build({5, 3, 7, 4, 6},
               {.range = {0, 5}, .sequence_length = 4, .num_samples = num_samples, .seed = 1234});
}

}  // namespace

TEST_CASE("a number of epochs is shuffled as one, as the oracle does it") {
  CHECK(Oracle().at("epochs").size() == 4);
  for (const nlohmann::json& oracle_case : Oracle().at("epochs")) {
    CAPTURE(oracle_case.dump());
    const GptIndex index = Build(oracle_case["lengths"], {.range = {oracle_case["begin"], oracle_case["end"]},
                                                          .sequence_length = oracle_case["sequence_length"],
                                                          .num_samples = std::nullopt,
                                                          .epochs = oracle_case["asked"],
                                                          .seed = oracle_case["seed"]});
    CHECK(index.epochs == oracle_case["asked"].get<std::int64_t>());
    CHECK_FALSE(index.separate_last_epoch);
    CHECK(index.documents == oracle_case["documents"].get<std::vector<std::int32_t>>());
    CHECK(index.shuffle == oracle_case["shuffle"].get<std::vector<std::uint32_t>>());
    Rows starts;
    for (const nlohmann::json& row : oracle_case["starts"]) starts.push_back({row[0], row[1]});
    CHECK(index.starts == starts);
  }
}

TEST_CASE("one epoch: the known indices") {
  const GptIndex index = Known(6);
  CHECK(index.epochs == 1);
  CHECK(index.documents == std::vector<std::int32_t>{4, 0, 1, 2, 3});
  CHECK(index.starts == Rows{{0, 0}, {0, 4}, {1, 2}, {2, 1}, {3, 2}, {3, 6}, {4, 3}});
  CHECK(index.shuffle == std::vector<std::uint32_t>{5, 2, 3, 1, 0, 4});
}

TEST_CASE("two epochs, the last shuffled by itself: the known indices") {
  const GptIndex index = Known(9);
  CHECK(index.epochs == 2);
  CHECK(index.separate_last_epoch);
  CHECK(index.documents == std::vector<std::int32_t>{4, 0, 1, 2, 3, 3, 2, 1, 0, 4});
  CHECK(index.starts == Rows{{0, 0},
                             {0, 4},
                             {1, 2},
                             {2, 1},
                             {3, 2},
                             {3, 6},
                             {4, 3},
                             {5, 3},
                             {6, 3},
                             {7, 0},
                             {8, 1},
                             {9, 0},
                             {9, 4}});
  CHECK(index.shuffle == std::vector<std::uint32_t>{0, 4, 3, 2, 5, 1, 7, 6, 9, 8, 11, 10});
}

TEST_CASE("three epochs, shuffled together: the known indices") {
  const GptIndex index = Known(16);
  CHECK(index.epochs == 3);
  CHECK_FALSE(index.separate_last_epoch);
  CHECK(index.documents == std::vector<std::int32_t>{3, 1, 0, 2, 4, 2, 0, 2, 1, 4, 3, 4, 0, 1, 3});
  CHECK(index.starts == Rows{{0, 0},
                             {1, 0},
                             {2, 1},
                             {3, 0},
                             {3, 4},
                             {4, 1},
                             {4, 5},
                             {5, 3},
                             {6, 0},
                             {6, 4},
                             {7, 3},
                             {8, 0},
                             {9, 1},
                             {9, 5},
                             {10, 3},
                             {11, 3},
                             {12, 1},
                             {13, 0},
                             {14, 1}});
  CHECK(index.shuffle ==
        std::vector<std::uint32_t>{7, 10, 4, 1, 11, 8, 3, 14, 13, 12, 17, 15, 2, 6, 9, 0, 5, 16});
}

TEST_CASE("random cases, with empty sequences, are numpy's") {
  for (const nlohmann::json& oracle_case : Oracle().at("gpt")) {
    CAPTURE(oracle_case.dump());
    GptIndexOptions options;
    options.range = {oracle_case["begin"], oracle_case["end"]};
    options.sequence_length = oracle_case["sequence_length"];
    if (!oracle_case["num_samples"].is_null()) {
      options.num_samples = oracle_case["num_samples"].get<std::int64_t>();
    }
    options.seed = oracle_case["seed"];
    const GptIndex index = Build(oracle_case["lengths"], options);
    CHECK(index.epochs == oracle_case["epochs"].get<std::int64_t>());
    CHECK(index.separate_last_epoch == oracle_case["separate"].get<bool>());
    CHECK(index.documents == oracle_case["documents"].get<std::vector<std::int32_t>>());
    CHECK(index.shuffle == oracle_case["shuffle"].get<std::vector<std::uint32_t>>());
    CHECK(index.starts.size() == oracle_case["starts"].size());
    for (std::size_t i = 0; i < index.starts.size(); ++i) {
      CHECK(index.starts[i].position == oracle_case["starts"][i][0].get<std::uint32_t>());
      CHECK(index.starts[i].offset == oracle_case["starts"][i][1].get<std::int32_t>());
    }
  }
}

TEST_CASE("what cannot be indexed says why") {
  const std::vector<std::int32_t> lengths = {3, 0, 2};
  const auto message = [&](const GptIndexOptions& options) {
    return Message(BuildGptIndex(lengths, options).status());
  };
  CHECK(
      message({.range = {0, 3}, .sequence_length = 5, .num_samples = 1}) ==
      "5 tokens in 3 sequences are too few: one sample of sequence length 5 needs 6; use more text, another "
      "split or a shorter sequence");
  CHECK(message({.range = {1, 2}, .sequence_length = 1}).starts_with("0 tokens in 1 sequences are too few"));
  CHECK(message({.range = {2, 2}, .sequence_length = 1}).starts_with("0 tokens in 0 sequences are too few"));
  CHECK(message({.range = {0, 3}, .sequence_length = 0}).starts_with("sequence length is 0"));
  CHECK(message({.range = {0, 3}, .sequence_length = 2, .num_samples = std::int64_t{1} << 60})
            .starts_with("1,152,921,504,606,846,976 samples asked for"));
  CHECK(message({.range = {0, 3}, .sequence_length = 4, .num_samples = 4'000'000'000})
            .find("do not fit an index") != std::string::npos);
}

}  // namespace engine::data
