#include "engine/view/document.h"

#include <doctest/doctest.h>

#include <string>

#include "engine/view/page.h"
#include "tests/view/made_up_run.h"

namespace engine::view {

TEST_CASE("document: each kind of block as Markdown and as HTML") {
  Document document = {Title{.level = 1, .text = "a < b"},
                       Title{.text = "Part"},
                       Text{"plain_text"},
                       Picture{"<svg></svg>\n"},
                       Text{"of the picture", Text::Kind::kOfPicture},
                       Text{"a note", Text::Kind::kNote}};
  Table numbers{.label = "N & M", .head = {"", "x"}};
  numbers.rows = {{{"row"}, {"1"}}, {{.text = "key", .is_code = true}, {.text = "", .is_code = true}}};
  document.push_back(numbers);
  document.push_back(
      Table{.label = "W", .head = {"a", "b"}, .rows = {{{"c"}, {"d", false, "r", "n"}}}, .words = true});
  document.push_back(List{{"one", "two"}});
  document.push_back(Listing{.title = "More", .label = "L", .text = "x = 1\n"});
  CHECK(MarkdownOf(document) ==
        "# a \\< b\n\n## Part\n\nplain\\_text\n\na note\n\n"
        "|  | x |\n|---|---:|\n| row | 1 |\n| `key` | – |\n\n"
        "| a | b |\n|---|---|\n| c | d |\n\n"
        "- one\n- two\n\n"
        "<details><summary>More</summary>\n\n```\nx = 1\n```\n\n</details>\n");
  const std::string page = HtmlOf(document);
  CHECK(page.starts_with("<!doctype html>"));
  CHECK(page.ends_with(
      "<h1>a &lt; b</h1>\n<h2>Part</h2>\n<p>plain_text</p>\n<svg></svg>\n<p class=\"note\">of the "
      "picture</p>\n"
      "<p class=\"note\">a note</p>\n"
      "<div class=\"scroll\" role=\"region\" tabindex=\"0\" aria-label=\"N &amp; M\"><table>\n<thead><tr>"
      "<th scope=\"col\"></th><th scope=\"col\">x</th></tr></thead>\n<tbody>\n"
      "<tr><th scope=\"row\">row</th><td>1</td></tr>\n"
      "<tr><th scope=\"row\"><code>key</code></th><td>–</td></tr>\n</tbody></table></div>\n"
      "<div class=\"scroll words\" role=\"region\" tabindex=\"0\" aria-label=\"W\"><table>\n<thead><tr>"
      "<th scope=\"col\">a</th><th scope=\"col\">b</th></tr></thead>\n<tbody>\n"
      "<tr><th scope=\"row\">c</th><td data-run=\"r\" data-number=\"n\">d</td></tr>\n</tbody></table></div>\n"
      "<ul>\n<li>one</li>\n<li>two</li>\n</ul>\n"
      "<details><summary>More</summary>\n<div class=\"scroll\" role=\"region\" tabindex=\"0\" "
      "aria-label=\"L\"><pre>x = 1\n</pre></div></details>\n</main>\n</body>\n</html>\n"));
}

TEST_CASE("document: titles with nothing but pictures below are left out of Markdown") {
  const Document document = {Title{.level = 1, .text = "All"},
                             Title{.text = "Pictures"},
                             Title{.level = 3, .text = "One"},
                             Picture{"<svg></svg>"},
                             Title{.text = "Texts"},
                             Title{.level = 3, .text = "Empty"},
                             Title{.level = 3, .text = "Other"},
                             Text{"x"},
                             Title{.text = "End"},
                             Picture{"<svg></svg>"}};
  CHECK(MarkdownOf(document) == "# All\n\n## Texts\n\n### Other\n\nx\n");
  CHECK(MarkdownOf({}).empty());
}

TEST_CASE("document: no text can leave its place in Markdown") {
  const auto cell = [](const std::string& text, bool is_code) {
    const std::string table =
        MarkdownOf({Table{.label = "", .head = {"h"}, .rows = {{{.text = text, .is_code = is_code}}}}});
    const std::string before = "| h |\n|---|\n| ";
    REQUIRE(table.starts_with(before));
    REQUIRE(table.ends_with(" |\n"));
    return table.substr(before.size(), table.size() - before.size() - 3);
  };
  CHECK(cell("a|b\\", false) == "a\\|b\\\\");
  CHECK(cell("*a* _b_ `c` [d](e) <f> ~g~ &amp; $h$ # i", false) ==
        "\\*a\\* \\_b\\_ \\`c\\` \\[d\\](e) \\<f\\> \\~g\\~ \\&amp; \\$h\\$ \\# i");
  CHECK(cell("a\nb\rc", false) == "a b c");
  CHECK(cell("a|b*\n", true) == "`a\\|b* `");
  CHECK(cell("a``b", true) == "```a``b```");
  CHECK(cell("`a", true) == "`` `a ``");
  CHECK(cell(" a ", true) == "`  a  `");
  CHECK(MarkdownOf({Listing{.title = "t", .label = "", .text = "a\n````\nb"}}) ==
        "<details><summary>t</summary>\n\n`````\na\n````\nb\n`````\n\n</details>\n");
}

TEST_CASE("document: a run's report has the same numbers as Markdown") {
  const testing::MadeUpRun run;
  run.Write("metrics.jsonl", testing::MetricsText().RunTo(30).Pause(100).RunTo(100).text());
  run.Write("resolved.toml", "[model]\nlayers = 2  # a.toml:1:1\n");
  absl::StatusOr<RunReader> reader = RunReader::Open(run.folder);
  REQUIRE(reader.ok());
  reader->Refresh(RunReader::kAllBytes);
  const std::string text = MarkdownOf(ReportOf(ReportedRuns({&reader->view()}), testing::kBegin));
  for (const char* part :
       {"# made-up\n\n|  | made-up |\n|---|---|\n| state | ", "| loss of the last iteration | 2.0202 |\n",
        "| layout | 4 ranks: dp 2 · pp 2 |\n", "| plan | `0123456789abcdef0123456789abcdef` |\n",
        "## Ranks\n\n| run | rank | mean, in medians | most | slowest of all in "
        "|\n|---|---:|---:|---:|---:|\n"
        "| made-up | 2 | 1.18 | 1.18 | 100.0 % |\n",
        "| made-up | 2026-09-21 14:13:38 UTC | interruption | 30 | 1 min 40 s | resumed after 1 min 40 s |\n",
        "| interruptions | 1 min 40 s (61.3 %) |\n", "| made-up | MFU | 40.0 % | 35.0 %, mean | 0.875 |\n",
        "## Memory\n\n### made-up\n\n| planned, of a rank | stage 0 | stage 1 |\n",
        "```\n[model]\nlayers = 2"}) {
    CAPTURE(part);
    CHECK(text.find(part) != std::string::npos);
  }
  for (const char* part : {"<svg", "<figure", "## Curves", "Lines: means"})
    CHECK(text.find(part) == std::string::npos);
}

}  // namespace engine::view
