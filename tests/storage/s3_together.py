#!/usr/bin/python3
"""Checkpoints that all processes of a run put into a bucket together, by the program itself, against object_server.py on loopback.

Each process puts its own shard there, as the server sees by the sockets; what is there has the bits of a run without a bucket, and a run goes on from there alone. A rank
whose object is refused, one that is killed while it puts its shard there, and a checkpoint that another layout has left end no run, and what they left gets there later. A file that is
not what the manifest says gets no name there, and none does once another run has the place. Ranks that are threads put several files there at once, and several come back at once. The
last checkpoint of a run is tried again where that may help.

usage: s3_together.py ENGINE [BYTES_PER_S]     with a rate it only measures how long a checkpoint of 8 ranks takes where each connection has that rate
"""
import json
import os
import pathlib
import re
import signal
import sys
import tempfile
import threading
import time

sys.dont_write_bytecode = True
from s3_checkpoints import Runs, flipped, owner_of  # noqa: E402
from s3_data import Failed, expect, same  # noqa: E402

FOUR = ("--set", "parallelism.dp=4", "--set", "parallelism.zero_stage=1")
PROCESSES = ("--processes", *FOUR)
FAULTS = ("--set", "debug.faults=true")
WHOLE = [f"rank_{rank:05}.h5" for rank in range(4)]


def rank_of(client, server):
    """(rank, process id) of the process of this machine that has the client's end of the connection between these ports."""
    end = time.monotonic() + 2
    while not (found := look_for(f":{client:04X}", f":{server:04X}")) and time.monotonic() < end:
        time.sleep(0.01)  # a list of the system's that changes while it is read may lack a line
    return found


def holds(folder, socket):
    """Whether a process has it open. A file that is closed meanwhile is none of its."""
    for link in (folder / "fd").iterdir():
        try:
            if os.readlink(link) == socket:
                return True
        except OSError:
            continue
    return False


def look_for(client, server):
    for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        # Connections with other servers may have the same port, those too that have ended a minute ago.
        if fields[1].endswith(client) and fields[2].endswith(server):
            socket = f"socket:[{fields[9]}]"
            break
    else:
        return None
    for folder in pathlib.Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and holds(folder, socket):
                rank = re.search(rb"(?:^|\0)ENGINE_RANK=(\d+)", (folder / "environ").read_bytes())
                return (int(rank[1]) if rank else 0, int(folder.name))
        except OSError:  # it has ended
            continue
    return None


def puts(runs, key):
    """By iteration, which ranks' processes have put each file there since the last time, and in order what was put there and deleted."""
    found = {}
    for request in runs.requests():
        match = re.search(rf"runs/{key}/iteration_0*(\d+)/([^?]*)", request["path"])
        if match and request["method"] == "DELETE":
            found.setdefault(int(match[1]), ({}, []))[1].append("deleted " + match[2])
        if match and request["method"] in ("PUT", "POST"):
            by, order = found.setdefault(int(match[1]), ({}, []))
            by.setdefault(match[2], set()).add(request["by"] and request["by"][0])
            order.append(match[2])
    return found


def shards_there(runs, key, iteration, names=WHOLE):
    return [runs.server.objects[f"runs/{key}/iteration_{iteration:07}/{name}"][0] for name in names]


def shards_here(runs, out, iteration, names=WHOLE):
    return [(runs.folder / out / f"checkpoints/iteration_{iteration:07}" / name).read_bytes() for name in names]


def refuse(path, times=1, **more):
    return {"method": "PUT", "path": path, "do": "status", "status": 403, "code": "AccessDenied", "times": times} | more


def hold(runs, path, act, method="PUT", times=1):
    """Requests of this path wait until `act` is done, or as long as the server holds them."""
    runs.server.most_busy = 0
    runs.fail({"method": method, "path": path, "do": "together", "count": 1 << 30, "times": times})
    fault = runs.server.faults[-1]

    def wait():
        end = time.monotonic() + 60
        while (fault.get("end") is None or fault["times"] > 0) and time.monotonic() < end:
            time.sleep(0.005)
        act()
        runs.server.most_busy = 1 << 30

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def verified(runs, key):
    text = runs.run("checkpoint", "info", f"s3://runs/{key}", "--verify")
    expect("damaged" not in text and "whole" in text, text)


