#!/usr/bin/env python3
"""Races between the GPUs of a run: a recipe of two ranks is trained as it is, and again with every exchange held up on
each rank by times that nobody foresees (0 to 300 us, ENGINE_TEST_DELAY=SEED: backend/cuda/exchange/delay_communicator.h). What is
right in all orders gives the same bits: losses and norms of metrics.jsonl must be the same texts.

Needs a built `engine` and two GPUs. Layouts are run with exchange behind computation (parallelism.overlap; behind pushes
in line and direct sums nothing is computed), recorded as CUDA graphs and launch by launch (--no-graphs). A line for
each; the exit code is 0 if all are equal and the delays were felt, else 1. With --device cpu there are no delays: two
equal runs, which shows that this program works.

  tests/gpu/race.py                         a few minutes
  tests/gpu/race.py --layouts tp2 --seeds 20
"""
import argparse
import math
import pathlib
import shutil
import statistics
import sys
import tempfile

sys.dont_write_bytecode = True
from small_run import LAYOUTS, ROOT, Failed, Small, metrics

LEAST_EFFECT_MS = 0.1  # of an iteration with delays, of which each exchange has 0.15 ms on average
WARMUP = 10
DEFAULT = "tp2,sp2,tp2push,sp2push,tp2direct,sp2direct,cp2,dp2,pp2"


def train(small, layout, name, iterations, *arguments, environment=None):
    """The iterations as (loss, norm), by their exact texts, and the median of their times."""
    out = small.folder / "out"
    overlap = [] if layout == "pp2" else ["parallelism.overlap=on"]
    settings = [f"training.iterations={iterations}", *overlap, "checkpoint.interval=0",
                f"logging.interval={iterations}", *LAYOUTS[layout]]  # the last of a key counts
    words = [word for key in settings for word in ("--set", key)]
    small.train(out, "--processes", *words, *arguments, environment=environment)
    lines = metrics(out)
    shutil.rmtree(out)
    if len(lines) != iterations:
        raise SystemExit(f"{name}: {len(lines)} iterations, not {iterations}")
    numbers = [(repr(line["loss"]), repr(line["grad_norm"])) for line in lines]
    return numbers, statistics.median(line["elapsed_ms"] for line in lines[WARMUP:])


def compare(plain, delayed):
    """What differs first; empty where nothing does."""
    for iteration, (ours, others) in enumerate(zip(plain, delayed), 1):
        if ours != others:
            return f"iteration {iteration}: loss {ours[0]} and norm {ours[1]}, with delays {others[0]} and {others[1]}"
    return ""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", type=pathlib.Path, default=ROOT / "build" / "engine")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--layouts", default=DEFAULT, help=f"default: {DEFAULT}")
    parser.add_argument("--iterations", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=1, help="runs with delays, of each form (default: 1)")
    options = parser.parse_args()
    layouts = options.layouts.split(",")
    for layout in layouts:
        if layout not in LAYOUTS:
            parser.error(f"'{layout}' is none of {', '.join(LAYOUTS)}")
    if options.iterations <= WARMUP:
        parser.error(f"--iterations must be more than {WARMUP}")
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="engine-race-") as folder:
        small = Small(options.engine, pathlib.Path(folder), options.device)
        for layout in layouts:
            train(small, layout, layout, WARMUP + 1)  # chooses the algorithms of all that follow
            plain, plain_ms = train(small, layout, layout, options.iterations)
            for form in ([], ["--no-graphs"]) if options.device == "cuda" else ([],):
                for seed in range(1, options.seeds + 1):
                    name = f"{layout} seed {seed} {' '.join(form)}"
                    try:
                        delayed, delayed_ms = train(small, layout, name, options.iterations, *form,
                                                    environment={"ENGINE_TEST_DELAY": str(seed)})
                        problem = compare(plain, delayed)
                        if options.device == "cuda" and not form and delayed_ms < plain_ms + LEAST_EFFECT_MS:
                            problem = problem or "the delays were not felt"
                    except Failed as reason:  # as where a race made numbers that are not finite
                        delayed_ms, problem = math.nan, f"no run\n{reason}"
                    wrong += 1 if problem else 0
                    print(f"{'FAILED' if problem else 'ok':8}{name:28} {plain_ms:.2f} ms, with delays {delayed_ms:.2f} ms"
                          f"  {problem}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
