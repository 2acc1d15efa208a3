#include "engine/data/tokenizer/merge_table.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>
#include <utility>
#include <vector>

namespace engine::tokenizer {
namespace {

using MergeMap = std::map<std::pair<std::int32_t, std::int32_t>, std::pair<std::int32_t, std::int32_t>>;

void CheckIsMap(const MergeTable& table, const MergeMap& wanted) {
  CHECK(table.size() == wanted.size());
  for (const auto& [pair, value] : wanted) {
    const MergeTable::Found found = table.Find(pair.first, pair.second);
    REQUIRE(std::pair(found.rank, found.product) == value);
  }
  MergeMap seen;
  table.ForEach([&seen](const Merge& merge) {
    REQUIRE(seen.emplace(std::pair(merge.left, merge.right), std::pair(merge.rank, merge.product)).second);
  });
  CHECK(seen == wanted);
}

}  // namespace

TEST_CASE("a table of merges has what a map has") {
  for (const std::size_t reserved : {0, 1, 50, 5000}) {
    CAPTURE(reserved);
    std::mt19937 random(1);
    MergeTable table;
    CHECK(table.empty());
    table.Reserve(reserved);
    MergeMap wanted;
    for (int i = 0; i < 3000; ++i) {
      const Merge merge = {static_cast<std::int32_t>(random() % 70), static_cast<std::int32_t>(random() % 70),
                           static_cast<std::int32_t>(random() % 1000), i};
      const bool is_new =
          wanted.insert_or_assign({merge.left, merge.right}, std::pair(merge.rank, merge.product)).second;
      REQUIRE(table.Put(merge) == is_new);
    }
    for (std::int32_t left = 0; left < 75; ++left)
      for (std::int32_t right = 0; right < 75; ++right)
        REQUIRE((table.Find(left, right).rank == kNoRank) == !wanted.contains({left, right}));
    CheckIsMap(table, wanted);
    const MergeTable copy = table;
    CheckIsMap(std::move(table), wanted);
    CheckIsMap(copy, wanted);
  }
}

TEST_CASE("a table is filled with another's merges, in the order of their slots or in any other") {
  // Of small tables some have a merge in the first slot whose home is the last one.
  for (unsigned seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    MergeTable table;
    MergeMap wanted;
    for (int i = 0; i < 40; ++i) {
      const Merge merge = {static_cast<std::int32_t>(random() % 9), static_cast<std::int32_t>(random() % 9),
                           i, i};
      wanted[{merge.left, merge.right}] = {merge.rank, merge.product};
      table.Put(merge);
    }
    std::vector<Merge> merges;
    table.ForEach([&merges](const Merge& merge) { merges.push_back(merge); });
    MergeTable same;
    same.Fill(merges);
    CheckIsMap(same, wanted);
    MergeTable larger;  // in which they have other slots
    larger.Reserve(500);
    larger.Fill(merges);
    CheckIsMap(larger, wanted);
    std::shuffle(merges.begin(), merges.end(), random);
    MergeTable shuffled;
    shuffled.Fill(merges);
    CheckIsMap(shuffled, wanted);
  }
}

}  // namespace engine::tokenizer
