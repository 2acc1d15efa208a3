#!/usr/bin/env python3
"""Faults of real runs of two ranks, through the program: whatever happens to a rank, the run ends within a bound, with
the documented exit code and a message that says what happened, leaves no process and no GPU memory, and the last
checkpoint is whole: a next run goes on from it. Strangers that knock at the rendezvous do not disturb a run.

Needs a built `engine` and, for --device cuda, two GPUs that nobody else uses. Prints a line for each fault and a table
of the kinds; the exit code is 0 if all went as it should, else 1. Logs of what did not are printed, and kept (--keep).

  tests/gpu/faults.py                                  on two GPUs: about half an hour
  tests/gpu/faults.py --share --only kill,stop,connect,hang,recipe  two ranks on one GPU
  tests/gpu/faults.py --device cpu --times 6           processes on the CPU: four minutes
  tests/gpu/faults.py --only kill,stop --layouts tp2   some faults, in one layout

  kill       SIGKILL of a random rank at a random moment, --times times: half of them before training has begun
  stop       SIGSTOP of each rank: lost, after --heartbeat-timeout
  connect    SIGKILL, and SIGSTOP with a long --heartbeat-timeout, of rank 1 while NCCL connects (cuda only)
  hang       SIGSTOP with a long --heartbeat-timeout: of rank 0 for a while, of rank 1 until --hang-timeout ends the run
  recipe     a rank with another learning rate, and one with another model, by the launcher's variables
  nodes      two nodes, one with another model
  token      two nodes, one with a wrong token
  port       the coordinator's port is taken
  silent     a stranger that connects before the ranks do, and one in training, who say nothing
  garbage    strangers that send noise, a frame without end, a wrong token
  again      SIGKILL of rank 1, and later of rank 0, in a run that is started again with its state from memory, launched as a
             graph and kernel by kernel: it ends well with the bits of a run without; whether the rank that was left kept
             its process is said
  traced     a weight that is not finite once, and something that changes on its way once, of each rank: guard.trace names
             the rank, in the layouts TRACED as well
"""
import argparse
import collections
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
from small_run import LAYOUTS, POLL_S, ROOT, Failed, Small, free_port, metrics, wait_until

# Exit codes of engine/cli/device.h.
FAILED, PEER_LOST, MACHINE = 1, 5, 16
KILLED = 128 + signal.SIGKILL
END_S = 10       # from a rank's end to the end of all (docs/processes.md)
SLACK_S = 3      # of a busy machine
LINGER_S = 5     # of a rendezvous whose run has ended, for ranks that have not yet heard of it
HELLO_S = 5      # after which a stranger who says nothing is dropped
HEARTBEAT_S, HANG_S, JOIN_S = 2, 3, 10
NEVER = 30_000  # iterations: minutes; the order of many more samples takes long to make
ENDLESS = ("--set", f"training.iterations={NEVER}")
TRACED = ("tp2", "sp2", "cp2", "cp2z3", "tp2push")  # exchange of each kind: in line, beside computation, by copy engines
SAVED = re.compile(r"iteration_(\d+)$")


