#include "engine/plan/arena.h"

#include <doctest/doctest.h>

#include <map>
#include <vector>

namespace engine::plan {

TEST_CASE("ranges: best fit, lowest first, joined when given back") {
  RangeAllocator ranges;
  CHECK(ranges.Allocate(400) == 0);  // 512
  CHECK(ranges.Allocate(256) == 512);
  CHECK(ranges.Allocate(1024) == 768);
  CHECK(ranges.Allocate(1) == 1792);
  CHECK(ranges.peak() == 2048);
  ranges.Free(0);
  ranges.Free(768);
  CHECK(ranges.Allocate(512) == 0);  // the smaller of both holes
  CHECK(ranges.Allocate(768) == 768);
  CHECK(ranges.Allocate(256) == 1536);
  ranges.Free(0);
  ranges.Free(512);
  CHECK(ranges.Allocate(768) == 0);
  CHECK(ranges.peak() == 2048);
}

TEST_CASE("ranges: what is held never overlaps, and a free tail grows") {
  RangeAllocator ranges;
  std::map<std::int64_t, std::int64_t> held;
  std::uint32_t draw = 7;
  for (int step = 0; step < 3000; ++step) {
    draw = draw * 1664525U + 1013904223U;
    if ((draw >> 30) != 0 || held.empty()) {
      const std::int64_t bytes = 1 + (draw >> 8) % 1000;
      const std::int64_t at = ranges.Allocate(bytes);
      CHECK(at % kAlignment == 0);
      const auto after = held.lower_bound(at);
      if (after != held.end()) CHECK(at + bytes <= after->first);
      if (after != held.begin()) CHECK(std::prev(after)->first + std::prev(after)->second <= at);
      held[at] = bytes;
    }
    if ((draw >> 29) % 3 == 0) {
      auto it = held.begin();
      std::advance(it, (draw >> 4) % held.size());
      ranges.Free(it->first);
      held.erase(it);
    }
  }
  for (const auto& [at, bytes] : held) ranges.Free(at);
  const std::int64_t peak = ranges.peak();
  CHECK(ranges.Allocate(peak) == 0);
  CHECK(ranges.Allocate(64) == peak);
  ranges.Free(peak);
  CHECK(ranges.Allocate(640) == peak);
}

}  // namespace engine::plan
