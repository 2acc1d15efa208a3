// How long a rank may stand still, by what it is at.
#include "engine/launch/work.h"

#include <doctest/doctest.h>

namespace engine::launch {
namespace {

using Duration = WorkLimits::Duration;
using std::chrono::minutes;
using std::chrono::seconds;

// Units of work, one after another.
void Do(WorkLimits& limits, Work work, int units, Duration each, Clock::time_point* now) {
  for (int i = 0; i < units; ++i) {
    limits.Begin(work, *now);
    *now += each;
  }
  limits.Begin(Work::kData, *now);  // ends the last
}

std::optional<Duration> LimitAt(WorkLimits& limits, Work work, Clock::time_point now) {
  limits.Begin(work, now);
  return limits.Limit();
}

}  // namespace

TEST_CASE("work: the limit of an iteration is learned from ten, and is never below five seconds") {
  WorkLimits limits(std::nullopt);
  Clock::time_point now;
  CHECK(LimitAt(limits, Work::kAlone, now) == std::nullopt);
  Do(limits, Work::kIteration, 9, seconds(4), &now);
  CHECK(LimitAt(limits, Work::kIteration, now) == minutes(10));
  now += seconds(4);
  CHECK(LimitAt(limits, Work::kIteration, now) == seconds(12));  // the tenth has ended
  WorkLimits fast(std::nullopt);
  Do(fast, Work::kIteration, 30, Duration(20), &now);
  CHECK(LimitAt(fast, Work::kIteration, now) == seconds(5));
}

TEST_CASE("work: the median forgets, and neither one long unit nor other work moves it") {
  WorkLimits limits(std::nullopt);
  Clock::time_point now;
  Do(limits, Work::kIteration, static_cast<int>(WorkLimits::kKept), seconds(4), &now);
  Do(limits, Work::kIteration, 1, seconds(400), &now);
  Do(limits, Work::kEvaluation, 40, seconds(100), &now);
  CHECK(LimitAt(limits, Work::kIteration, now) == seconds(12));
  CHECK(LimitAt(limits, Work::kEvaluation, now) == seconds(300));
  Do(limits, Work::kIteration, static_cast<int>(WorkLimits::kKept), seconds(9), &now);
  CHECK(LimitAt(limits, Work::kIteration, now) == seconds(27));
}

TEST_CASE("work: where a file system or a network is waited for, minutes are given") {
  WorkLimits limits(std::nullopt);
  Clock::time_point now;
  Do(limits, Work::kData, 20, Duration(1), &now);
  CHECK(LimitAt(limits, Work::kData, now) == minutes(10));
  CHECK(LimitAt(limits, Work::kConnecting, now) == minutes(30));
  CHECK(LimitAt(limits, Work::kSaving, now) == minutes(60));
  Do(limits, Work::kSaving, 10, Duration(1), &now);
  CHECK(LimitAt(limits, Work::kSaving, now) == minutes(10));
  Do(limits, Work::kSaving, 64, minutes(5), &now);
  CHECK(LimitAt(limits, Work::kSaving, now) == minutes(15));
}

TEST_CASE("work: what comes between a unit has its own limit, and the unit goes on behind it") {
  WorkLimits limits(std::nullopt);
  Clock::time_point now;
  Do(limits, Work::kIteration, 9, seconds(4), &now);
  limits.Begin(Work::kIteration, now);
  limits.Suspend(Work::kFiles);
  CHECK(limits.work() == Work::kFiles);
  CHECK(limits.Limit() == minutes(10));
  limits.Resume();
  CHECK(limits.work() == Work::kIteration);
  CHECK(LimitAt(limits, Work::kIteration, now + seconds(4)) == seconds(12));  // it was one unit, the tenth
}

TEST_CASE("work: a fixed limit is of all work but a rank's own and saving") {
  WorkLimits limits(seconds(7));
  Clock::time_point now;
  Do(limits, Work::kIteration, 20, seconds(100), &now);
  for (const Work work : {Work::kIteration, Work::kEvaluation, Work::kData, Work::kFiles, Work::kConnecting})
    CHECK(LimitAt(limits, work, now) == seconds(7));
  for (const Work work : {Work::kAlone, Work::kSaving}) CHECK(LimitAt(limits, work, now) == std::nullopt);
  WorkLimits never(seconds(0));
  CHECK(LimitAt(never, Work::kIteration, now) == std::nullopt);
}

}  // namespace engine::launch
