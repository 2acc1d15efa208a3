#include "engine/view/lines.h"

#include <doctest/doctest.h>

#include "engine/view/glyphs.h"
#include "engine/view/words.h"

namespace engine::view {

TEST_CASE("lines: text of files cannot steer the terminal") {
  CHECK(Printable("plain · ü 漢") == "plain · ü 漢");
  CHECK(Printable("a\x1b[2Jb\r\n") == "a\\x1b[2Jb\\x0d\\n");
  CHECK(Printable("\xc2\x9b"
                  "2J") == "\\xc2\\x9b2J");  // C1's control sequence introducer
  CHECK(Printable("\xe2\x80\xae"
                  "x") == "\uFFFDx");  // right-to-left override
  CHECK(Printable("\xff\xc3(\xed\xa0\x80\xc0\xaf") == "\\xff\\xc3(\\xed\\xa0\\x80\\xc0\\xaf");
  CHECK(Printable("abcdef", 3) == "abc…");
}

TEST_CASE("lines: columns of a terminal") {
  CHECK(ColumnsOf("abc") == 3);
  CHECK(ColumnsOf("▁█·ü") == 4);
  CHECK(ColumnsOf("漢字") == 4);
  CHECK(ColumnsOf("e\u0301") == 1);
  CHECK(Fitted("abc", 5) == "abc  ");
  CHECK(Fitted("abcdef", 4) == "abc…");
  CHECK(Fitted("漢字漢", 4) == "漢… ");
  CHECK(Fitted("abc", 0).empty());
}

TEST_CASE("lines: rendered as wide as asked for, with and without colours") {
  const std::vector<Line> lines = {{{"ab", Style::kBold}, {"cdef"}, {"gh", Style::kBad}}, {}, {{"x  "}}};
  CHECK(Render(lines, {.columns = 80}) == std::vector<std::string>{"abcdefgh", "", "x"});
  CHECK(Render(lines, {.columns = 5})[0] == "abcd…");
  CHECK(Render(lines, {.columns = 80, .color = true})[0] == "\x1b[1mab\x1b[0mcdef\x1b[1;31mgh\x1b[0m");
  CHECK(Render({{{"ü · …", Style::kPlain}}}, {.ascii = true})[0] == "? - ~");
  CHECK(Render({{{"漢漢漢"}}}, {.columns = 2, .ascii = true})[0] == "?~");
}

TEST_CASE("words: times, shares, rates") {
  CHECK(Duration(0.42) == "420 ms");
  CHECK(Duration(0.9996) == "1.0 s");
  CHECK(Duration(9.94) == "9.9 s");
  CHECK(Duration(9.96) == "10 s");
  CHECK(Duration(59.6) == "1 min 00 s");
  CHECK(Duration(3599.4) == "59 min 59 s");
  CHECK(Duration(7500) == "2 h 05 min");
  CHECK(Duration(90000) == "1 d 01 h");
  CHECK(Duration(-3) == "0 ms");
  CHECK(Duration(1e300) == "ages");
  CHECK(Milliseconds(12.34) == "12.3 ms");
  CHECK(Milliseconds(123.4) == "123 ms");
  CHECK(Milliseconds(1234) == "1.23 s");
  CHECK(Percent(0.4125) == "41.2 %");
  CHECK(UtcText(1'790'000'000) == "2026-09-21 14:13:20 UTC");
}

TEST_CASE("glyphs: a sparkline's heights, gaps and stretches") {
  History history;
  for (int i = 1; i <= 8; ++i) history.Add(i, metrics::kLoss, i);
  CHECK(Sparkline(history.Buckets(), metrics::kLoss, 8, false) == "▁▂▃▄▅▆▇█");
  CHECK(Sparkline(history.Buckets(), metrics::kLoss, 20, false) == "▁▂▃▄▅▆▇█");
  CHECK(Sparkline(history.Buckets(), metrics::kLoss, 4, false) == "▁▃▆█");
  CHECK(Sparkline(history.Buckets(), metrics::kLoss, 8, true) == "_.,-=+*#");
  CHECK(Sparkline(history.Buckets(), metrics::kMfu, 8, false).empty());
  CHECK(Sparkline({}, metrics::kLoss, 8, false).empty());
  history.Add(12, metrics::kLoss, 8);
  CHECK(Sparkline(history.Buckets(), metrics::kLoss, 12, false) == "▁▂▃▄▅▆▇█   █");
}

TEST_CASE("glyphs: bars from zero, of groups their largest") {
  CHECK(Bars({7, 0, 3.5}, 10, false) == "█▁▅");
  CHECK(Bars({1, 7, 0, 0}, 2, false) == "█▁");
  CHECK(Bars({}, 10, false).empty());
}

TEST_CASE("glyphs: a plot's dots lie where its values say") {
  History history;
  for (int i = 1; i <= 4; ++i) history.Add(i, metrics::kLoss, 4 - i);
  const Plot plot = PlotOf(history.Buckets(), metrics::kLoss, 2, 1, false);
  CHECK(plot.rows == std::vector<std::string>{"⠙⢦"});
  CHECK(plot.top == 3);
  CHECK(plot.bottom == 0);
  CHECK(plot.first == 1);
  CHECK(plot.last == 4);
  CHECK(PlotOf(history.Buckets(), metrics::kLoss, 4, 4, true).rows ==
        std::vector<std::string>{"**  ", " ** ", "  **", "   *"});
  CHECK(PlotOf({}, metrics::kLoss, 4, 4, true).rows.empty());
}

TEST_CASE("glyphs: what is large at the beginning does not squeeze a plot") {
  History history;
  for (int i = 1; i <= 100; ++i) history.Add(i, metrics::kLoss, i == 1 ? 1000 : 2 + i % 2);
  CHECK(PlotOf(history.Buckets(), metrics::kLoss, 50, 5, false).top == 3);
}

}  // namespace engine::view
