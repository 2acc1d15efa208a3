#include "engine/view/time_split.h"

#include <doctest/doctest.h>

#include <vector>

namespace engine::view {

TEST_CASE("time split: events, a gap that is short, and one that is an interruption") {
  TimeSplit time;
  time.AddIteration(1, 1001, 1, 0.25, true);  // from 1000 on
  time.AddIteration(2, 1002.5, 1, 0, true);   // half a second of something else
  time.AddEvaluation(1004.5, 2);
  time.AddCheckpoint(1007.5, 3);
  time.AddIteration(2, 1068.5, 1, 0, false);  // after a minute; ran again, without an update
  CHECK(time.wall_s() == 68.5);
  CHECK(time.training_s() == 1.75);
  CHECK(time.data_wait_s() == 0.25);
  CHECK(time.evaluation_s() == 2);
  CHECK(time.saving_s() == 3);
  CHECK(time.skipped_s() == 1);
  CHECK(time.interrupted_s() == 60);
  CHECK(time.other_s() == 0.5);
  CHECK(time.goodput() == doctest::Approx(1.75 / 68.5));
  REQUIRE(time.interruptions() == 1);
  CHECK(time.listed()[0].after_iteration == 2);
  CHECK(time.listed()[0].began_unix_s == 1007.5);
  CHECK(time.listed()[0].seconds == 60);
}

TEST_CASE("time split: slow iterations make longer gaps ordinary") {
  TimeSplit time;
  time.AddIteration(1, 1100, 100, 0, true);
  time.AddIteration(2, 1490, 100, 0, true);  // 290 s beside, less than three iterations
  CHECK(time.interruptions() == 0);
  CHECK(time.other_s() == 290);
  time.AddIteration(3, 1900, 100, 0, true);  // 310 s
  CHECK(time.interruptions() == 1);
}

TEST_CASE("time split: records that are written late neither lose nor make time") {
  TimeSplit time;
  time.AddIteration(1, 1001, 1, 0, true);
  time.AddIteration(2, 1002.4, 1, 0, true);
  time.AddIteration(3, 1003.0, 1, 0, true);
  CHECK(time.wall_s() == doctest::Approx(3));
  CHECK(time.other_s() == doctest::Approx(0));
}

TEST_CASE("time split: deleted checkpoints are time of saving, whenever it was") {
  TimeSplit time;
  time.AddIteration(1, 1001, 1, 0, true);
  time.AddCheckpoint(1003, 2);
  time.AddIteration(2, 1006, 1, 0, true);  // old checkpoints were deleted for 2 s before it
  CHECK(time.other_s() == 2);
  time.AddCheckpoint(1008, 4);
  CHECK(time.other_s() == 0);
  CHECK(time.saving_s() == 6);
  CHECK(time.wall_s() == 8);
  // A save beside training stops it for a moment only.
  time.AddCheckpoint(1008.5, 0.5);
  CHECK(time.saving_s() == 6.5);
  CHECK(time.wall_s() == 8.5);
}

TEST_CASE("time split: a long stall is no interruption once the checkpoint's record tells of it") {
  TimeSplit time;
  time.AddIteration(1, 1001, 1, 0, true);
  time.AddIteration(2, 1042, 1, 0, true);  // a checkpoint waited for the one before
  CHECK(time.interruptions() == 1);
  time.AddIteration(3, 1043, 1, 0, true);
  time.AddCheckpoint(1043, 39);
  CHECK(time.interruptions() == 0);
  CHECK(time.listed().empty());
  CHECK(time.saving_s() == 39);
  CHECK(time.other_s() == 1);
  CHECK(time.wall_s() == 43);
  time.AddIteration(4, 1144, 1, 0, true);
  time.AddCheckpoint(1144, 2);  // tells of too little for that
  CHECK(time.interruptions() == 1);
  CHECK(time.interrupted_s() == 100);
}

TEST_CASE("time split: a resume that is told of is an interruption, which no checkpoint explains away") {
  TimeSplit time;
  time.AddIteration(1, 1001, 1, 0, true);
  time.Resume();
  time.AddIteration(2, 1005, 1, 0, true);  // 3 s between them
  time.AddIteration(3, 1009, 1, 0, true);  // as long, and nothing is told of
  CHECK(time.interruptions() == 1);
  CHECK(time.interrupted_s() == 3);
  CHECK(time.other_s() == 3);
  REQUIRE(time.listed().size() == 1);
  CHECK(time.listed()[0].resumed);
  time.AddCheckpoint(1010, 4);
  CHECK(time.interruptions() == 1);
  CHECK(time.interrupted_s() == 3);
  CHECK(time.other_s() == 0);
  CHECK(time.saving_s() == 4);
}

TEST_CASE("time split: records without times count by themselves") {
  TimeSplit time;
  CHECK(time.goodput() == 0);
  time.AddIteration(1, 0, 3, 0, true);
  time.AddCheckpoint(0, 1);
  CHECK(time.wall_s() == 4);
  CHECK(time.goodput() == 0.75);
  CHECK(!time.has_times());
}

TEST_CASE("time split: of many interruptions the longest are listed, all are counted") {
  TimeSplit time;
  double now = 1000;
  for (int i = 1; i <= 200; ++i) {
    now += 1 + 10 + i;
    time.AddIteration(i, now, 1, 0, true);
  }
  CHECK(time.interruptions() == 199);
  REQUIRE(time.listed().size() == TimeSplit::kMostListed);
  CHECK(time.listed().front().seconds == 210 - 63);
  CHECK(time.listed().back().seconds == 210);
}

}  // namespace engine::view
