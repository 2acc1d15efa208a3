#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <utility>

#include "engine/study/html.h"
#include "engine/study/plot.h"
#include "engine/view/page_sections.h"
#include "engine/view/words.h"

namespace engine::view {
namespace {

using study::EscapeHtml;

// Colours of the map, each from its number of medians up to the next one's. From 1.3 on docs/monitoring.md's alert fires.
struct Level {
  double from;
  const char* name;
};
constexpr std::array<Level, 7> kLevels = {{{0, "below 0.9"},
                                           {0.9, "0.9 to 0.97"},
                                           {0.97, "0.97 to 1.03"},
                                           {1.03, "1.03 to 1.1"},
                                           {1.1, "1.1 to 1.3"},
                                           {1.3, "1.3 to 2"},
                                           {2, "2 and more"}}};

constexpr std::size_t kMapColumns =
    RankHistory::kMostColumns;  // of a run; of several together four times as many
constexpr std::size_t kSlowestShown = 5, kHottestShown = 5;

// The map's geometry, in the units of plots (study/plot.cpp).
constexpr double kMapWidth = 480, kMapLeft = 46, kMapRight = 470, kMapTop = 8;
constexpr double kLetters = 14;  // height of a line

std::size_t MapLevelOf(double medians) {
  const auto above = std::find_if(kLevels.begin(), kLevels.end(),
                                  [medians](const Level& level) { return level.from > medians; });
  return static_cast<std::size_t>(std::max<std::ptrdiff_t>(above - kLevels.begin(), 1)) - 1;
}

// One run's map: a row a rank, or some neighbours, a column a stretch of iterations.
class Map {
 public:
  Map(const RankHistory& history, std::size_t most_columns)
      : history_(history),
        columns_(history.Columns(most_columns)),
        rows_(columns_[0].rows.size()),
        height_(std::clamp(kRoughHeight / static_cast<double>(rows_), kLeastRow, kMostRow)),
        width_((kMapRight - kMapLeft) / static_cast<double>(columns_.size())) {}

  std::string Svg(const std::string& label) const {
    const double bottom = kMapTop + height_ * static_cast<double>(rows_);
    std::string text = fmt::format("<svg viewBox=\"0 0 {} {:.0f}\" role=\"img\" aria-label=\"{}\">\n",
                                   kMapWidth, bottom + 3 * kLetters, EscapeHtml(label));
    for (std::size_t level = 0; level < kLevels.size(); ++level) text += Cells(level);
    return text + RowLabels() + ColumnLabels(bottom) + "</svg>\n";
  }

 private:
  static constexpr double kRoughHeight = 220, kLeastRow = 5, kMostRow = 18;

  double Y(std::size_t row) const { return kMapTop + height_ * static_cast<double>(row); }
  double X(std::size_t column) const { return kMapLeft + width_ * static_cast<double>(column); }

  bool Is(std::size_t level, std::size_t row, std::size_t column) const {
    const Range& range = columns_[column].rows[row];
    return !range.empty() && MapLevelOf(range.mean()) == level;
  }

  // All cells of a colour as one path: neighbours in a row are one stroke, as high as the row.
  std::string Cells(std::size_t level) const {
    std::string strokes;
    for (std::size_t row = 0; row < rows_; ++row) {
      for (std::size_t column = 0; column < columns_.size(); ++column) {
        const std::size_t first = column;
        while (column < columns_.size() && Is(level, row, column)) ++column;
        if (column > first)
          strokes += fmt::format("M{:.1f} {:.1f}H{:.1f}", X(first), Y(row) + height_ / 2, X(column));
      }
    }
    if (strokes.empty()) return "";
    return fmt::format("<path class=\"cells h{}\" stroke-width=\"{:.2f}\" d=\"{}\"/>\n", level, height_,
                       strokes);
  }

  // The first rank of a row, where there is place.
  std::string RowLabels() const {
    const std::size_t every = std::bit_ceil(static_cast<std::size_t>(std::ceil(kLetters / height_)));
    std::string text;
    for (std::size_t row = 0; row < rows_; row += every)
      text += fmt::format("<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>", kMapLeft - 5,
                          Y(row) + height_ / 2 + 4, row * history_.ranks_of_row());
    return text;
  }

  // The first iteration of some columns, and the last of all.
  std::string ColumnLabels(double bottom) const {
    constexpr std::size_t kLabels = 4;
    std::string text;
    const auto label = [&](double x, const char* anchor, std::int64_t iteration) {
      text += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>", x,
                          bottom + kLetters, anchor, iteration);
    };
    const std::size_t every = (columns_.size() + kLabels - 1) / kLabels;
    for (std::size_t column = 0; column + every / 2 < columns_.size(); column += every)
      label(X(column), "start", columns_[column].first_iteration);
    label(kMapRight, "end", columns_.back().last_iteration);
    return text +
           fmt::format("<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"middle\">iterations; rows: ranks</text>\n",
                       (kMapLeft + kMapRight) / 2, bottom + 2.5 * kLetters);
  }

