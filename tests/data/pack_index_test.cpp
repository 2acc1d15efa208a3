#include "engine/data/pack_index.h"

#include <doctest/doctest.h>

#include <set>

#include "engine/base/philox.h"
#include "engine/base/status.h"
#include "tests/data/oracle.h"

namespace engine::data {
namespace {

PackIndex Pack(const std::vector<std::int32_t>& lengths, const PackIndexOptions& options) {
  absl::StatusOr<PackIndex> index = BuildPackIndex(lengths, options);
  REQUIRE_MESSAGE(index.ok(), Message(index.status()));
  return *std::move(index);
}

}  // namespace

TEST_CASE("packs are the oracle's, which looks at every pack for every piece") {
  CHECK(Oracle().at("packed").size() == 9);
  for (const nlohmann::json& oracle_case : Oracle().at("packed")) {
    CAPTURE(oracle_case["sequence_length"].get<int>());
    const PackIndex index =
        Pack(oracle_case["lengths"], {.range = {oracle_case["begin"], oracle_case["end"]},
                                      .sequence_length = oracle_case["sequence_length"],
                                      .drops_long = oracle_case["drops_long"],
                                      .num_samples = oracle_case["num_samples"].get<std::int64_t>(),
                                      .seed = oracle_case["seed"]});
    CHECK(index.epochs == oracle_case["epochs"].get<std::int64_t>());
    CHECK(index.facts.cut == oracle_case["cut"].get<std::int64_t>());
    CHECK(index.facts.dropped == oracle_case["dropped"].get<std::int64_t>());
    CHECK(index.shuffle == oracle_case["shuffle"].get<std::vector<std::uint32_t>>());
    std::vector<std::vector<PackedPiece>> packs;
    for (std::size_t p = 0; p + 1 < index.packs.size(); ++p)
      packs.emplace_back(index.pieces.begin() + index.packs[p], index.pieces.begin() + index.packs[p + 1]);
    std::vector<std::vector<PackedPiece>> expected;
    for (const nlohmann::json& pack : oracle_case["packs"]) {
      expected.emplace_back();
      for (const nlohmann::json& piece : pack) expected.back().push_back({piece[0], piece[1], piece[2]});
    }
    CHECK(packs == expected);
  }
}

// Lengths around the words of the set of rooms, 64 and 4096.
TEST_CASE("each token is predicted once, and no pack has more than its room") {
  for (const std::int64_t sequence_length : {63, 64, 4095, 4096, 8191}) {
    CAPTURE(sequence_length);
    const PhiloxKey key = MakePhiloxKey(3, "lengths");
    std::vector<std::int32_t> lengths(3000);
    for (std::size_t i = 0; i < lengths.size(); ++i)
      lengths[i] = static_cast<std::int32_t>(PhiloxWord(key, i) % (3 * sequence_length));
    const PackIndex index = Pack(lengths, {.range = {10, 2990}, .sequence_length = sequence_length});
    std::vector<std::vector<int>> predicted(lengths.size());
    for (std::size_t i = 0; i < lengths.size(); ++i)
      predicted[i].resize(static_cast<std::size_t>(lengths[i]));
    std::int64_t half_empty = 0;
    for (std::size_t p = 0; p + 1 < index.packs.size(); ++p) {
      std::int64_t tokens = 0;
      for (std::uint32_t i = index.packs[p]; i < index.packs[p + 1]; ++i) {
        const PackedPiece& piece = index.pieces[i];
        tokens += piece.tokens;
        for (std::int32_t t = 1; t < piece.tokens; ++t)
          ++predicted[static_cast<std::size_t>(piece.sequence)][static_cast<std::size_t>(piece.offset + t)];
      }
      CHECK(tokens <= sequence_length + 1);
      half_empty += 2 * tokens <= sequence_length + 1 ? 1 : 0;
    }
    CHECK(half_empty <= 1);  // else two of them would be one
    int wrong = 0;
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      const bool inside = i >= 10 && i < 2990;
      for (std::size_t t = 0; t < predicted[i].size(); ++t)
        wrong += predicted[i][t] == (inside && t > 0 ? 1 : 0) ? 0 : 1;
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("every epoch has all packs, in an order of its own") {
  const PackIndex index =
      Pack(std::vector<std::int32_t>(50, 7),
           {.range = {0, 50}, .sequence_length = 13, .num_samples = std::nullopt, .epochs = 3});
  REQUIRE(index.packs.size() == 26);
  REQUIRE(index.shuffle.size() == 75);
  std::set<std::vector<std::uint32_t>> orders;
  for (int epoch = 0; epoch < 3; ++epoch) {
    const auto begin = index.shuffle.begin() + 25 * epoch;
    orders.emplace(begin, begin + 25);
    CHECK(std::set<std::uint32_t>(begin, begin + 25).size() == 25);
  }
  CHECK(orders.size() == 3);
}

TEST_CASE("what cannot be packed is an error that says what can") {
  const auto error = [](const std::vector<std::int32_t>& lengths, const PackIndexOptions& options) {
    return Message(BuildPackIndex(lengths, options).status());
  };
  CHECK(error({1, 0, 1}, {.range = {0, 3}, .sequence_length = 4})
            .starts_with("none of 3 sequences can be packed: all have less than 2 tokens; use more text"));
  CHECK(
      error({9, 9}, {.range = {0, 2}, .sequence_length = 4, .drops_long = true}) ==
      "none of 2 sequences can be packed: all have less than 2 or more than 5 tokens; use more text, another "
      "split, a longer sequence, or data.long_documents = \"cut\"");
  CHECK(error({9}, {.range = {0, 1}, .sequence_length = 0}).starts_with("sequence length is 0"));
  CHECK(error({9}, {.range = {0, 1}, .sequence_length = 4, .num_samples = std::int64_t{1} << 40})
            .starts_with("1,099,511,627,776 samples asked for"));
}

}  // namespace engine::data
