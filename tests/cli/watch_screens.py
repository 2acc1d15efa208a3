#!/usr/bin/python3
"""What `engine watch` shows on a terminal, as another program's terminal emulator (python3-pyte) has it, against golden screens.

usage: watch_screens.py ENGINE     ENGINE_UPDATE_GOLDEN=1 writes the golden screens anew. Exit code 77: there is no pyte.
"""
import fcntl
import json
import math
import os
import pathlib
import pty
import select
import struct
import subprocess
import sys
import tempfile
import termios
import time

try:
    import pyte
except ImportError:
    print("skipped: python3-pyte is not installed")
    sys.exit(77)

GOLDEN = pathlib.Path(__file__).resolve().parent / "golden"
ITERATIONS = 300


def stamp(seconds):
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(1790000000 + seconds)) + ".%03dZ" % round(seconds % 1 * 1000)


def records():
    now = 0.0
    for i in range(1, ITERATIONS + 1):
        now += 0.25
        yield {"iteration": i, "timestamp": stamp(now), "loss": 2 + 3 * math.exp(-i / 50) + 0.05 * math.sin(i),
               "grad_norm": 1 / (1 + i / 30), "learning_rate": 1e-3 * min(1, i / 40) * (1 - i / 400), "global_batch": 8,
               "elapsed_ms": 250.0 + 20 * math.sin(i / 9), "tokens_per_second": 4096 + 100 * math.cos(i / 9), "mfu": 0.4,
               "rank_busy_ms": [200.0, 210.0, 205.0, 230.0]}
        if i % 100 == 0:
            now += 3
            yield {"iteration": i, "timestamp": stamp(now), "validation_loss": 2.1 + 3 * math.exp(-i / 50), "elapsed_ms": 3000.0}


def make_run(folder, outcome):
    folder.mkdir()
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records()))
    (folder / "outcome.json").write_text(json.dumps(outcome))


class Watch:
    """`engine watch` on a terminal, and the screen that it makes."""

    def __init__(self, engine, arguments, columns, rows, folder):
        self.screen = pyte.Screen(columns, rows)
        self.stream = pyte.ByteStream(self.screen)
        self.master, terminal = pty.openpty()
        self.resize(columns, rows)
        environment = {**os.environ, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}
        environment.pop("NO_COLOR", None)
        self.process = subprocess.Popen([engine, "watch", "--interval", "0.2", *arguments], stdin=terminal, stdout=terminal,
                                        stderr=terminal, cwd=folder, env=environment, start_new_session=True)
        os.close(terminal)

    def resize(self, columns, rows):
        self.screen.resize(rows, columns)
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def feed(self, seconds):
        until = time.monotonic() + seconds
        while select.select([self.master], [], [], max(0, until - time.monotonic()))[0]:
            try:
                data = os.read(self.master, 65536)
            except OSError:
                return
            if not data:
                return
            self.stream.feed(data)

    def text(self):
        return "".join(line.rstrip() + "\n" for line in self.screen.display)

    def settles_at(self, wanted):
        """Whether the screen is this one within 30 s."""
        for _ in range(60):
            self.feed(0.5)
            if self.text() == wanted:
                return True
        return False

    def quit(self):
        os.write(self.master, b"q")
        until = time.monotonic() + 30
        while self.process.poll() is None and time.monotonic() < until:
            self.feed(0.1)
        self.feed(1)  # what it wrote last
        return self.process.poll()


failures = []


def check(what, ok, detail=""):
    if not ok:
        failures.append(what)
        print(f"FAILED: {what}\n{detail}")


def golden(name, watch):
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("ENGINE_UPDATE_GOLDEN"):
        watch.feed(3)
        path.write_text(watch.text())
        return
    check(name, watch.settles_at(path.read_text()), watch.text())


def main():
    engine = str(pathlib.Path(sys.argv[1]).resolve())
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        make_run(folder / "good", {"outcome": "finished", "iteration": ITERATIONS, "iterations": ITERATIONS,
                                   "host": "node0", "ended": "2026-09-21T14:14:53Z"})
        make_run(folder / "bad", {"outcome": "failed", "iteration": ITERATIONS, "iterations": 400, "retryable": False,
                                  "reason": "iteration 301: \u001b[31mloss nan", "host": "node1", "ended": "2026-09-21T14:14:54Z"})
        for columns, rows in ((80, 24), (120, 40)):
            watch = Watch(engine, ["good"], columns, rows, folder)
            golden(f"watch-{columns}x{rows}", watch)
            check("the state is green", watch.screen.buffer[0][6].fg == "green", str(watch.screen.buffer[0][6]))
            check("no cursor", watch.screen.cursor.hidden)
            if columns == 120:  # nothing of a larger frame stays
                watch.resize(80, 24)
                golden("watch-80x24", watch)
            check("q ends it", watch.quit() == 0)
            check("the cursor is back", not watch.screen.cursor.hidden)
        watch = Watch(engine, ["good", "bad"], 100, 10, folder)
        golden("watch-table-100x10", watch)
        check("a failure is red", watch.screen.buffer[2][6].fg == "red", str(watch.screen.buffer[2][6]))
        check("q ends the table", watch.quit() == 0)
    print(f"{len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
