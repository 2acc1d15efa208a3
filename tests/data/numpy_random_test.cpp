#include "engine/data/numpy_random.h"

#include <doctest/doctest.h>

#include <numeric>
#include <vector>

#include "tests/data/oracle.h"

namespace engine::data {
namespace {

std::vector<int> ShuffledRange(int size, NumpyRandom* random) {
  std::vector<int> values(static_cast<std::size_t>(size));
  std::iota(values.begin(), values.end(), 0);
  random->Shuffle(std::span(values));
  return values;
}

}  // namespace

TEST_CASE("the raw draws are RandomState(1234)'s") {
  NumpyRandom random(1234);
  for (std::uint32_t expected : {822569775U, 2137449171U, 2671936806U, 3512589365U}) {
    CHECK(random.Next32() == expected);
  }
}

TEST_CASE("shuffle(arange(10)) of known seeds") {
  NumpyRandom seed0(0);
  CHECK(ShuffledRange(10, &seed0) == std::vector<int>{2, 8, 4, 9, 1, 6, 7, 3, 0, 5});
  NumpyRandom seed42(42);
  CHECK(ShuffledRange(10, &seed42) == std::vector<int>{8, 1, 5, 0, 7, 2, 9, 4, 3, 6});
  NumpyRandom seed1234(1234);
  CHECK(ShuffledRange(10, &seed1234) == std::vector<int>{7, 2, 9, 1, 0, 8, 4, 5, 6, 3});
}

TEST_CASE("two shuffles of one generator are numpy's") {
  for (const nlohmann::json& oracle_case : Oracle().at("shuffles")) {
    NumpyRandom random(oracle_case["seed"].get<std::uint32_t>());
    const int size = oracle_case["size"];
    CAPTURE(size);
    CHECK(ShuffledRange(size, &random) == oracle_case["first"].get<std::vector<int>>());
    CHECK(ShuffledRange(size, &random) == oracle_case["second"].get<std::vector<int>>());
  }
}

TEST_CASE("intervals beyond 32 bits take the high word first, and 0 takes no draw") {
  constexpr std::uint64_t kMax = (std::uint64_t{1} << 40) - 1;
  NumpyRandom random(1234);
  CHECK(random.Interval(0) == 0);
  CHECK(random.Interval(kMax) == (((std::uint64_t{822569775} << 32) | 2137449171U) & kMax));
}

}  // namespace engine::data