class Bench:
    def __init__(self, options, folder):
        self.options = options
        self.small = Small(options.engine, folder, options.device)
        self.random = random.Random(options.seed)
        self.cases = 0
        self.bases = {}
        for layout in options.layouts:  # two checkpoints to fall back on; algorithms are chosen here
            self.bases[layout] = folder / f"base-{layout}"
            with self.start(self.bases[layout], layout, "--processes") as run:
                run.end_well(options.limit)
        self.memory = gpu_memory(options.device)

    def out(self, layout):
        """A folder of its own that already holds two checkpoints."""
        self.cases += 1
        return pathlib.Path(shutil.copytree(self.bases[layout], self.small.folder / f"out-{self.cases}"))

    def start(self, out, layout, *arguments, environment=None):
        share = ("--share-gpus",) if self.options.share else ()
        return self.small.start(out, *settings(layout), *share, *arguments, environment=environment)

    def training(self, out, run, more=3):
        """Waits until so many iterations more are done."""
        done = len(metrics(out)) + more
        wait_until(f"{more} iterations", lambda: run.ended() or len(metrics(out)) >= done, self.options.limit)
        if run.ended():
            raise Failed(f"the run ended too soon, with {run.wait(1)}")

    def ended(self, run, limit_s, codes, *texts):
        """The seconds that it took. `codes`: of the allowed exit codes; `texts`: what the log must have."""
        begin = time.monotonic()
        code = run.wait(limit_s)
        seconds = time.monotonic() - begin
        if code is None:
            raise Failed(f"has not ended within {limit_s} s")
        if code not in codes:
            raise Failed(f"exit code {code}, not {' or '.join(map(str, codes))}")
        for text in texts:
            if not re.search(text, run.log(), re.MULTILINE):
                raise Failed(f"the log has no /{text}/")
        return seconds

    def leaves_nothing(self, runs, out, layout):
        """After a fault: no process, no memory, and a checkpoint to go on from."""
        wait_until("no process is left", lambda: not any(run.processes() for run in runs), 2)
        wait_until(f"GPU memory is back at {self.memory} MiB",
                   lambda: all(now <= before for now, before in zip(gpu_memory(self.options.device), self.memory)), 10)
        newest = max(int(found[1]) for entry in (out / "checkpoints").iterdir() if (found := SAVED.match(entry.name)))
        saved = out / "checkpoints" / f"iteration_{newest:07d}"
        info = subprocess.run([self.options.engine, "checkpoint", "info", "--verify", saved], capture_output=True,
                              text=True, check=False)
        if info.returncode != 0:
            raise Failed(f"{saved.name} is not whole: {info.stdout}{info.stderr}")
        with self.start(out, layout, "--processes", "--set", f"training.iterations={newest + 2}") as again:
            self.ended(again, self.options.limit, [0], rf"^resumed from {re.escape(str(saved))} after iteration {newest}$")
        steps = [line["iteration"] for line in metrics(out)]
        if steps != list(range(1, newest + 3)):
            raise Failed(f"metrics.jsonl of the resumed run has iterations {steps}, not 1 to {newest + 2}")


def settings(layout):
    return [word for key in LAYOUTS[layout] for word in ("--set", key)]


def gpu_memory(device):
    """Used MiB of each GPU."""
    if device == "cpu":
        return []
    text = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"], check=True,
                          capture_output=True, text=True).stdout
    return [int(line) for line in text.split()]


def rank_variables(rank, number):
    """As a launcher that starts the ranks by itself sets them."""
    return {"ENGINE_RANK": str(rank), "ENGINE_WORLD_SIZE": "2", "ENGINE_LOCAL_RANK": str(rank), "ENGINE_LOCAL_SIZE": "2",
            "ENGINE_COORDINATOR": f"127.0.0.1:{number}", "ENGINE_TOKEN": "t"}


# -- faults: each yields (layout, what, seconds to the end)
def kill(bench):
    for number in range(bench.options.times):
        layout = bench.options.layouts[number % len(bench.options.layouts)]
        out, rank, late = bench.out(layout), bench.random.randrange(2), number // len(bench.options.layouts) % 2 == 1
        with bench.start(out, layout, "--processes", *ENDLESS) as run:
            pids = run.ranks(2)
            if late:
                bench.training(out, run)
            wait_s = bench.random.uniform(0, 1 if late else bench.options.setup)
            time.sleep(wait_s)
            os.kill(pids[rank], signal.SIGKILL)
            what = f"rank {rank}, {wait_s:.3f} s {'of training' if late else 'after its start'}"
            seconds = bench.ended(run, END_S + SLACK_S, [KILLED],
                                  rf"^engine run: rank {rank} \(pid {pids[rank]}\) was killed by signal 9 \(Killed\)$")
            bench.leaves_nothing([run], out, layout)
        yield layout, what, seconds