def shares(runs):
    runs.train("whole", *PROCESSES)
    runs.requests()
    runs.train("shares", *PROCESSES, "--checkpoints", "s3://runs/shares")
    found = puts(runs, "shares")
    same(sorted(found), [2, 4, 6, 8], "iterations")
    for iteration, (by, order) in found.items():
        same(by, {**{name: {rank} for rank, name in enumerate(WHOLE)}, "index.h5": {0}, "manifest.json": {0}}, f"who put what there of {iteration}")
        same([name for name in order if "deleted" not in name][-1], "manifest.json", f"the last of {iteration}: {order}")
    same(shards_there(runs, "shares", 8), shards_here(runs, "whole", 8), "bits in the bucket")
    # From the bucket alone.
    runs.train("lost", *PROCESSES, "--checkpoints", "s3://runs/lost", *FAULTS, "--fault", "rank=2,iteration=7,at=forward,kind=kill", code=137)
    before = runs.kept("lost")[0][-1]
    log = runs.train("found", *PROCESSES, "--checkpoints", "s3://runs/lost", "--take-over")
    expect(f"after iteration {before}" in log, log)
    same(runs.losses_of("found"), {k: v for k, v in runs.losses_of("whole").items() if k > before}, "losses behind the checkpoint")
    same(shards_there(runs, "lost", 8), shards_here(runs, "whole", 8), "bits after going on from the bucket")
    same((runs.kept("lost"), runs.here("found")), (([6, 8], []), ["iteration_0000008"]), "what is where")
    verified(runs, "lost")


def refused(runs):
    runs.requests()
    runs.fail(refuse("refused/iteration_0000004/rank_00002"))
    text = runs.train("refused", *PROCESSES, "--checkpoints", "s3://runs/refused")
    expect(re.search(r"warning: refused/checkpoints/iteration_0000004 is whole, but could not be copied to s3://runs/refused: rank 2 \(.*, pid \d+\): "
                     r"cannot write s3://runs/refused/iteration_0000004/rank_00002.h5: .*403 AccessDenied.*; it is tried again with the next", text), text)
    expect(text.count("could not be copied") == 1, "more than one warning")
    found = puts(runs, "refused")
    same(found[4][1].count("manifest.json"), 1, f"manifests of 4: {found[4][1]}")
    same(found[4][1].count("rank_00001.h5"), 2, f"files of 4, which are put there anew: {found[4][1]}")
    same((runs.kept("refused"), runs.losses_of("refused")), (([6, 8], []), runs.losses_of("whole")), "what is there, and losses")
    # Of several one is named.
    runs.fail(*[refuse(f"several/iteration_0000004/rank_0000{rank}") for rank in (1, 2, 3)])
    text = runs.train("several", *PROCESSES, "--checkpoints", "s3://runs/several")
    expect(re.search(r"rank 1 \(.*/iteration_0000004/rank_00001.h5: .*; 2 other ranks failed, too; it is tried again", text), text)
    same(runs.kept("several"), ([6, 8], []), "what is there")


def killed(runs):
    def kill():
        by = next(request["by"] for request in reversed(runs.server.log) if "killed/iteration_0000004/rank_00002" in request["path"])
        same(by[0], 2, "whose shard is held")
        os.kill(by[1], signal.SIGKILL)

    waiting = hold(runs, "killed/iteration_0000004/rank_00002", kill)
    text = runs.train("killed", *PROCESSES, "--max-restarts", "1", "--checkpoints", "s3://runs/killed")
    waiting.join(timeout=10)
    runs.fail()
    expect("was killed by signal 9 (Killed); restart 1 of 1" in text, text)
    same((runs.kept("killed"), runs.here("killed")), (([6, 8], []), ["iteration_0000008"]), "what is where")
    same(shards_there(runs, "killed", 8), shards_here(runs, "whole", 8), "bits")
    verified(runs, "killed")


def fails(runs):
    """A run that fails while a shard is on its way ends before that is there, and leaves the checkpoint to the next run."""
    runs.server.most_busy = 0
    runs.fail({"method": "PUT", "path": "fails/iteration_0000004/rank_00001", "do": "together", "count": 1 << 30})
    spoilt = (*FAULTS, "--fault", "rank=1,iteration=6,at=forward,kind=nan")
    text = runs.train("fails", *PROCESSES, "--checkpoints", "s3://runs/fails", "--set", "checkpoint.interval=4", *spoilt, code=1)
    expect("iteration 6: loss " in text, text)
    runs.server.most_busy = 1 << 30
    same((runs.kept("fails")[0], runs.here("fails")), ([], ["iteration_0000004"]), "what is where")
    runs.fail()
    log = runs.train("fails", *PROCESSES, "--checkpoints", "s3://runs/fails", *spoilt)
    expect("after iteration 4" in log, log)
    same((runs.kept("fails"), shards_there(runs, "fails", 8)), (([6, 8], []), shards_here(runs, "whole", 8)), "what is there")


