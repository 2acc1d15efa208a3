// How long the ranks of a run were busy against each other, over its iterations; in bounded memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/view/history.h"

namespace engine::view {

// Of those that are finite; NaN where none is.
double MedianOf(std::vector<double> values);
// The first of the ranks that are busy longest, by the times that are finite; 0 where none is.
std::size_t SlowestOf(const std::vector<double>& busy_ms);

// A rank's busy time is counted in medians of all ranks in the same iteration: 1 is as long as the middle one.
class RankHistory {
 public:
  static constexpr std::size_t kMostRows = 64;      // of the ranks: neighbours share one where there are more
  static constexpr std::size_t kMostColumns = 128;  // of the iterations: joined as History's buckets are

  struct Column {
    std::int64_t first_iteration = 0, last_iteration = 0;
    std::vector<Range> rows;  // in each iteration the slowest of the row's ranks
  };
  struct Rank {
    Range busy;                      // over the iterations in which its time is known
    std::int64_t slowest_times = 0;  // iterations in which no rank was busy longer
  };

  // An iteration's busy times by rank, NaN where not known. Where fewer than two are known there is nothing to compare. Where
  // there are more or fewer ranks than before, as a run has been resumed with another layout, all before is forgotten.
  void Add(std::int64_t iteration, const std::vector<double>& busy_ms);

  // In order, joined further so that they are at most `most`.
  std::vector<Column> Columns(std::size_t most = kMostColumns) const;
  const std::vector<Rank>& ranks() const { return ranks_; }
  std::size_t ranks_of_row() const { return (ranks_.size() + kMostRows - 1) / kMostRows; }
  std::int64_t iterations() const { return iterations_; }  // that were taken
  bool forgot() const { return forgot_; }                  // the iterations of another number of ranks

 private:
  std::vector<Rank> ranks_;
  std::vector<Column> columns_;
  std::int64_t iterations_ = 0;
  std::int64_t length_ = 1;  // iterations of a column
  bool forgot_ = false;
};

}  // namespace engine::view