def stop(bench):
    for layout in bench.options.layouts:
        for rank in (0, 1):
            out = bench.out(layout)
            with bench.start(out, layout, "--processes", "--heartbeat-timeout", HEARTBEAT_S, *ENDLESS) as run:
                pids = run.ranks(2)
                bench.training(out, run)
                os.kill(pids[rank], signal.SIGSTOP)
                seconds = bench.ended(
                    run, HEARTBEAT_S + END_S + SLACK_S, [PEER_LOST],
                    rf"rank {rank} \([^)]*pid {pids[rank]}\) was lost: not heard of for {HEARTBEAT_S} s$",
                    rf"^engine run: rank {rank} \(pid {pids[rank]}\) did not end by itself: it is ended$")
                bench.leaves_nothing([run], out, layout)
            yield layout, f"rank {rank}", seconds


def connect(bench):
    if bench.options.device != "cuda":
        return
    for number, layout in (signal.SIGKILL, "tp2"), (signal.SIGSTOP, "tp2"), (signal.SIGSTOP, "pp2"):
        if layout not in bench.options.layouts:
            continue
        out, notes = bench.out(layout), bench.small.folder / f"nccl-{bench.cases}"
        nccl = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": f"{notes}-%p"}
        with bench.start(out, layout, "--processes", "--heartbeat-timeout", 600, "--hang-timeout", HANG_S, "--set",
                         "parallelism.exchange=nccl", *ENDLESS, environment=nccl) as run:
            pids = run.ranks(2)
            said = pathlib.Path(f"{notes}-{pids[0]}")
            wait_until("NCCL connects", lambda: run.ended() or said.exists() and "Init START" in said.read_text(),
                       bench.options.limit)
            os.kill(pids[1], number)
            if number == signal.SIGKILL:
                seconds = bench.ended(run, END_S + SLACK_S, [KILLED], r"\) was killed by signal 9 \(Killed\)$")
            else:
                seconds = bench.ended(run, HANG_S + END_S + SLACK_S, [PEER_LOST],
                                      rf"the run hangs: no rank got on for {HANG_S} s$",
                                      r"^    rank 0 \([^)]*\): for [\d.]+ s at connecting ranks 0, 1 by NCCL$",
                                      r"^    rank 1 \([^)]*\): for [\d.]+ s at connecting ")
            if metrics(out)[-1]["iteration"] > max(metrics(bench.bases[layout])[-1]["iteration"], 0):
                raise Failed("it was not while NCCL connected: it has trained")
            bench.leaves_nothing([run], out, layout)
        yield layout, f"{signal.Signals(number).name} of rank 1", seconds


def hang(bench):
    for layout in bench.options.layouts:
        out = bench.out(layout)
        with bench.start(out, layout, "--processes", "--heartbeat-timeout", 600, "--hang-timeout", HANG_S, "--set",
                         "checkpoint.interval=0", *ENDLESS) as run:
            pids = run.ranks(2)
            bench.training(out, run)
            time.sleep(HANG_S)  # so that each rank has said what it is at
            os.kill(pids[0], signal.SIGSTOP)  # with the watchdog, whose time stands still too: nobody is blamed
            time.sleep(2 * HANG_S)
            os.kill(pids[0], signal.SIGCONT)
            bench.training(out, run)
            os.kill(pids[1], signal.SIGSTOP)
            seconds = bench.ended(run, HANG_S + LINGER_S + END_S + SLACK_S, [PEER_LOST],
                                  rf"the run hangs: no rank got on for {HANG_S} s$",
                                  *(rf"^    rank {rank} \([^)]*pid {pids[rank]}\): for [\d.]+ s at \S" for rank in (0, 1)),
                                  *([rf"^    rank 0 .*; its GPU is in \S.*(, with ranks 0, 1| rank 1)"]
                                    if bench.options.device == "cuda" else []))
            bench.leaves_nothing([run], out, layout)
        yield layout, "rank 1, when rank 0 had been stopped and had gone on", seconds


