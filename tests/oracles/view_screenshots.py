#!/usr/bin/python3
"""Pictures of `engine watch` and `engine report` for docs/monitoring.md, and a check that the page asks for nothing.

A terminal emulator (python3-pyte) shows the frames; headless Chromium photographs them and the page, and its log of the network
must hold no request of the page.

usage: view_screenshots.py ENGINE OUT RUN…     needs the Debian packages chromium and python3-pyte
"""
import functools
import html
import http.server
import json
import pathlib
import subprocess
import sys
import tempfile
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
import watch_screens  # noqa: E402

COLOURS = {"default": "#d6dde5", "green": "#56d3a2", "brown": "#e3c44a", "red": "#ff8b94", "cyan": "#5fd0e3"}


def chromium(address, picture, width, height, dark=False, log=None):
    command = ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
               f"--window-size={width},{height}", f"--screenshot={picture}"]
    command += ["--blink-settings=preferredColorScheme=0"] if dark else []
    command += [f"--log-net-log={log}"] if log else []
    subprocess.run(command + [address], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=240)


class Server:
    """Serves a folder on this machine, so that the browser's log tells a page's requests from the browser's own."""

    def __init__(self, folder):
        handler = functools.partial(QuietHandler, directory=str(folder))
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.origin = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def asked_for(self, log):
        """Addresses that a page of this server has asked for."""
        text = log.read_text()
        try:
            events = json.loads(text)["events"]
        except json.JSONDecodeError:  # it ends in the middle where Chromium was ended
            events = json.loads(text.rstrip().rstrip(",") + "]}")["events"]
        params = [event.get("params", {}) for event in events]
        asked = {p["url"] for p in params if "url" in p and str(p.get("initiator", "")).startswith(self.origin)}
        return {address for address in asked if not address.endswith("/favicon.ico")}  # the browser asks for it by itself


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def frame_page(watch, path):
    """The emulator's screen as a page."""
    rows = []
    for y in range(watch.screen.lines):
        cells = [watch.screen.buffer[y][x] for x in range(watch.screen.columns)]
        rows.append("".join(f'<span style="display:inline-block;width:8.43px;color:{COLOURS.get(c.fg, "#d6dde5")};{"font-weight:bold" if c.bold else ""}">'
                            f"{html.escape(c.data)}</span>" for c in cells))
    path.write_text('<!doctype html><meta charset="utf-8"><body style="margin:0;background:#0f1318"><pre style="margin:10px;'
                    'font:14px/17px DejaVu Sans Mono,monospace">' + "\n".join(rows) + "</pre>")


def main():
    engine, out, *runs = sys.argv[1:]
    out = pathlib.Path(out).resolve()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for what, arguments, columns, rows in (("watch", runs[:1], 100, 32), ("watch-table", runs, 110, len(runs) + 1)):
            watch = watch_screens.Watch(str(pathlib.Path(engine).resolve()), arguments, columns, rows, pathlib.Path.cwd())
            watch.feed(3)
            frame_page(watch, folder / f"{what}.html")
            watch.quit()
            chromium((folder / f"{what}.html").as_uri(), out / f"{what}.png", round(columns * 8.43) + 20, rows * 17 + 20)
        server = Server(folder)
        log = folder / "net.json"
        (folder / "probe.html").write_text('<!doctype html><img src="http://127.0.0.1:9/x.png">')
        chromium(f"{server.origin}/probe.html", folder / "probe.png", 100, 100, log=log)
        if server.asked_for(log) != {"http://127.0.0.1:9/x.png"}:
            sys.exit(f"the log does not show what pages ask for: {server.asked_for(log)}")
        subprocess.run([engine, "report", *runs, "-o", str(folder / "report.html")], check=True)
        for width, height, dark in ((1280, 1600, False), (360, 1400, True)):
            chromium(f"{server.origin}/report.html", out / f"report-{width}.png", width, height, dark, log)
            if asked := server.asked_for(log):
                sys.exit(f"the page asked for {asked}")
    print("the page asks for nothing")


if __name__ == "__main__":
    main()