def other_layout(runs):
    """Iteration 4 is left by four ranks, for two, of which each puts the shards of two, and then one process with two threads."""
    for number, options in enumerate((("--processes",), ())):
        key = f"layout{number}"
        runs.fail(refuse(f"{key}/iteration_0000004/manifest"))
        runs.train(key, *PROCESSES, "--checkpoints", f"s3://runs/{key}", iterations=4, code=1)
        same(runs.kept(key), ([2], [4]), "what is there")
        shards = shards_here(runs, key, 4)
        runs.requests()
        log = runs.train(key, *options, "--set", "parallelism.dp=2", "--set", "parallelism.zero_stage=1", "--checkpoints", f"s3://runs/{key}",
                         "--set", "checkpoint.keep=0", iterations=6)
        expect("after iteration 4" in log, log)
        found = puts(runs, key)
        same(sorted(found), [4, 6], "iterations")
        by = {name: {rank % 2 if options else 0} for rank, name in enumerate(WHOLE)} | {"index.h5": {0}, "manifest.json": {0}}
        same(found[4][0], by, "who put what there of the one that was left")
        same(sorted(found[4][1][:5]), sorted(f"deleted {name}" for name in ("index.h5", *WHOLE)), "what was there goes first")
        same((runs.kept(key), shards_there(runs, key, 4)), (([2, 4, 6], []), shards), "what is there")
        verified(runs, key)
    # One that was damaged there loses its manifest first.
    runs.server.put("runs/layout1/iteration_0000006/rank_00000.h5", b"short")
    runs.requests()
    log = runs.train("layout1_again", *FOUR, "--checkpoints", "s3://runs/layout1", "--set", "checkpoint.keep=0", iterations=6)
    expect("iteration_0000006 is damaged and not used" in log and "after iteration 4" in log, log)
    same(puts(runs, "layout1")[6][1][0], "deleted manifest.json", "what is first done to one that is damaged")
    verified(runs, "layout1")
    # Where there is nothing to train.
    runs.fail(refuse("nothing/iteration_0000004/manifest"))
    runs.train("nothing", *PROCESSES, "--checkpoints", "s3://runs/nothing", iterations=4, code=1)
    runs.requests()
    for expected in ({name: {rank} for rank, name in enumerate(WHOLE)} | {"index.h5": {0}, "manifest.json": {0}}, None):
        log = runs.train("nothing", *PROCESSES, "--checkpoints", "s3://runs/nothing", iterations=4)
        expect("so there is nothing to train" in log, log)
        same(puts(runs, "nothing").get(4, (None,))[0], expected, "who put what there")
    same(runs.kept("nothing"), ([2, 4], []), "what is there")


def checked(runs):
    """A file that has changed since it was written, and a place that is another run's by now, when a file has been sent."""
    path = runs.folder / "sums/checkpoints/iteration_0000004/rank_00007.h5"
    waiting = hold(runs, "sums/iteration_0000004/rank", lambda: path.write_bytes(flipped(path.read_bytes())), times=4)
    text = runs.train("sums", "--set", "parallelism.dp=8", "--set", "parallelism.zero_stage=1", "--set", "training.micro_batch=2",
                      "--checkpoints", "s3://runs/sums")
    waiting.join(timeout=10)
    expect(re.search("warning: .*iteration_0000004 is whole, but could not be copied .*rank_00007.h5: its checksum is .*; the manifest says", text), text)
    expect(re.search("warning: checkpoint sums/checkpoints/iteration_0000004 is damaged and not used: .*rank_00007.h5: its checksum is", text), text)
    same(runs.kept("sums"), ([6, 8], []), "what is there")

    def take():
        owner = owner_of(runs, "taken") | {"attempt": 9, "host": "elsewhere"}
        runs.server.put("runs/taken/owner.json", json.dumps(owner).encode())

    waiting = hold(runs, "taken/iteration_0000002/rank_00000.h5.uploads", take, method="POST")
    text = runs.train("taken", "--checkpoints", "s3://runs/taken", "--set", "model.hidden=256", "--set", "model.mlp.hidden=1024", code=1, iterations=4)
    waiting.join(timeout=10)
    runs.fail()
    expect("s3://runs/taken is no longer this run's place for checkpoints" in text, text)
    expect("runs/taken/iteration_0000002/rank_00000.h5" not in runs.server.objects, "a file that came too late has its name")


