#include "engine/view/rank_history.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace engine::view {
namespace {

constexpr double kNotKnown = std::numeric_limits<double>::quiet_NaN();

// By rank, of an iteration; no two alike.
std::vector<double> BusyTimes(std::int64_t iteration, std::size_t ranks) {
  std::vector<double> busy;
  for (std::size_t rank = 0; rank < ranks; ++rank)
    busy.push_back(100 +
                   std::fmod(static_cast<double>(iteration) * 7.31 + static_cast<double>(rank) * 3.77, 50));
  return busy;
}

double SortedMedian(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

}  // namespace

TEST_CASE("rank history: the median, of what is known") {
  CHECK(MedianOf({3, 1, 2}) == 2);
  CHECK(MedianOf({4, 1, 10, 2}) == 3);
  CHECK(MedianOf({kNotKnown, 7, std::numeric_limits<double>::infinity()}) == 7);
  CHECK(std::isnan(MedianOf({kNotKnown})));
}

TEST_CASE("rank history: few ranks and iterations have a cell each") {
  RankHistory history;
  history.Add(10, {100, 200, 300});
  history.Add(20, {100, kNotKnown, 300});
  const std::vector<RankHistory::Column> columns = history.Columns();
  REQUIRE(columns.size() == 2);
  CHECK(columns[1].first_iteration == 20);
  CHECK(columns[1].last_iteration == 20);
  REQUIRE(columns[0].rows.size() == 3);
  CHECK(columns[0].rows[0].mean() == 0.5);
  CHECK(columns[0].rows[2].mean() == 1.5);
  CHECK(columns[1].rows[1].empty());
  CHECK(history.ranks()[0].busy.mean() == 0.5);
  CHECK(history.ranks()[1].busy.count == 1);
  CHECK(history.ranks()[2].slowest_times == 2);
  CHECK(history.ranks_of_row() == 1);
  CHECK(history.iterations() == 2);
}

TEST_CASE("rank history: many ranks share rows, many iterations columns, and each value is in one cell") {
  constexpr std::size_t kRanks = 150;  // three to a row
  constexpr std::int64_t kIterations = 1000;
  RankHistory history;
  for (std::int64_t i = 1; i <= kIterations; ++i) history.Add(i, BusyTimes(i, kRanks));
  CHECK(history.ranks_of_row() == 3);
  for (const std::size_t most : {RankHistory::kMostColumns, std::size_t{10}}) {
    const std::vector<RankHistory::Column> columns = history.Columns(most);
    CHECK(columns.size() <= most);
    CHECK(2 * columns.size() >= most);
    std::int64_t next = 1;
    for (const RankHistory::Column& column : columns) {
      CHECK(column.first_iteration == next);
      next = column.last_iteration + 1;
      REQUIRE(column.rows.size() == 50);
      for (const std::size_t row : {0, 17, 49}) {
        double sum = 0;
        for (std::int64_t i = column.first_iteration; i <= column.last_iteration; ++i) {
          const std::vector<double> busy = BusyTimes(i, kRanks);
          const auto first = busy.begin() + static_cast<std::ptrdiff_t>(3 * row);
          sum += *std::max_element(first, first + 3) / SortedMedian(busy);
        }
        const std::int64_t length = column.last_iteration - column.first_iteration + 1;
        CHECK(column.rows[row].count == length);
        CHECK(column.rows[row].mean() == doctest::Approx(sum / static_cast<double>(length)));
      }
    }
    CHECK(next == kIterations + 1);
  }
  std::int64_t slowest_times = 0;
  for (const RankHistory::Rank& rank : history.ranks()) slowest_times += rank.slowest_times;
  CHECK(slowest_times == kIterations);
}

TEST_CASE("rank history: the slowest rank is one whose time is known") {
  CHECK(SlowestOf({100, 300, 300, kNotKnown}) == 1);
  CHECK(SlowestOf({kNotKnown, 1, kNotKnown, 0}) == 1);
  CHECK(SlowestOf({kNotKnown}) == 0);
  CHECK(SlowestOf({}) == 0);
  RankHistory history;
  history.Add(1, {100, 100, 300});
  history.Add(2, {100, 120, kNotKnown});
  CHECK(history.ranks()[1].slowest_times == 1);
  CHECK(history.ranks()[2].slowest_times == 1);
  CHECK(history.ranks()[2].busy.count == 1);
}

TEST_CASE("rank history: where there is nothing to compare, and where ranks come and go") {
  RankHistory history;
  history.Add(1, {100});
  history.Add(2, {100, kNotKnown});
  history.Add(3, {0, 0});
  history.Add(4, {});
  CHECK(history.iterations() == 0);
  CHECK(history.Columns().empty());
  history.Add(5, {100, 100, 100});
  CHECK(!history.forgot());
  history.Add(6, {100, 300});
  CHECK(history.forgot());
  CHECK(history.iterations() == 1);
  REQUIRE(history.Columns().size() == 1);
  CHECK(history.Columns()[0].first_iteration == 6);
  history.Add(7, {100, 300});
  CHECK(history.forgot());
}

}  // namespace engine::view
