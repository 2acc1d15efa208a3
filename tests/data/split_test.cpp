#include "engine/data/split.h"

#include <doctest/doctest.h>

#include "tests/data/oracle.h"

namespace engine::data {

TEST_CASE("949,50,1 of 10000 sequences") {
  const std::array<SequenceRange, 3> ranges = SplitRanges(SplitBookEnds({949, 50, 1}), 10000);
  CHECK(ranges[0].begin == 0);
  CHECK(ranges[0].end == 9490);
  CHECK(ranges[1].end == 9990);
  CHECK(ranges[2].end == 10000);
}

TEST_CASE("ranges are Python's, which rounds half to even") {
  for (const nlohmann::json& oracle_case : Oracle().at("splits")) {
    const auto shares = oracle_case["shares"].get<std::array<double, 3>>();
    const std::int64_t sequences = oracle_case["sequences"];
    CAPTURE(oracle_case.dump());
    const std::array<SequenceRange, 3> ranges = SplitRanges(SplitBookEnds(shares), sequences);
    for (std::size_t i = 0; i < ranges.size(); ++i) {
      CHECK(ranges[i].begin == oracle_case["ranges"][i][0].get<std::int64_t>());
      CHECK(ranges[i].end == oracle_case["ranges"][i][1].get<std::int64_t>());
    }
  }
}

}  // namespace engine::data