def recipe(bench):
    others = (("another learning rate", "optimizer.learning_rate=0.5", FAILED,
               r"the recipe is not that of rank 0:\n    optimizer\.learning_rate: 0\.001 on rank 0, 0\.5 here"),
              ("another model", "model.mlp.hidden=64", PEER_LOST, r" runs another recipe: plan hash \w+ against \w+ of rank 0"))
    for layout in bench.options.layouts:
        for what, setting, code, text in others:
            out, number = bench.out(layout), free_port()
            with bench.start(out, layout, *ENDLESS, environment=rank_variables(0, number)) as zero, \
                    bench.start(out, layout, *ENDLESS, "--set", setting, environment=rank_variables(1, number)) as one:
                seconds = bench.ended(zero, bench.options.limit, [PEER_LOST])
                seconds += bench.ended(one, END_S + SLACK_S, [code], text)
                bench.leaves_nothing([zero, one], out, layout)
            yield layout, what, seconds


def nodes(bench, what="another model", token="secret", arguments=("--set", "model.mlp.hidden=64"),
          texts=(r" runs another recipe: plan hash ", r" runs another recipe: plan hash ")):
    """On GPUs, each node sees one."""
    for layout in bench.options.layouts:
        out, port = bench.out(layout), free_port()
        (bench.small.folder / "token").write_text("secret\n")

        def node(number, *more, token_file):
            return bench.start(out, layout, "--nodes", 2, "--node-rank", number, "--coordinator", f"127.0.0.1:{port}",
                               "--token-file", token_file, "--join-timeout", JOIN_S, *ENDLESS, *more,
                               environment={"CUDA_VISIBLE_DEVICES": str(number)})

        (bench.small.folder / "other").write_text(token)
        with node(0, token_file=bench.small.folder / "token") as zero, \
                node(1, *arguments, token_file=bench.small.folder / "other") as one:
            limit_s = JOIN_S + bench.options.setup + END_S + SLACK_S
            seconds = bench.ended(zero, limit_s, [PEER_LOST], texts[0])
            bench.ended(one, limit_s, [PEER_LOST], texts[1])
            bench.leaves_nothing([zero, one], out, layout)
        yield layout, what, seconds


def token(bench):
    yield from nodes(bench, "of node 1", "guessed", (),
                     (rf"rank 1 did not come within {JOIN_S} s; somebody came with another token, and was refused: ", r": refused: token: "))


def port(bench):
    layout = bench.options.layouts[0]
    out = bench.out(layout)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        with bench.start(out, layout, "--processes", "--coordinator", f"127.0.0.1:{number}", *ENDLESS) as run:
            seconds = bench.ended(run, SLACK_S + HELLO_S, [FAILED],
                                  rf"^engine run: port {number} of 127\.0\.0\.1 is taken by another program; give another one$")
            bench.leaves_nothing([run], out, layout)
    yield layout, "", seconds


def strangers(bench, what, knock):
    """A run at whose rendezvous somebody knocks before the ranks have met, and in training: it goes on."""
    for layout in bench.options.layouts:
        out, number = bench.out(layout), free_port()
        with bench.start(out, layout, "--processes", "--coordinator", f"127.0.0.1:{number}", *ENDLESS) as run:
            with knock_at(number, bench.options.limit) as early:
                knock(early)
            bench.training(out, run)
            with knock_at(number, 1) as late:
                before, seconds = len(metrics(out)), knock(late)
            if seconds > 1 and len(metrics(out)) == before:
                raise Failed("nothing was trained while a stranger was there")
            bench.training(out, run)
            run.process.send_signal(signal.SIGTERM)
            bench.ended(run, END_S + SLACK_S, [0], r"^stopped by a signal after iteration \d+$")
            bench.leaves_nothing([run], out, layout)
        yield layout, what, seconds


def knock_at(number, limit_s):
    end = time.monotonic() + limit_s
    while True:
        try:
            return socket.create_connection(("127.0.0.1", number), 1)
        except OSError as error:
            if time.monotonic() > end:
                raise Failed(f"port {number} is not open within {limit_s} s") from error
            time.sleep(POLL_S)


