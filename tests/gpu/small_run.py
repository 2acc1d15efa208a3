"""A small recipe for faults.py and race.py, and the program that trains it: in a process group of its own, its output
in a file, and found again by a mark in its environment, whatever it started."""
import contextlib
import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import time
import uuid

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
MARK = "ENGINE_TEST_MARK"
POLL_S = 0.005
LAYOUTS = {
    "dp2": ("parallelism.dp=2", "parallelism.zero_stage=1"),
    "tp2": ("parallelism.tp=2",),
    "sp2": ("parallelism.tp=2", "parallelism.sequence_parallel=true"),
    "tp2push": ("parallelism.tp=2", "parallelism.exchange=push", "parallelism.overlap=off"),
    "sp2push": ("parallelism.tp=2", "parallelism.sequence_parallel=true", "parallelism.exchange=push",
                "parallelism.overlap=off"),
    "tp2direct": ("parallelism.tp=2", "parallelism.overlap=off"),  # sums read from the other rank's memory
    "sp2direct": ("parallelism.tp=2", "parallelism.sequence_parallel=true", "parallelism.overlap=off"),
    "cp2": ("parallelism.cp=2",),
    "cp2z3": ("parallelism.cp=2", "parallelism.zero_stage=3"),
    "pp2": ("parallelism.pp=2",),
}
# Sizes of the model, which on a GPU takes the kernels that large models take.
SIZES = {
    "cpu": {"layers": 4, "hidden": 16, "heads": 2, "ffn": 32, "sequence": 16, "compute": "fp32"},
    "cuda": {"layers": 4, "hidden": 256, "heads": 4, "ffn": 1024, "sequence": 256, "compute": "bf16"},
}
RECIPE = """[model]
layers = {layers}
hidden = {hidden}
vocab = 257
vocab_multiple = 128
max_positions = {sequence}
attention = {{ heads = {heads}, position = "learned", bias = true }}
mlp = {{ hidden = {ffn} }}
[data]
paths = ["{data}"]
split = "1,0,0"
sequence_length = {sequence}
[precision]
compute = "{compute}"
[optimizer]
learning_rate = 1e-3
[schedule]
kind = "constant"
[training]
global_batch = 16
micro_batch = 4
iterations = 4
[checkpoint]
interval = 2
keep = 2
[cluster]  # its rates decide where reductions stand
matmul_flops = 668e12
intra_node_bandwidth = 360e9
"""


class Small:
    """The recipe and its data in a folder, for --device cpu or cuda."""

    def __init__(self, engine, folder, device):
        self.engine, self.folder, self.device = engine, folder, device
        self.recipe = folder / "small.toml"
        self.number = 0
        os.environ["ENGINE_CACHE"] = str(folder / "cache")  # one choice of algorithms for all runs
        words = random.Random(1)
        lines = [json.dumps({"text": " ".join(str(words.randrange(1000)) for _ in range(40))}) for _ in range(2000)]
        (folder / "text.jsonl").write_text("\n".join(lines))
        subprocess.run([engine, "data", "build", "--input", folder / "text.jsonl", "--output-prefix", folder / "text",
                        "--append-eod"], check=True, capture_output=True)
        self.recipe.write_text(RECIPE.format(data=folder / "text_text_document", **SIZES[device]))

    def start(self, out, *arguments, environment=None):
        self.number += 1
        threads = ["--threads", "2"] if self.device == "cpu" else []
        return Run([self.engine, "run", self.recipe, "--device", self.device, "--out", out, *threads, *arguments],
                   self.folder / f"{self.number}.log", environment or {})

    def train(self, out, *arguments, environment=None, limit_s=300):
        """To its end, which must be a good one."""
        with self.start(out, *arguments, environment=environment) as run:
            run.end_well(limit_s)


class Run:
    def __init__(self, command, log, environment):
        self.mark = uuid.uuid4().hex
        command = [str(word) for word in command]
        self.command = " ".join(command)
        self.log_file = log
        with open(log, "w", encoding="utf-8") as file:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, cwd=ROOT,
                                            env=os.environ | environment | {MARK: self.mark}, start_new_session=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def log(self):
        return self.log_file.read_text(encoding="utf-8", errors="replace")

    def ended(self):
        return self.process.poll() is not None

    def wait(self, limit_s):
        """The exit code, 128 + n where signal n ended it; None: it has not ended by then."""
        try:
            code = self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return None
        return 128 - code if code < 0 else code

    def end_well(self, limit_s):
        code = self.wait(limit_s)
        if code is None:
            raise Failed(f"{self.command}: has not ended within {limit_s} s\n{self.log()}")
        if code != 0:
            raise Failed(f"{self.command}: ended with {code}\n{self.log()}")

    def processes(self):
        """Every process that has this run's mark in its environment."""
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            if entry.name.isdigit() and variables(entry.name).get(MARK) == self.mark:
                found.append(int(entry.name))
        return found

    def ranks(self, count, limit_s=30):
        """Rank → process; waits for `count` of them."""
        end = time.monotonic() + limit_s
        while time.monotonic() < end and not self.ended():
            found = {int(own["ENGINE_RANK"]): pid for pid in self.processes()
                     if "ENGINE_RANK" in (own := variables(pid))}
            if len(found) == count:
                return found
            time.sleep(POLL_S)
        raise Failed(f"{count} ranks were not started within {limit_s} s")


class Failed(Exception):
    """What a case says that did not go as it should."""


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def variables(pid):
    """The environment that a process was started with; of one that is gone, nothing."""
    try:
        text = pathlib.Path(f"/proc/{pid}/environ").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    return dict(part.split("=", 1) for part in text.split("\0") if "=" in part)


def metrics(out):
    """The lines of the iterations; a last one that is not whole is left out."""
    file = out / "metrics.jsonl"
    lines = file.read_text(encoding="utf-8").split("\n")[:-1] if file.exists() else []
    return [line for line in map(json.loads, lines) if "loss" in line]


def wait_until(what, condition, limit_s):
    end = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end:
            raise Failed(f"not within {limit_s} s: {what}")
        time.sleep(POLL_S)
