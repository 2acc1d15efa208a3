#!/usr/bin/python3
"""Runs that Open MPI's mpirun starts: a process a rank, with no options of ours.

The losses have the bits of `--processes`, in dp2, tp2 and pp2, and on two hosts, which are network namespaces. A rank
that is killed ends the run; SIGTERM to mpirun saves; without mpirun no rank goes on. What mpirun forbids or doubles is
refused. Needs mpirun (Debian's openmpi-bin) and, for namespaces, root.

usage: launchers.py ENGINE
"""
import contextlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "gpu"))
from layouts import BAND, differences  # noqa: E402
from small_run import LAYOUTS, ROOT, Failed, Run, Small, metrics, variables, wait_until  # noqa: E402

LIMIT_S = 60  # of a run of a few seconds
END_S = 10    # from a rank's end to the end of all (docs/processes.md)
USAGE, PEER_LOST = 2, 5
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe"]
# Long enough to be met alive; few lines, as a mpirun that ends its ranks does not read what they write any more.
ENDLESS = ("--set", "training.iterations=100000", "--set", "checkpoint.interval=0", "--set", "logging.interval=100000")
HOST_ADDRESSES = ("10.98.0.1", "10.98.0.2")


class Bench:
    def __init__(self, engine, folder):
        self.folder = folder
        self.small = Small(engine, folder, "cpu")
        self.engine = [engine, "run", self.small.recipe, "--device", "cpu", "--threads", "1"]
        self.references = {}

    def start(self, launcher, layout, out, *arguments):
        settings = [word for key in LAYOUTS.get(layout, ()) for word in ("--set", key)]
        log = self.folder / f"{out.name}.log"
        # A mpirun that is killed leaves files in TMPDIR.
        return Run([*launcher, *self.engine, "--out", out, *settings, *arguments], log, {"TMPDIR": str(self.folder)})

    def numbers(self, launcher, layout, out, *arguments):
        """Each iteration's loss and norm, in all their digits, and the log."""
        with self.start(launcher, layout, out, *arguments) as run:
            expect_code(run, LIMIT_S, 0)
            return [(line["loss"], line["grad_norm"]) for line in metrics(out)], run.log()

    def reference(self, layout):
        if layout not in self.references:
            processes = ["--processes"] if layout in LAYOUTS else []
            self.references[layout], _ = self.numbers([], layout, self.folder / f"reference-{layout}", *processes)
        return self.references[layout]

    @contextlib.contextmanager
    def training(self, out, *options):
        """A run of two ranks under mpirun that is some iterations on, and the process of each rank."""
        with self.start([*MPIRUN, *options, "-n", "2"], "dp2", out, *ENDLESS) as run:
            wait_until("some iterations", lambda: run.ended() or len(metrics(out)) >= 5, LIMIT_S)
            ranks = {own["OMPI_COMM_WORLD_RANK"]: pid for pid in run.processes()
                     if "OMPI_COMM_WORLD_RANK" in (own := variables(pid))}
            if sorted(ranks) != ["0", "1"]:
                raise Failed(f"there are other ranks than two: {ranks}\n{run.log()}")
            yield run, ranks


def expect_code(run, limit_s, wanted):
    code = run.wait(limit_s)
    if code != wanted:
        raise Failed(f"exit code {code}, not {wanted}\n{run.log()}")


def expect(run, text):
    if not re.search(text, run.log()):
        raise Failed(f"the log has no /{text}/\n{run.log()}")


def leaves_nothing(run):
    wait_until("no process is left", lambda: not run.processes(), END_S)


# -- cases
def layouts(bench):
    for layout in ("dp2", "tp2", "pp2"):
        got, log = bench.numbers([*MPIRUN, "-n", "2"], layout, bench.folder / f"mpirun-{layout}")
        if got != bench.reference(layout):
            raise Failed(f"{layout}: {got}, with --processes {bench.reference(layout)}")
        problem, _ = differences([loss for loss, _ in bench.reference("one")], [loss for loss, _ in got], BAND)
        if problem:
            raise Failed(f"{layout} against one rank: {problem}")
        if log.count("saved checkpoint of iteration 4 ") != 1 or "\033" in log:
            raise Failed(f"{layout}: not the log of rank 0 alone, in plain lines\n{log}")


def killed(bench):
    with bench.training(bench.folder / "killed") as (run, ranks):
        os.kill(ranks["1"], signal.SIGKILL)
        expect_code(run, END_S, 128 + signal.SIGKILL)
        expect(run, rf"engine run: rank 1 \(.*, pid {ranks['1']}\) was lost: connection closed\n")
        leaves_nothing(run)


