#include "engine/study/report.h"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "engine/study/plot.h"

namespace engine::study {
namespace {

StudyResults MadeUp() {
  StudyResults results{
      .title = "A < B & C", .base = "base.toml", .metric = "last validation loss", .variants = {}};
  for (const char* name : {"plain", "other"}) {
    VariantResult& variant = results.variants.emplace_back();
    variant.name = name;
    for (const std::int64_t seed : {1, 2}) {
      RunResult& run = variant.runs.emplace_back();
      run.seed = seed;
      run.finished = true;
      for (int i = 1; i <= 40; ++i)
        run.train.push_back({100.0 * i, 0.5 * i, 5.0 / i + static_cast<double>(seed)});
      run.validation = {run.train[19], run.train[39]};
      run.metric = run.validation[1].loss;
    }
    variant.metric = StatisticsOf({variant.runs[0].metric, variant.runs[1].metric});
    variant.difference = StatisticsOf({0.25, 0.75});
  }
  return results;
}

bool HasPart(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return true;
  MESSAGE("no '" << part << "'");
  return false;
}

std::size_t CountOf(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

}  // namespace

TEST_CASE("study results: mean and sample deviation") {
  CHECK(StatisticsOf({}).count == 0);
  CHECK(StatisticsOf({3}).deviation == 0);
  const Statistics statistics = StatisticsOf({2, 4, 4, 4, 5, 5, 7, 9});
  CHECK(statistics.mean == 5);
  CHECK(statistics.deviation == doctest::Approx(2.13808993529939).epsilon(1e-14));  // sqrt(32 / 7)
}

TEST_CASE("study report: whole by itself, escaped, with text for its plots") {
  const std::string page = ReportPage(MadeUp());
  for (const char* outside : {"http", "src=", "<script", "<link", "@import", "url(h", "<iframe"}) {
    CAPTURE(outside);
    CHECK(page.find(outside) == std::string::npos);
  }
  CHECK(HasPart(page, "<title>A &lt; B &amp; C</title>"));
  CHECK(page.find("A < B") == std::string::npos);
  CHECK(HasPart(page, "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">"));
  CHECK(HasPart(page, "prefers-color-scheme: dark"));
  CHECK(CountOf(page, "<svg ") == 2);
  CHECK(CountOf(page, "role=\"img\" aria-labelledby=") == 2);
  CHECK(HasPart(page, "<desc id=\"tokens-desc\">plain: from 6.500 to 1.625 after 4.00K tokens. other: from"));
  CHECK(CountOf(page, "<circle ") == 8);
  CHECK(HasPart(page, "<td>+0.5000 ± 0.3536</td>"));
  CHECK(HasPart(page, "data-run=\"other/seed-2\" data-number=\"metric\">2.1250</td>"));
  CHECK(CountOf(page, "data-number=\"curve\"") == 20);
  CHECK(page.find("Not finished") == std::string::npos);
}

TEST_CASE("study report: runs that have not finished are listed and in no number") {
  StudyResults results = MadeUp();
  results.variants[1].runs[0].finished = false;
  results.variants[1].runs[0].last_line = "loss <nan>";
  const std::string page = ReportPage(results);
  CHECK(HasPart(page, "<h2>Not finished</h2>"));
  CHECK(HasPart(page, "loss &lt;nan&gt;"));
  CHECK(HasPart(page, "data-run=\"other/seed-1\" data-number=\"metric\">–</td>"));
  for (VariantResult& variant : results.variants) {
    for (RunResult& run : variant.runs) run.finished = false;
  }
  CHECK(HasPart(ReportPage(results), "No run has finished yet."));
}

TEST_CASE("plot: points lie where their numbers say") {
  Plot plot{.id = "p", .title = "t", .description = "d", .x_label = "x", .y_label = "y", .lines = {}};
  CHECK(SvgOf(plot).empty());
  plot.lines.push_back({"a", {{0, 1, 1, 1}, {10, 3, 3, 3}}, {}});
  // 46 to 470 is 0 to 10; 272 to 12 is 1 to 3 with 3 % of 2 on either side.
  CHECK(HasPart(SvgOf(plot), "<polyline points=\"46.0,264.6 470.0,19.4\"/>"));
  plot.lines.push_back({"b", {{5, 9, 9, 9}}, {}});
  plot.top = 3;
  CHECK(HasPart(SvgOf(plot), "<polyline points=\"46.0,264.6 470.0,19.4\"/>"));
}

TEST_CASE("plot: ticks are round numbers within the axis") {
  const auto text = [](double low, double high, int count) {
    return fmt::format("{:g}", fmt::join(Ticks(low, high, count), " "));
  };
  CHECK(text(0, 10, 5) == "0 2 4 6 8 10");
  CHECK(text(1.1, 3.9, 6) == "1.5 2 2.5 3 3.5");
  CHECK(text(0, 614400, 5) == "0 200000 400000 600000");
  CHECK(text(0.1, 0.35, 5) == "0.1 0.15 0.2 0.25 0.3 0.35");
  CHECK(Ticks(2, 2, 5).empty());
}

}  // namespace engine::study
