#include "engine/view/rank_history.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace engine::view {
namespace {

void Join(const RankHistory::Column& from, RankHistory::Column& into) {
  if (into.rows.empty()) {
    into = from;
    return;
  }
  into.last_iteration = from.last_iteration;
  for (std::size_t row = 0; row < into.rows.size(); ++row) into.rows[row].Merge(from.rows[row]);
}

std::vector<RankHistory::Column> JoinedColumns(const std::vector<RankHistory::Column>& columns,
                                               std::size_t factor) {
  std::vector<RankHistory::Column> joined((columns.size() + factor - 1) / factor);
  for (std::size_t i = 0; i < columns.size(); ++i) Join(columns[i], joined[i / factor]);
  return joined;
}

}  // namespace

double MedianOf(std::vector<double> values) {
  std::erase_if(values, [](double value) { return !std::isfinite(value); });
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*std::max_element(values.begin(), middle) + *middle) / 2;
}

std::size_t SlowestOf(const std::vector<double>& busy_ms) {
  std::size_t slowest = 0;
  double longest = -1;
  for (std::size_t rank = 0; rank < busy_ms.size(); ++rank) {
    if (!(busy_ms[rank] > longest) || !std::isfinite(busy_ms[rank])) continue;
    slowest = rank;
    longest = busy_ms[rank];
  }
  return slowest;
}

void RankHistory::Add(std::int64_t iteration, const std::vector<double>& busy_ms) {
  const double median = MedianOf(busy_ms);
  const auto known =
      std::count_if(busy_ms.begin(), busy_ms.end(), [](double busy) { return std::isfinite(busy); });
  if (known < 2 || !(median > 0)) return;
  if (busy_ms.size() != ranks_.size()) {
    const bool had_others = !ranks_.empty();
    *this = RankHistory();
    forgot_ = had_others;
    ranks_.resize(busy_ms.size());
  }
  const std::size_t rows = (ranks_.size() + ranks_of_row() - 1) / ranks_of_row();
  std::vector<Range> slowest(rows);  // of each row
  for (std::size_t rank = 0; rank < busy_ms.size(); ++rank) {
    if (!std::isfinite(busy_ms[rank])) continue;
    const double busy = busy_ms[rank] / median;
    ranks_[rank].busy.Add(busy);
    slowest[rank / ranks_of_row()].Add(busy);
  }
  ++ranks_[SlowestOf(busy_ms)].slowest_times;
  if (iterations_ == length_ * static_cast<std::int64_t>(kMostColumns)) {
    columns_ = JoinedColumns(columns_, 2);
    length_ *= 2;
  }
  if (iterations_++ % length_ == 0)
    columns_.push_back({.first_iteration = iteration, .last_iteration = 0, .rows = std::vector<Range>(rows)});
  columns_.back().last_iteration = iteration;
  for (std::size_t row = 0; row < rows; ++row) {
    if (!slowest[row].empty()) columns_.back().rows[row].Add(slowest[row].max);
  }
}

std::vector<RankHistory::Column> RankHistory::Columns(std::size_t most) const {
  return columns_.size() <= most ? columns_ : JoinedColumns(columns_, (columns_.size() + most - 1) / most);
}

}  // namespace engine::view
