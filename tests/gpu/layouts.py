#!/usr/bin/env python3
"""Every layout trains what one rank trains: a small model on as many GPUs as each layout has ranks.

Needs a built `engine`, the GPUs, and h5py (unless --no-weights). A line for each check; the exit code is 0 if all agree.

  fp32      losses of --iterations iterations in float32, against one rank's, within BAND: the bound of
            tests/train/layout_test.cpp for a few iterations, times 8 for what 50 amplify
  bf16      the same in bf16, within 0.01, at a learning rate that does not amplify rounding: one rank in smaller
            microbatches has to agree as well, as it differs from one rank in the order of sums alone
  documents fp32 again, and bf16, with data.documents = "masked": each document of a sample is seen by itself
  offload   the same with activations of some layers in the host's memory, against one rank that keeps them
  nccl      fp32 again with parallelism.exchange = "nccl", where ranks push else
  weights   after one iteration with a learning rate of 0, every logical tensor has the bits of one rank's
  resume    a checkpoint written half-way in each layout goes on in each other one, within BAND of one rank's losses

  tests/gpu/layouts.py                                        two GPUs: some minutes
  tests/gpu/layouts.py --layouts dp2tp2,pp4,zero3 --checks fp32,weights
  tests/gpu/layouts.py --layouts dp2tp2,pp4 --share --gpus 2  ranks share the GPUs: slow, but of any layout
  tests/gpu/layouts.py --layouts dp2,dp2tp2 --share --hosts 2 as on two hosts: each has its part of the GPUs, and NCCL
                                                              comes to the other one over the network only
  tests/gpu/layouts.py --device cpu --iterations 6 --no-weights --checks fp32,resume --layouts tp2,pp2
"""
import argparse
import contextlib
import itertools
import math
import pathlib
import shutil
import sys
import tempfile

sys.dont_write_bytecode = True
from small_run import ROOT, Failed, Small, free_port, metrics

BAND = 8 * 4 * 110 * 2.0 ** -23
BF16_BAND = 0.01
FP32 = "precision.compute=fp32"
BF16 = ("precision.compute=bf16", "optimizer.learning_rate=1e-4")
DOCUMENTS = ("data.documents=masked", "data.tokenizer.kind=byte")
OFFLOAD = "offload.activation_layers=1"
CHECKS = ("fp32", "bf16", "documents", "offload", "nccl", "weights", "resume")
# Axes, and whatever else; of the first letters of the name.
LAYOUTS = {
    "dp2": {"dp": 2, "zero_stage": 1},
    "tp2": {"tp": 2},
    "sp2": {"tp": 2, "sequence_parallel": "true"},
    "tp2push": {"tp": 2, "exchange": "push", "overlap": "off"},  # in line, by copy engines
    "sp2push": {"tp": 2, "sequence_parallel": "true", "exchange": "push", "overlap": "off"},
    "tp2direct": {"tp": 2, "overlap": "off"},  # sums read from the other rank's memory
    "sp2direct": {"tp": 2, "sequence_parallel": "true", "overlap": "off"},
    "cp2sp2direct": {"cp": 2, "tp": 2, "sequence_parallel": "true", "overlap": "off"},
    "cp2": {"cp": 2},
    "pp2": {"pp": 2},
    "pp2v": {"pp": 2, "virtual_stages": 2},
    "pp2zb": {"pp": 2, "schedule": "zero_bubble"},
    "zero2": {"dp": 2, "zero_stage": 2},
    "zero3": {"dp": 2, "zero_stage": 3},
    "cp2z2": {"cp": 2, "zero_stage": 2},
    "cp2z3": {"cp": 2, "zero_stage": 3},
    "dp4": {"dp": 4, "zero_stage": 1},
    "tp4": {"tp": 4, "sequence_parallel": "true"},
    "cp4": {"cp": 4},
    "pp4": {"pp": 4, "schedule": "zero_bubble"},
    "dp2tp2": {"dp": 2, "tp": 2, "sequence_parallel": "true", "zero_stage": 1},
    "dp2pp2": {"dp": 2, "pp": 2, "virtual_stages": 2},
    "tp2pp2": {"tp": 2, "pp": 2},
    "cp2tp2": {"cp": 2, "tp": 2},
    "zero3x4": {"dp": 4, "zero_stage": 3},
    "tp2pp2zb": {"tp": 2, "pp": 2, "schedule": "zero_bubble"},
    "tp2zero2": {"dp": 2, "tp": 2, "zero_stage": 2},
    "tp2zero3": {"dp": 2, "tp": 2, "zero_stage": 3},
    "dp2tp2pp2": {"dp": 2, "tp": 2, "pp": 2, "zero_stage": 1},
    "dp2tp2pp2v": {"dp": 2, "tp": 2, "pp": 2, "virtual_stages": 2, "zero_stage": 3},
    "dp2tp2pp2zb": {"dp": 2, "tp": 2, "pp": 2, "schedule": "zero_bubble"},
    "dp2cp2tp2": {"dp": 2, "cp": 2, "tp": 2, "sequence_parallel": "true", "zero_stage": 2},
}
TWO = ("dp2", "tp2", "sp2", "tp2push", "sp2push", "tp2direct", "sp2direct", "cp2", "pp2", "pp2v", "pp2zb", "zero2", "zero3",
       "cp2z2", "cp2z3")


