#include "engine/study/html.h"

#include <fmt/format.h>

#include "engine/study/plot.h"

namespace engine::study {
namespace {

constexpr const char* kStyle = R"(
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #57606a; --line: #d0d7de; --page: #ffffff; --head: #f3f5f7;
  --c0: #0060a8; --c1: #b84a00; --c2: #00734f; --c3: #9a3f80; --c4: #7a5c00; --c5: #0b7285; --c6: #b3263a; --c7: #5b5f97;
  --h0: #2b7bba; --h1: #9ecae1; --h2: #e3e6ea; --h3: #fdd0a2; --h4: #fd8d3c; --h5: #d94801; --h6: #7f2704; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6edf3; --soft: #9aa5b1; --line: #3d444d; --page: #0f1318; --head: #1a2027;
    --c0: #6cb6ff; --c1: #ff9e57; --c2: #56d3a2; --c3: #e59ccd; --c4: #e3c44a; --c5: #5fd0e3; --c6: #ff8b94; --c7: #b3b6f2;
    --h0: #4aa3e0; --h1: #24567c; --h2: #2b323b; --h3: #6b3d14; --h4: #b85c12; --h5: #ff8c2e; --h6: #ffe0b8; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 76rem; background: var(--page); color: var(--ink);
  font: 1rem/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: .5rem 0; }
h2 { font-size: 1.2rem; margin: 2rem 0 .5rem; }
p, figcaption { max-width: 46rem; }
figcaption, .note { color: var(--soft); font-size: .9rem; }
.scroll { overflow-x: auto; }
.scroll:focus-visible, summary:focus-visible { outline: 2px solid var(--c0); outline-offset: 2px; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .6rem; border-bottom: 1px solid var(--line); text-align: right; }
td { white-space: nowrap; }
th { background: var(--head); font-weight: 600; vertical-align: bottom; }
th:first-child { position: sticky; left: 0; }
th:first-child, .words th, .words td { text-align: left; }
.wrap td { white-space: normal; overflow-wrap: anywhere; min-width: 6rem; }
td.last { white-space: normal; min-width: 14rem; }
@media (max-width: 40rem) { table { font-size: .85rem; } th, td { padding: .3rem .4rem; } }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 28rem), 1fr)); gap: 1.5rem;
  margin-bottom: 1rem; }
figure { margin: 0; max-width: 40rem; }
svg { display: block; width: 100%; height: auto; font-size: 13px; }
svg text { fill: var(--soft); }
svg polyline { fill: none; stroke: var(--c); stroke-width: 2; }
svg .band { fill: var(--c); opacity: .2; }
svg circle { fill: var(--c); stroke: var(--page); }
svg .grid { stroke: var(--line); stroke-width: .7; fill: none; }
svg .cells { fill: none; stroke: var(--c); shape-rendering: crispEdges; }
svg .dashed polyline { stroke-dasharray: 6 4; }
.key { display: flex; flex-wrap: wrap; gap: .3rem 1.2rem; padding: 0; list-style: none; }
.key i { display: inline-block; width: 1.6rem; border-top: .25rem solid var(--c); vertical-align: middle; margin-right: .4rem; }
.key .dashed i { border-top-style: dashed; }
code { font-size: .92em; }
.c0 { --c: var(--c0); } .c1 { --c: var(--c1); } .c2 { --c: var(--c2); } .c3 { --c: var(--c3); }
.c4 { --c: var(--c4); } .c5 { --c: var(--c5); } .c6 { --c: var(--c6); } .c7 { --c: var(--c7); }
.h0 { --c: var(--h0); } .h1 { --c: var(--h1); } .h2 { --c: var(--h2); } .h3 { --c: var(--h3); }
.h4 { --c: var(--h4); } .h5 { --c: var(--h5); } .h6 { --c: var(--h6); }
)";

}  // namespace

std::string PageBegin(const std::string& title) {
  const std::string escaped = EscapeHtml(title);
  std::string page =
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n";
  return page + fmt::format("<title>{}</title>\n<style>{}</style>\n</head>\n<body>\n<main>\n<h1>{}</h1>\n",
                            escaped, kStyle, escaped);
}

std::string Cell(const std::string& text) { return "<td>" + text + "</td>"; }

std::string Head(const std::string& text, const char* scope) {
  return fmt::format("<th scope=\"{}\">{}</th>", scope, text);
}

std::string Table(const std::string& label, const std::vector<std::string>& head, const std::string& rows,
                  bool words) {
  std::string text = fmt::format(
      "<div class=\"scroll{}\" role=\"region\" tabindex=\"0\" aria-label=\"{}\"><table>\n<thead><tr>",
      words ? " words" : "", EscapeHtml(label));
  for (const std::string& cell : head) text += Head(cell);
  return text + "</tr></thead>\n<tbody>\n" + rows + "</tbody></table></div>\n";
}

std::string ColourKey(const std::string& label, const std::vector<std::string>& names) {
  std::string text = fmt::format("<ul class=\"key\" aria-label=\"{}\">", EscapeHtml(label));
  for (std::size_t i = 0; i < names.size(); ++i) {
    text += fmt::format("<li class=\"c{}{}\"><i></i>{}</li>", i % kPlotColours,
                        i >= kPlotColours ? " dashed" : "", EscapeHtml(names[i]));
  }
  return text + "</ul>\n";
}

}  // namespace engine::study
