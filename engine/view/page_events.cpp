#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "engine/study/html.h"
#include "engine/study/plot.h"
#include "engine/view/events.h"
#include "engine/view/page_sections.h"
#include "engine/view/words.h"

namespace engine::view {
namespace {

using study::EscapeHtml;

// The picture's geometry, in the units of plots (study/plot.cpp).
constexpr double kLineWidth = 480, kLineLeft = 92, kLineRight = 470, kLineTop = 6;
constexpr double kLane = 20, kMark = 14;  // heights of a kind's lane, and of a mark in it
constexpr double kNarrowest = 2;          // of a mark

// What a picture's axis counts in.
struct TimeUnit {
  const char* name;
  double seconds;
};
constexpr std::array<TimeUnit, 4> kTimeUnits = {
    {{"days", 86400}, {"hours", 3600}, {"minutes", 60}, {"seconds", 1}}};

// The largest unit that fits at least three times, so that ticks are short numbers.
const TimeUnit& UnitOf(double seconds) {
  constexpr double kLeastTimes = 3;
  for (const TimeUnit& unit : kTimeUnits) {
    if (seconds >= kLeastTimes * unit.seconds) return unit;
  }
  return kTimeUnits.back();
}

// One run's events over time, a lane a kind.
class Timeline {
 public:
  explicit Timeline(std::vector<Event> events) : events_(std::move(events)) {
    std::erase_if(events_, [](const Event& event) { return !(event.began_unix_s > 0); });
    for (const Event& event : events_) {
      begin_s_ = std::min(begin_s_, event.began_unix_s);
      end_s_ = std::max(end_s_, event.began_unix_s + event.seconds);
      has_[Lane(event)] = true;
    }
  }

  void Reach(double unix_s) { end_s_ = std::max(end_s_, unix_s); }
  bool empty() const { return !(end_s_ > begin_s_); }
  double begin_s() const { return begin_s_; }
  double end_s() const { return end_s_; }

  std::string Svg(const std::string& label) const {
    double y = kLineTop;
    std::string lanes;
    for (std::size_t kind = 0; kind < has_.size(); ++kind) {
      if (!has_[kind]) continue;
      lanes += LaneSvg(kind, y);
      y += kLane;
    }
    return fmt::format("<svg viewBox=\"0 0 {} {:.0f}\" role=\"img\" aria-label=\"{}\">\n{}{}</svg>\n",
                       kLineWidth, y + 40, EscapeHtml(label), AxisSvg(y), lanes);
  }

 private:
  static std::size_t Lane(const Event& event) { return static_cast<std::size_t>(event.kind); }
  double X(double unix_s) const {
    return kLineLeft + (kLineRight - kLineLeft) * (unix_s - begin_s_) / (end_s_ - begin_s_);
  }

  // The marks of a kind as one path: rectangles as wide as their time.
  std::string LaneSvg(std::size_t kind, double y) const {
    std::string marks;
    for (const Event& event : events_) {
      if (Lane(event) != kind) continue;
      const double x = std::min(X(event.began_unix_s), kLineRight - kNarrowest);
      const double width = std::max(X(event.began_unix_s + event.seconds) - x, kNarrowest);
      marks += fmt::format("M{:.1f} {:.0f}h{:.1f}v{}H{:.1f}z", x, y + (kLane - kMark) / 2, width, kMark, x);
    }
    return fmt::format(
        "<text x=\"{}\" y=\"{:.0f}\" text-anchor=\"end\">{}</text><path class=\"c{}\" "
        "style=\"fill:var(--c)\" "
        "d=\"{}\"/>\n",
        kLineLeft - 6, y + kLane / 2 + 4, Event::kNames[kind], kind % study::kPlotColours, marks);
  }

  std::string AxisSvg(double bottom) const {
    const double span_s = end_s_ - begin_s_;
    const TimeUnit& unit = UnitOf(span_s);
    std::string text;
    for (const double tick : study::Ticks(0, span_s / unit.seconds, 5)) {
      const double x = X(begin_s_ + tick * unit.seconds);
      text += fmt::format(
          "<path class=\"grid\" d=\"M{:.1f} {}V{}\"/><text x=\"{:.1f}\" y=\"{}\" "
          "text-anchor=\"middle\">{:g}</text>",
          x, kLineTop, bottom, x, bottom + 16, tick);
    }
    return text + fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n",
                              (kLineLeft + kLineRight) / 2, bottom + 34, unit.name);
  }

  std::vector<Event> events_;
  double begin_s_ = std::numeric_limits<double>::infinity(), end_s_ = 0;
  std::array<bool, Event::kNames.size()> has_ = {};
};

std::string TimelineOf(const ReportedRun& run) {
  Timeline timeline(EventsOf(*run.view));
  timeline.Reach(run.view->last.ended_unix_s);
  if (timeline.empty()) return "";
  return fmt::format("<figure><figcaption>{}, from {} to {}</figcaption>{}</figure>\n", EscapeHtml(run.name),
                     UtcText(timeline.begin_s()), UtcText(timeline.end_s()),
                     timeline.Svg("Events of " + run.name));
}

// Of each kind the newest.
void AddRows(const ReportedRun& run, Table* table) {
  const std::vector<Event> events = EventsOf(*run.view);
  std::array<std::size_t, Event::kNames.size()> left = {};  // of each kind, from here on
  for (const Event& event : events) ++left[static_cast<std::size_t>(event.kind)];
  for (const Event& event : events) {
    if (left[static_cast<std::size_t>(event.kind)]-- > kMostRows) continue;
    table->rows.push_back({{run.name},
                           {event.began_unix_s > 0 ? UtcText(event.began_unix_s) : ""},
                           {event.name()},
                           {fmt::format("{}", event.iteration)},
                           {event.seconds > 0 ? Duration(event.seconds) : ""},
                           {event.text}});
  }
}

}  // namespace

Document EventsSection(const Runs& runs) {
  std::string pictures;
  Table table{.label = "Events", .head = {"run", "when", "what", "iteration", "took", ""}, .words = true};
  for (const ReportedRun& run : runs) {
    pictures += TimelineOf(run);
    AddRows(run, &table);
  }
  if (table.rows.empty()) return {};
  Document document = {Title{.text = "Events"}};
  if (!pictures.empty()) document.push_back(Picture{"<div class=\"plots\">\n" + pictures + "</div>\n"});
  document.push_back(std::move(table));
  document.push_back(Text{
      fmt::format(
          "At most the newest {} of each kind and run. A checkpoint took as long as training stood still "
          "for it. An interruption is the time in which the run was down, started again, and ran "
          "iterations again whose records a resume has cut off.",
          kMostRows),
      Text::Kind::kNote});
  return document;
}

}  // namespace engine::view