def settings(layout):
    return [f"parallelism.{key}={value}" for key, value in LAYOUTS.get(layout, {}).items()]


class Bench:
    def __init__(self, options, folder):
        self.options, self.folder = options, folder
        self.small = Small(options.engine, folder, options.device)
        self.curves = {}

    def train(self, layout, out, *more):
        hosts = self.options.hosts if layout != "one" else 1
        own = [key for key in settings(layout) if hosts == 1 or "exchange" not in key]  # between hosts it is NCCL's
        words = [word for key in ("logging.interval=100", *own, *more) for word in ("--set", key)]
        words += ["--share-gpus"] if self.options.share else []
        if hosts > 1:
            ranks = math.prod(LAYOUTS[layout].get(axis, 1) for axis in ("dp", "tp", "pp", "cp"))
            self.train_on_hosts(hosts, out, *words, "--set", f"cluster.devices_per_node={ranks // hosts}")
        else:
            words += ["--processes"] if layout != "one" and self.options.device == "cpu" else []
            self.small.train(out, *words, limit_s=self.options.limit)
        return [line["loss"] for line in metrics(out)]

    def train_on_hosts(self, hosts, out, *words):
        """A host is a process that sees its part of the GPUs, and is another one for NCCL."""
        token = self.folder / "token"
        token.write_text("secret")
        coordinator = f"127.0.0.1:{free_port()}"

        def gpus(host):
            first = host * self.options.gpus // hosts
            return ",".join(map(str, range(first, max(first + 1, (host + 1) * self.options.gpus // hosts))))

        with contextlib.ExitStack() as stack:
            runs = [stack.enter_context(self.small.start(
                out, "--nodes", hosts, "--node-rank", host, "--coordinator", coordinator, "--token-file", token, *words,
                environment={"CUDA_VISIBLE_DEVICES": gpus(host),
                             "NCCL_HOSTID": f"host-{host}"})) for host in range(hosts)]
            for run in runs:
                run.end_well(self.options.limit)

    def curve(self, layout, *more):
        """Losses of a run of its own; one rank's are kept."""
        key = (layout, more)
        if key not in self.curves:
            out = self.folder / "out"
            self.curves[key] = self.train(layout, out, f"training.iterations={self.options.iterations}",
                                          "checkpoint.interval=0", *more)
            shutil.rmtree(out)
        return self.curves[key]

    def compare(self, layout, band, *more, reference=()):
        wanted = self.curve("one", *(reference or more))
        return differences(wanted, self.curve(layout, *more), band)

    def weights(self, layout):
        import h5py  # of the GPU's machine

        def tensors(name):
            out = self.folder / f"weights-{name}"
            if not out.exists():
                self.train(name, out, "training.iterations=1", "optimizer.learning_rate=0", "checkpoint.interval=1")
            found = {}
            with h5py.File(next((out / "checkpoints").glob("iteration_*/index.h5")), "r") as file:
                file.visititems(lambda path, item: found.update({path: item[()].tobytes()})
                                if isinstance(item, h5py.Dataset) else None)
            return found

        wanted, got = tensors("one"), tensors(layout)
        if set(wanted) != set(got):
            return f"other tensors: {sorted(set(wanted) ^ set(got))[:3]}", ""
        # One gradient, summed in another order, is in the moments.
        names = [name for name in wanted if not name.startswith("adam.")]
        wrong = [name for name in names if wanted[name] != got[name]]
        return (f"{len(wrong)} tensors differ, {wrong[0]} first" if wrong else ""), f"{len(names)} tensors"

    def resume(self, layouts):
        """(name, problem, what was seen) of each pair."""
        half, last = self.options.iterations // 2, self.options.iterations
        wanted = self.curve("one", FP32)
        for first in layouts:
            saved = self.folder / f"half-{first}"
            self.train(first, saved, f"training.iterations={half}", f"checkpoint.interval={half}", FP32)
            for second in layouts:
                if first == second:
                    continue
                out = self.folder / "resumed"
                shutil.copytree(saved, out)
                try:
                    got = self.train(second, out, f"training.iterations={last}", "checkpoint.interval=0", FP32)
                    seen = differences(wanted, got, BAND)
                except Failed as reason:
                    seen = f"\n{reason}", "no run"
                shutil.rmtree(out)
                yield f"{first} to {second}", *seen


def differences(wanted, got, band):
    """What is wrong, or nothing, and the largest difference."""
    if len(got) != len(wanted):
        return f"{len(got)} iterations, not {len(wanted)}", ""
    largest = max(abs(a / b - 1) for a, b in zip(got, wanted))
    return ("" if largest <= band else f"more than {band:.2g}"), f"off by at most {largest:.2g}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", type=pathlib.Path, default=ROOT / "build" / "engine")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--layouts", default=",".join(TWO), help=f"of {', '.join(LAYOUTS)}; default: those of two ranks")
    parser.add_argument("--checks", default="", help=f"of {', '.join(CHECKS)}; default: all")
    parser.add_argument("--no-weights", action="store_true", help="without the check that needs h5py")
    parser.add_argument("--iterations", type=int, default=50)
    parser.add_argument("--share", action="store_true", help="let ranks share GPUs where there are fewer")
    parser.add_argument("--hosts", type=int, default=1, help="so many stand-ins for hosts share the ranks and GPUs evenly")
    parser.add_argument("--gpus", type=int, default=2, help="of this machine, for --hosts (default: 2)")
    parser.add_argument("--limit", type=float, default=120, help="seconds that a run may take (default: 120)")
    options = parser.parse_args()
    layouts = options.layouts.split(",")
    checks = options.checks.split(",") if options.checks else [c for c in CHECKS if c != "weights" or not options.no_weights]
    for name, known in itertools.chain(((layout, LAYOUTS) for layout in layouts), ((check, CHECKS) for check in checks)):
        if name not in known:
            parser.error(f"'{name}' is none of {', '.join(known)}")
    failed = 0

    def report(check, name, problem, seen):
        nonlocal failed
        failed += 1 if problem else 0
        print(f"{'FAILED' if problem else 'ok':8}{check:10}{name:18}{seen}  {problem}", flush=True)

    def attempt(check, name, function, *arguments, **more):
        try:
            report(check, name, *function(*arguments, **more))
        except Failed as reason:
            report(check, name, f"\n{reason}", "no run")

    with tempfile.TemporaryDirectory(prefix="engine-layouts-") as folder:
        bench = Bench(options, pathlib.Path(folder))
        if "bf16" in checks:
            attempt("bf16", "one, smaller", bench.compare, "one", BF16_BAND, *BF16, "training.micro_batch=2", reference=BF16)
        for layout in layouts:
            if "fp32" in checks:
                attempt("fp32", layout, bench.compare, layout, BAND, FP32)
            if "bf16" in checks:
                attempt("bf16", layout, bench.compare, layout, BF16_BAND, *BF16)
            if "documents" in checks:
                attempt("documents", layout, bench.compare, layout, BAND, FP32, *DOCUMENTS)
                attempt("documents", f"{layout}, bf16", bench.compare, layout, BF16_BAND, *BF16, *DOCUMENTS)
            if "offload" in checks and LAYOUTS[layout].get("pp", 1) == 1:  # of four layers
                attempt("offload", layout, bench.compare, layout, BAND, FP32, OFFLOAD, reference=(FP32,))
            if "nccl" in checks:
                attempt("nccl", layout, bench.compare, layout, BAND, FP32, 'parallelism.exchange="nccl"', reference=(FP32,))
            if "weights" in checks:
                attempt("weights", layout, bench.weights, layout)
        if "resume" in checks:
            for pair in bench.resume(layouts):
                report("resume", *pair)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
