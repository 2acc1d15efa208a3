#include "engine/data/tokenizer/merge_table.h"

#include <doctest/doctest.h>

#include <map>
#include <random>
#include <utility>

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

TEST_CASE("a table of merges has what a map has, and so has a table that its merges are put into") {
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
    MergeTable other;
    other.Reserve(table.size());
    table.ForEach([&other](const Merge& merge) { CHECK(other.Put(merge)); });
    CheckIsMap(other, wanted);
    const MergeTable copy = table;
    CheckIsMap(std::move(table), wanted);
    CheckIsMap(copy, wanted);
  }
}

}  // namespace engine::tokenizer