def until_dropped(stranger, limit_s):
    """The seconds until the other end hangs up, whatever it says before."""
    begin = time.monotonic()
    stranger.settimeout(limit_s)
    try:
        while stranger.recv(4096):
            pass
    except TimeoutError as error:
        raise Failed(f"a stranger was not dropped within {limit_s} s") from error
    except ConnectionError:
        pass
    return time.monotonic() - begin


def silent(bench):
    yield from strangers(bench, "dropped after", lambda stranger: until_dropped(stranger, bench.options.setup + HELLO_S + SLACK_S))


def garbage(bench):
    def frame(*fields):
        text = b"\x01" + b"".join(struct.pack("<I", len(field)) + field for field in fields)
        return struct.pack("<I", len(text)) + text

    hello = frame(b"engine rendezvous 3", b"nonce", b"1", b"2", b"", b"", b"", b"", b"guessed")
    for what, noise in (("noise", bench.random.randbytes(4096)), ("a frame without end", b"\xff" * 8),
                        ("a wrong token", hello)):
        def knock(stranger, noise=noise):
            stranger.sendall(noise)
            return until_dropped(stranger, bench.options.setup + SLACK_S)

        yield from strangers(bench, what, knock)


def again(bench):
    iterations = 600
    settings_of_all = ("--processes", "--set", "precision.deterministic=true", "--set", f"training.iterations={iterations}",
                       "--set", "checkpoint.interval=0", "--set", "checkpoint.memory=true", "--set", "checkpoint.memory_interval=10")
    for layout in bench.options.layouts:
        whole = bench.small.folder / f"whole-{layout}"
        with bench.start(whole, layout, *settings_of_all) as run:
            run.end_well(bench.options.limit)
        for graphs in ((), ("--no-graphs",)) if bench.options.device == "cuda" else ((),):
            bench.cases += 1
            out = bench.small.folder / f"again-{bench.cases}"
            with bench.start(out, layout, *settings_of_all, "--max-restarts", 3, *graphs) as run:
                said = []
                for rank in (1, 0):
                    said.append(lose(bench, run, out, rank))
                run.end_well(bench.options.limit)
            for before, after in zip(metrics(whole), metrics(out), strict=True):
                for key in ("iteration", "loss", "grad_norm"):
                    if before[key] != after[key]:
                        raise Failed(f"{key} of iteration {before['iteration']} is {after[key]}, and {before[key]} in a run without faults")
            yield layout, " ".join([*graphs, *(what for what, _ in said)]), max(seconds for _, seconds in said)


def lose(bench, run, out, rank):
    """Kills the rank in training; what became of the other one, and the seconds to the next iteration."""
    bench.training(out, run, more=40)
    pids, done = run.ranks(2), metrics(out)[-1]["iteration"]
    begin = time.monotonic()
    os.kill(pids[rank], signal.SIGKILL)
    # What is done again is cut off first.
    wait_until("the lost rank's iterations are trained", lambda: run.ended() or
               metrics(out)[-1:] and metrics(out)[-1]["iteration"] > done and run.ranks(2)[rank] != pids[rank], bench.options.limit)
    if run.ended():
        raise Failed(f"the run ended, with {run.wait(1)}")
    kept = run.ranks(2)[1 - rank] == pids[1 - rank]
    return f"rank {rank} lost, rank {1 - rank} {'kept' if kept else 'started anew'}", time.monotonic() - begin


def traced(bench):
    layouts = dict.fromkeys([*bench.options.layouts, *TRACED])
    for layout in layouts:
        for rank in (0, 1):
            tensor = "layers.3.mlp.norm.weight" if layout == "pp2" and rank == 1 else "layers.0.mlp.norm.weight"
            # Of norms every element counts; where others are drawn, some seed draws one that something reads.
            for what, at, seeds, verb in ((tensor, "forward", 1, "gave"), ("received", "exchange", 8, "got")):
                seconds = spoilt(bench, layout, f"rank={rank},iteration=3,at={at},kind=nan:{what}", seeds,
                                 rf"^rank {rank} \(\S+\) {verb} other bits in iteration 3, in ",
                                 alone=verb == "gave" or layout != "pp2")
                yield layout, f"rank {rank}, {what}", seconds