def terminated(bench):
    """mpirun sends its ranks SIGTERM after so many seconds, and after as many again SIGKILL."""
    out = bench.folder / "terminated"
    with bench.training(out, "--mca", "odls_base_sigkill_timeout", "3") as (run, _):
        run.process.terminate()
        expect_code(run, END_S, 1)
        leaves_nothing(run)
    last = metrics(out)[-1]["iteration"]
    saved = [entry.name for entry in (out / "checkpoints").iterdir()]
    if saved != [f"iteration_{last:07d}"]:
        raise Failed(f"saved {saved} after iteration {last}")


def alone(bench):
    with bench.training(bench.folder / "alone") as (run, _):
        run.process.kill()
        run.process.wait()
        leaves_nothing(run)


def refused(bench):
    for count, arguments, text in (
            ("3", (), "Open MPI has started 3 processes, but the recipe's layout has 2 ranks"),
            ("2", ("--processes",), "Open MPI has started 2 processes, and each would start ranks of its own")):
        out = bench.folder / f"refused-{count}"
        with bench.start([*MPIRUN, "-n", count], "dp2", out, *arguments) as run:
            expect_code(run, LIMIT_S, USAGE)
            expect(run, f"engine run: {text}")
        if out.exists():
            raise Failed(f"{text}, but {out.name} was made")


def hosts(bench):
    with two_hosts(bench.folder) as mpirun:
        with bench.start(mpirun, "dp2", bench.folder / "unnamed") as run:
            expect_code(run, LIMIT_S, USAGE)
            expect(run, "mpirun -x ENGINE_COORDINATOR=HOST:PORT")
        got, _ = bench.numbers([*mpirun, "-x", f"ENGINE_COORDINATOR={HOST_ADDRESSES[0]}:29500"], "dp2",
                               bench.folder / "hosts")
    if got != bench.reference("dp2"):
        raise Failed(f"{got}, with --processes {bench.reference('dp2')}")


def through(agent):
    """Options of mpirun: other hosts are reached by this program, over this network. Open MPI 5 has PRRTE for it."""
    version = subprocess.run(["mpirun", "--version"], capture_output=True, text=True, check=True).stdout
    if int(re.search(r"(\d+)\.", version)[1]) < 5:
        return ["--mca", "plm_rsh_agent", agent, "--mca", "oob_tcp_if_include", "veth0"]
    return ["--prtemca", "plm_ssh_agent", agent, "--prtemca", "prte_if_include", "veth0"]


@contextlib.contextmanager
def two_hosts(folder):
    """mpirun with a rank on each of two network namespaces, each with a host name of its own."""
    names = [f"engine-{letter}{os.getpid()}" for letter in "mn"]
    ip = lambda *words: subprocess.run(["ip", *words], check=True)
    with contextlib.ExitStack() as stack:
        for name in names:
            ip("netns", "add", name)
            stack.callback(ip, "netns", "del", name)
        ip("-n", names[0], "link", "add", "veth0", "type", "veth", "peer", "name", "veth0", "netns", names[1])
        for name, address in zip(names, HOST_ADDRESSES):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", "veth0")
            ip("-n", name, "link", "set", "veth0", "up")
            ip("-n", name, "link", "set", "lo", "up")
        enter = 'exec ip netns exec "$name" unshare --uts sh -c \'hostname "$0"; exec "$@"\' "$name"'
        agent = folder / "agent"
        agent.write_text(f"#!/bin/sh\ncase $1 in {HOST_ADDRESSES[0]}) name={names[0]} ;; *) name={names[1]} ;; esac\n"
                         f'shift\n{enter} sh -c "$*"\n')
        agent.chmod(0o755)
        yield ["sh", "-c", f'name={names[0]}; {enter} "$@"', "sh", *MPIRUN, *through(agent),
               "--host", ",".join(HOST_ADDRESSES), "--map-by", "node", "-n", "2"]


def main():
    if shutil.which("mpirun") is None:
        raise SystemExit("there is no mpirun: tools/setup installs Open MPI")
    engine = pathlib.Path(sys.argv[1]).resolve()
    failed = 0
    with tempfile.TemporaryDirectory(prefix="engine-launchers-") as folder:
        bench = Bench(engine, pathlib.Path(folder))
        for case in (layouts, killed, terminated, alone, refused, hosts):
            begin = time.monotonic()
            try:
                case(bench)
                print(f"ok      {case.__name__:12}{time.monotonic() - begin:5.1f} s", flush=True)
            except Failed as error:
                failed += 1
                print(f"FAILED  {case.__name__}: {error}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