  const RankHistory& history_;
  const std::vector<RankHistory::Column> columns_;
  const std::size_t rows_;
  const double height_, width_;  // of a cell
};

std::string MapKey() {
  std::string text = "<ul class=\"key\" aria-label=\"Colours of busy times, in medians\">";
  for (std::size_t level = 0; level < kLevels.size(); ++level)
    text += fmt::format("<li class=\"h{}\"><i></i>{}</li>", level, kLevels[level].name);
  return text + "</ul>\n";
}

std::string MapOf(const ReportedRun& run, std::size_t most_columns) {
  const RankHistory& history = run.view->ranks;
  std::string caption = run.name;
  if (history.ranks_of_row() > 1)
    caption += fmt::format(": {} ranks, {} neighbours a row", history.ranks().size(), history.ranks_of_row());
  if (history.forgot())
    caption += fmt::format("; before iteration {} there were more or fewer ranks",
                           history.Columns()[0].first_iteration);
  return fmt::format("<figure><figcaption>{}</figcaption>{}</figure>\n", EscapeHtml(caption),
                     Map(history, most_columns).Svg("Busy times of the ranks of " + run.name));
}

void AddSlowest(const ReportedRun& run, Table* table) {
  const std::vector<RankHistory::Rank>& ranks = run.view->ranks.ranks();
  std::vector<std::size_t> order;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (!ranks[rank].busy.empty()) order.push_back(rank);
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return ranks[a].busy.mean() > ranks[b].busy.mean(); });
  order.resize(std::min(order.size(), kSlowestShown));
  for (const std::size_t rank : order) {
    const RankHistory::Rank& busy = ranks[rank];
    table->rows.push_back(
        {{run.name},
         {fmt::format("{}", rank)},
         {fmt::format("{:.2f}", busy.busy.mean())},
         {fmt::format("{:.2f}", busy.busy.max)},
         {Percent(static_cast<double>(busy.slowest_times) / static_cast<double>(busy.busy.count))}});
  }
}

// Ranks whose times are not known in all iterations, as they were gone or told none: "made-up: rank 1 in 9 of 20".
std::string PartlyKnown(const Runs& runs) {
  std::string text;
  for (const ReportedRun& run : runs) {
    const RankHistory& history = run.view->ranks;
    std::size_t found = 0;
    for (std::size_t rank = 0; rank < history.ranks().size(); ++rank) {
      const std::int64_t count = history.ranks()[rank].busy.count;
      if (count == history.iterations() || ++found > kSlowestShown) continue;
      text += fmt::format("{}{} rank {} in {} of {}", text.empty() ? "" : ", ",
                          found == 1 ? run.name + ":" : "", rank, count, history.iterations());
    }
    if (found > kSlowestShown) text += fmt::format(" and {} more ranks", found - kSlowestShown);
  }
  return text;
}

}  // namespace

Document RanksSection(const Runs& runs) {
  const auto drawn = static_cast<std::size_t>(std::count_if(
      runs.begin(), runs.end(), [](const ReportedRun& run) { return run.view->ranks.iterations() > 0; }));
  if (drawn == 0) return {};
  const std::size_t most_columns = std::min(kMapColumns, 4 * kMapColumns / drawn + 1);
  std::string maps;
  Table table{.label = "The ranks that were busy longest",
              .head = {"run", "rank", "mean, in medians", "most", "slowest of all in"}};
  for (const ReportedRun& run : runs) {
    if (run.view->ranks.iterations() == 0) continue;
    maps += MapOf(run, most_columns);
    AddSlowest(run, &table);
  }
  const std::string partly = PartlyKnown(runs);
  return {
      Title{.text = "Ranks"}, Picture{MapKey() + "<div class=\"plots\">\n" + maps + "</div>\n"},
      Text{fmt::format(
               "How long ranks were busy, as multiples of the median rank's time in the same iteration. "
               "Columns: means over up to {} equal stretches of the iterations that were logged. Of more "
               "than {} ranks neighbours share a row, so that the page stays small: in each iteration the "
               "slowest of them counts.",
               kMapColumns, RankHistory::kMostRows),
           Text::Kind::kOfPicture},
      std::move(table),
      Text{fmt::format(
               "The {} ranks of each run with the largest means, over the iterations that were logged{}",
               kSlowestShown,
               partly.empty() ? "." : " and in which the rank's time is known. Not in all: " + partly + "."),
           Text::Kind::kNote}};
}

Document GpusSection(const Runs& runs) {
  Table table{.label = "The GPUs that were hottest",
              .head = {"run", "rank", "mean, °C", "most, °C", "clock, mean, MHz", "least, MHz"}};
  for (const ReportedRun& run : runs) {
    const std::vector<RunView::Gpu>& gpus = run.view->gpus;
    std::vector<std::size_t> order;
    for (std::size_t rank = 0; rank < gpus.size(); ++rank) {
      if (!gpus[rank].temperature_c.empty() && !gpus[rank].clock_mhz.empty()) order.push_back(rank);
    }
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return gpus[a].temperature_c.max > gpus[b].temperature_c.max;
    });
    order.resize(std::min(order.size(), kHottestShown));
    for (const std::size_t rank : order) {
      const RunView::Gpu& gpu = gpus[rank];
      table.rows.push_back({{run.name},
                            {fmt::format("{}", rank)},
                            {fmt::format("{:.0f}", gpu.temperature_c.mean())},
                            {fmt::format("{:.0f}", gpu.temperature_c.max)},
                            {fmt::format("{:.0f}", gpu.clock_mhz.mean())},
                            {fmt::format("{:.0f}", gpu.clock_mhz.min)}});
    }
  }
  if (table.rows.empty()) return {};
  return {
      Title{.text = "GPUs"}, std::move(table),
      Text{fmt::format("The {} GPUs of each run that were hottest at any time, over the iterations that were "
                       "logged, as the driver says (NVML).",
                       kHottestShown),
           Text::Kind::kNote}};
}

}  // namespace engine::view
