#include "engine/checkpoint/layout.h"

#include <doctest/doctest.h>
#include <unistd.h>

namespace engine::checkpoint {
namespace {

TEST_CASE("names and back") {
  CHECK(IterationName(100) == "iteration_0000100");
  CHECK(ParseIterationName("iteration_0000100") == 100);
  CHECK(ParseIterationName(IterationName(123456789)) == 123456789);
  for (const char* bad : {"iteration_100", "iteration_0000100x", "iteration_-000100", "iteration_",
                          "iter_0000100", "iteration_99999999999999999999", " iteration_0000100"}) {
    CHECK_FALSE(ParseIterationName(bad));
  }
  CHECK(ShardName(3) == "rank_00003.h5");
  CHECK(ShardName(999) == "rank_00999.h5");
  CHECK(ShardName(123456) == "ranks_123/rank_123456.h5");
  for (int rank : {0, 3, 999, 1000, 1999, 100000, kMostRanks - 1})
    CHECK(RankOfShardName(ShardName(rank)) == rank);
  for (const char* bad : {"rank_3.h5", "../rank_00003.h5", "rank_00003.h5/..", "rank_00003", "index.h5",
                          "rank_01000.h5", "ranks_001/rank_00999.h5", "ranks_002/rank_01000.h5",
                          "/rank_00003.h5", "ranks_001/../rank_01000.h5", ""}) {
    CHECK_FALSE(RankOfShardName(bad));
  }
  CHECK(DatasetName("adam.m/w", {{0, 128}, {1, 1}}) == "adam.m/w@0,128");
  CHECK(JoinPath("a", "b") == "a/b");
  CHECK(JoinPath("a/", "b") == "a/b");
}

TEST_CASE("leftovers of any process are known") {
  const std::string path = WritingPath("root", 5);
  CHECK(path == "root/.writing-iteration_0000005-" + std::to_string(getpid()));
  CHECK(ParseLeftoverName(path.substr(5))->kind == LeftoverKind::kWriting);
  CHECK(ParseLeftoverName(ReplacedPath("root", 5).substr(5))->kind == LeftoverKind::kReplaced);
  CHECK(ParseLeftoverName(DeletingPath("root", 5).substr(5))->kind == LeftoverKind::kDeleting);
  CHECK(ParseLeftoverName(".writing-iteration_0000005-17")->iteration == 5);
  for (const char* bad : {"iteration_0000005", ".writing-iteration_5-17", ".writing-iteration_0000005",
                          ".writing-", ".writing-iteration_0000005-", ".git"}) {
    CHECK_FALSE(ParseLeftoverName(bad));
  }
}

}  // namespace
}  // namespace engine::checkpoint