def at_once(runs):
    """Ranks that are threads of one process."""
    runs.server.most_busy = 0
    runs.fail({"method": "PUT", "path": "threads/iteration_0000002/rank", "do": "together", "count": 4, "times": 4})
    runs.train("threads", *FOUR, "--checkpoints", "s3://runs/threads", iterations=2)
    same(runs.server.most_busy, 4, "files that are put there at once")
    runs.server.most_busy = 0
    runs.fail({"method": "GET", "path": "threads/iteration_0000002/(rank|index)", "do": "together", "count": 4, "times": 4})
    log = runs.train("threads_again", *FOUR, "--checkpoints", "s3://runs/threads", iterations=2)
    expect("so there is nothing to train" in log, log)
    same(runs.server.most_busy, 4, "files that come back at once")
    same(shards_here(runs, "threads_again", 2), shards_there(runs, "threads", 2), "bits that come back")
    runs.fail()


def last(runs):
    """The checkpoint with which a run ends."""
    patient = ("--set", "checkpoint.final_patience=60")
    for options in (PROCESSES, FOUR):
        key = f"last{len(options)}"
        runs.fail(refuse(f"{key}/iteration_0000008/rank_00003", times=2))
        text = runs.train(key, *options, "--checkpoints", f"s3://runs/{key}", *patient)
        expect(re.search(rf"warning: {key}/checkpoints/iteration_0000008 is whole, but could not be copied to s3://runs/{key}: .*403 AccessDenied.*; it is tried "
                         rf"again for 60 s, until .* \(checkpoint.final_patience\): s3://runs/{key} has to take it; it is whole in {key}/checkpoints; a second", text), text)
        expect("saved checkpoint of iteration 8 to s3://" in text and text.count("could not be copied") == 1, text)
        same((runs.kept(key), runs.here(key)), (([6, 8], []), ["iteration_0000008"]), "what is where")
        same(shards_there(runs, key, 8), shards_here(runs, "whole", 8), "bits")
    # What cannot pass is not waited for.
    runs.fail({"method": "POST", "path": "never/iteration_0000002/rank.*uploadId", "do": "error200", "code": "InvalidPart"})
    text = runs.train("never", "--checkpoints", "s3://runs/never", *patient, "--set", "model.hidden=256", "--set", "model.mlp.hidden=1024", iterations=2, code=1)
    expect("InvalidPart" in text and "tried again" not in text, text)
    # Nor is it where the wait is over.
    runs.fail(refuse("over/iteration_0000002/manifest", times=99))
    text = runs.train("over", *PROCESSES, "--checkpoints", "s3://runs/over", "--set", "checkpoint.final_patience=2", iterations=2, code=1)
    expect("it is tried again for 2 s" in text and "engine run: over/checkpoints/iteration_0000002 is whole, but could not be copied" in text, text)
    same(runs.kept("over"), ([], [2]), "what is there")
    runs.fail()


def measure(runs, rate):
    """Seconds until a checkpoint is in the bucket, of ranks that are processes and of ranks that are threads of one."""
    for options in (("--processes",), ()):
        runs.server.rate = rate
        out = f"measured{len(options)}"
        runs.train(out, *options, "--set", "parallelism.dp=8", "--set", "parallelism.zero_stage=3", "--set", "training.micro_batch=2", "--set", "model.layers=8",
                   "--set", "model.hidden=256", "--set", "model.mlp.hidden=1024", "--checkpoints", f"s3://runs/{out}", iterations=1)
        runs.server.rate = 0
        lines = [json.loads(line) for line in (runs.folder / out / "metrics.jsonl").read_text().splitlines()]
        size = sum(len(data) for name, (data, _) in runs.server.objects.items() if name.startswith(f"runs/{out}/iteration"))
        print(*options, f"{size / 1e6:.0f} MB: {next(line['save_seconds'] for line in lines if 'save_seconds' in line):.1f} s", flush=True)


def main():
    engine = str(pathlib.Path(sys.argv[1]).resolve())
    with tempfile.TemporaryDirectory(prefix="engine-s3-") as folder:
        runs = Runs(engine, pathlib.Path(folder).resolve())
        runs.server.who = rank_of
        runs.build()
        if len(sys.argv) > 2:
            runs.server.who = None
            measure(runs, float(sys.argv[2]))
            return 0
        for check in (shares, refused, killed, fails, other_layout, checked, at_once, last):
            try:
                check(runs)
            except Failed as failure:
                print(f"{check.__name__}: {failure}")
                return 1
            print(f"{check.__name__}: as it should be", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
