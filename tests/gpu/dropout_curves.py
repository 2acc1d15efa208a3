#!/usr/bin/env python3
"""Curves of losses with dropout 0.1 of attention, of hidden states and of embeddings: GPT-2 124M on bytes of real text,
300 iterations each, in about three minutes of an H200. Exit code 0 if all are within the band that runs without dropout
have (docs/performance.md: mean difference of loss 0.01, largest 0.05), else 1.

  1. 64 samples of 1024 bytes in bf16: ours against PyTorch with the same dropouts, weights and batches, whose masks are its own
     (gpu_follow.py).
  2. 8 samples of 512 bytes in bf16: the kernels that are chosen against the reference kernels (precision.attention), with the
     same masks.
  3. the same against a run without dropout: that has to be outside of the band, or dropout did nothing.

Needs a built `engine`, a GPU, text as tools/quickstart prepares it, python3 with numpy and, for 1, PyTorch. DIR must not be there.

usage: dropout_curves.py [--engine PATH] [--data PREFIX] [--out DIR] [--python PYTHON] [--only 1,2,3] [--iterations N]
"""
import argparse
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
RECIPE = ROOT / "recipes" / "gpt2-124m-1gpu.toml"
FOLLOW = ROOT / "tests" / "oracles" / "gpu_follow.py"
DROPOUTS = [f"model.dropout.{what}=0.1" for what in ("attention", "hidden", "embedding")]
SMALL = ["training.micro_batch=8", "training.global_batch=8", "data.sequence_length=512"]


def call(command):
    begin = time.monotonic()
    code = subprocess.run([str(word) for word in command], check=False).returncode
    print(f"({time.monotonic() - begin:.0f} s, exit code {code})", flush=True)
    return code


class Curves:
    def __init__(self, options):
        self.options = options

    def train(self, name, iterations, settings):
        """A run with all settings of the comparison; its folder."""
        folder = self.options.out / name
        words = ["data.tokenizer.kind=byte", f'data.paths=["{self.options.data}"]', "schedule.warmup_fraction=0",
                 "evaluation.interval=0", "checkpoint.interval=0", f"training.iterations={iterations}", *settings]
        command = [self.options.engine, "run", RECIPE, "--out", folder, "--quiet", "--fresh"]
        for word in words:
            command += ["--set", word]
        print(f"-- {name}", flush=True)
        if call(command) != 0:
            sys.exit(f"dropout_curves: {name} failed")
        return folder

    def curve(self, name, settings):
        n = self.options.iterations
        return self.train(name, n, [f"schedule.warmup_iterations={max(1, n // 10)}", f"schedule.decay_iterations={n}",
                                    "optimizer.learning_rate=3e-4", *settings])

    def against_torch(self):
        start = self.train("start", 1, ["schedule.kind=constant", "schedule.min_learning_rate=0",
                                        "optimizer.learning_rate=0", *DROPOUTS])
        run = self.curve("dropout", DROPOUTS)
        return call([self.options.python, FOLLOW, "follow", run, "--checkpoint",
                     start / "checkpoints" / "iteration_0000001", "--log", "50"]) == 0

    def compare(self, run, other):
        return call([self.options.python, FOLLOW, "compare", run, other]) == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", type=pathlib.Path, default=ROOT / "build" / "engine")
    parser.add_argument("--data", default=str(ROOT / "runs" / "data" / "fortunes_text_document"))
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "runs" / "dropout-curves")
    parser.add_argument("--python", default=sys.executable, help="one that has numpy and PyTorch")
    parser.add_argument("--only", default="1,2,3")
    parser.add_argument("--iterations", type=int, default=300)
    options = parser.parse_args()
    if options.out.exists():
        sys.exit(f"dropout_curves: {options.out} is there; give another --out")
    wanted = options.only.split(",")
    curves = Curves(options)
    results = {}
    if "1" in wanted:
        results["ours against PyTorch"] = curves.against_torch()
    if "2" in wanted or "3" in wanted:
        small = curves.curve("small", [*SMALL, *DROPOUTS])
        if "2" in wanted:
            reference = curves.curve("small-reference", [*SMALL, *DROPOUTS, "precision.attention=reference"])
            results["chosen kernels against the reference kernels"] = curves.compare(small, reference)
        if "3" in wanted:
            without = curves.curve("small-without", [*SMALL, *[word.replace("=0.1", "=0") for word in DROPOUTS]])
            results["another curve than without dropout"] = not curves.compare(small, without)
    for what, passed in results.items():
        print(f"{what}: {'as it should be' if passed else 'WRONG'}")
    return 0 if all(results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
