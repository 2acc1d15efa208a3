#!/usr/bin/python3
"""Checks that `engine report` says the same as Markdown and as a page: the tables, lists and listings that GitHub's own parser
finds in the Markdown are those of the page.

usage: report_markdown.py ENGINE RUN…     needs the Debian package cmark-gfm
"""
import html.parser
import pathlib
import subprocess
import sys
import tempfile


class Parts(html.parser.HTMLParser):
    """Tables as rows of texts, items of lists, and preformatted texts, in their order; pictures and their keys are passed over."""

    def __init__(self, text):
        super().__init__()
        self.parts, self.open, self.skipped = [], None, 0
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        if self.skipped:
            self.skipped += tag == self.until
        elif tag in ("svg", "figure") or (tag == "ul" and dict(attributes).get("class") == "key"):
            self.skipped, self.until = 1, tag
        elif tag == "table":
            self.parts.append([])
        elif tag == "tr":
            self.parts[-1].append([])
        elif tag in ("td", "th", "li", "pre"):
            self.open = ""

    def handle_endtag(self, tag):
        if self.skipped:
            self.skipped -= tag == self.until
        elif tag in ("td", "th"):
            self.parts[-1][-1].append(self.open.strip())
            self.open = None
        elif tag in ("li", "pre"):
            self.parts.append(self.open.rstrip("\n"))
            self.open = None

    def handle_data(self, data):
        if self.open is not None and not self.skipped:
            self.open += data


def main():
    engine, *runs = sys.argv[1:]
    with tempfile.TemporaryDirectory() as name:
        page, markdown = pathlib.Path(name) / "report.html", pathlib.Path(name) / "report.md"
        for path in (page, markdown):
            subprocess.run([engine, "report", *runs, "-o", str(path)], check=True)
        rendered = subprocess.run(["cmark-gfm", "--unsafe", "-e", "table", "-e", "strikethrough", "-e", "autolink", str(markdown)],
                                  check=True, capture_output=True, text=True).stdout
        expected, found = Parts(page.read_text()).parts, Parts(rendered).parts
    for want, have in zip(expected, found):
        if want != have:
            sys.exit(f"the page has\n{want}\nand the Markdown\n{have}")
    if len(expected) != len(found):
        sys.exit(f"{len(expected)} parts in the page, {len(found)} in the Markdown")
    print(f"{len(found)} tables, items and listings are the same")


if __name__ == "__main__":
    main()