def spoilt(bench, layout, fault, seeds, text, alone):
    """The seconds of a run that the fault ends, with one of the seeds. `alone`: one rank is named; else, as stages' programs differ, all
    that got other bits in the iteration."""
    for seed in range(seeds):
        out = bench.small.folder / f"traced-{bench.cases}"
        bench.cases += 1
        checked = ("precision.deterministic=true", "guard.rerun=true", "guard.trace=true", "debug.faults=true")
        with bench.start(out, layout, "--processes", "--fault", f"{fault},seed={seed}",
                         *(word for key in checked for word in ("--set", key))) as run:
            begin = time.monotonic()
            if run.wait(bench.options.limit) == 0:
                continue
            bench.ended(run, 1, [MACHINE], text)
            blamed = re.findall(r"^rank \d+ \(\S+\) \w+ other bits in .*$", run.log(), re.MULTILINE)
            if alone and len(blamed) != 1:
                raise Failed(f"blames {blamed}")
            return time.monotonic() - begin
    raise Failed(f"{fault}: the run ended well with {seeds} seeds")


FAULTS = {fault.__name__: fault for fault in (kill, stop, connect, hang, recipe, nodes, token, port, silent, garbage, again, traced)}


def measure_setup(bench):
    """The time from the start of a run to its first iterations: within it, `kill` strikes before training."""
    layout = bench.options.layouts[0]
    out = bench.out(layout)
    begin = time.monotonic()
    with bench.start(out, layout, "--processes", *ENDLESS) as run:
        bench.training(out, run, more=1)
        seconds = time.monotonic() - begin
    wait_until("no process is left", lambda: not run.processes(), END_S)
    return seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", type=pathlib.Path, default=ROOT / "build" / "engine")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--share", action="store_true", help="let ranks share GPUs where there are fewer")
    parser.add_argument("--times", type=int, default=20, help="of kill (default: 20)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--layouts", default="dp2,tp2,pp2", help=f"of {', '.join(LAYOUTS)} (default: dp2,tp2,pp2)")
    parser.add_argument("--only", default=",".join(FAULTS), help="faults, of those above")
    parser.add_argument("--limit", type=float, default=120, help="seconds that a run may take to train or to end well")
    parser.add_argument("--keep", action="store_true", help="keep logs and folders")
    options = parser.parse_args()
    options.layouts, only = options.layouts.split(","), options.only.split(",")
    for name, known in [(name, LAYOUTS) for name in options.layouts] + [(name, FAULTS) for name in only]:
        if name not in known:
            parser.error(f"'{name}' is none of {', '.join(known)}")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="engine-faults-"))
    bench = Bench(options, folder)
    options.setup = measure_setup(bench)
    print(f"training begins after {options.setup:.1f} s; logs in {folder}", flush=True)
    results = collections.defaultdict(list)
    failed = 0
    for name in only:
        first = bench.small.number + 1  # log of what is tried now
        try:
            for layout, what, seconds in FAULTS[name](bench):
                first = bench.small.number + 1
                results[name].append(seconds)
                print(f"ok      {name:8} {layout:4} {seconds:6.2f} s  {what}", flush=True)
        except Failed as error:
            failed += 1
            results[name].append(None)
            print(f"FAILED  {name:8} {error}; the rest of this fault is left out", flush=True)
            for log in (folder / f"{number}.log" for number in range(first, bench.small.number + 1)):
                print(f"--- {log}\n{log.read_text(errors='replace')[-3000:]}---", flush=True)
    print("\n| fault | times | longest s | |\n|---|---|---|---|")
    for name in only:
        good = [seconds for seconds in results[name] if seconds is not None]
        print(f"| {name} | {len(good)} | {max(good, default=0):.2f} | {'FAILED' if None in results[name] else 'ok'} |")
    if not options.keep and not failed:
        shutil.rmtree(folder)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
