#!/usr/bin/python3
"""Checkpoints in a bucket (`checkpoint.upload`, `engine run --checkpoints`), by the program itself, against object_server.py on loopback.

The manifest of each comes last; the folder keeps the newest alone; a run whose folder is lost goes on from the bucket with the same losses in
all digits, while the server fails now and then; what was not put there whole is not used and is removed; a damaged one is passed over and
not counted; one that cannot be put there stays in the folder, and is put there with the next one, or by the next run; a copy under another
iteration's name stays; restarts see that the run gets on; what cannot work is one error before anything is trained. Two runs do not keep theirs in
one place, and one that was replaced writes and deletes no more; programs that read folders read the bucket's checkpoints; a stop while one is still
being put there saves again only where the grace period allows it.

usage: s3_checkpoints.py ENGINE
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import time

sys.dont_write_bytecode = True
from s3_data import Bench, Failed, expect, same  # noqa: E402

KILL = ("--set", "debug.faults=true", "--fault", "rank=0,iteration=7,at=forward,kind=kill")


class Runs(Bench):
    def build(self):
        (self.folder / "text.jsonl").write_text("\n".join(f'{{"text": "line {n * n} of {n}"}}' for n in range(4000)))
        self.run("data", "build", "--input", "text.jsonl", "--output-prefix", "text", "--append-eod")

    def train(self, out, *options, code=0, iterations=8):
        return self.run("run", self.recipe("checkpoints", "text_text_document"), "--device", "cpu", "--threads", "1", "--out", out,
                        "--set", f"training.iterations={iterations}", "--set", "checkpoint.final_patience=0", *options, code=code)

    def kept(self, key):
        """Iterations of which the bucket `runs` has a manifest below the key, and those of which it has other objects."""
        with self.server.lock:
            found = [re.fullmatch(rf"runs/{key}/iteration_0*(\d+)/(.*)", name) for name in self.server.objects]
        whole = {int(match[1]) for match in found if match and match[2] == "manifest.json"}
        return sorted(whole), sorted({int(match[1]) for match in found if match} - whole)

    def losses_of(self, out):
        lines = [json.loads(line) for line in (self.folder / out / "metrics.jsonl").read_text().splitlines()]
        return {line["iteration"]: (line["loss"], line["grad_norm"]) for line in lines if "loss" in line}

    def here(self, out):
        return sorted(path.name for path in (self.folder / out / "checkpoints").iterdir())

    def manifests_put(self):
        """Iterations whose manifest was sent since the last time, in order."""
        paths = [request["path"] for request in self.requests() if request["method"] == "PUT"]
        return [int(match[1]) for match in (re.search(r"iteration_0*(\d+)/manifest", path) for path in paths) if match]

    def fail(self, *faults):
        with self.server.lock:
            self.server.faults = list(faults)


def keeps(runs):
    runs.build()
    runs.train("plain")
    runs.requests()
    log = runs.train("kept", "--checkpoints", "s3://runs/kept")
    expect("saved checkpoint of iteration 8 to s3://runs/kept" in log, log)
    same(runs.losses_of("kept"), runs.losses_of("plain"), "losses")
    same(runs.kept("kept"), ([6, 8], []), "the last two")
    same(runs.here("kept"), ["iteration_0000008"], "what stays in the folder")
    puts = [request["path"] for request in runs.requests() if request["method"] in ("PUT", "POST") and "/iteration_" in request["path"]]
    for iteration in (2, 4, 6, 8):
        names = [path.split("/")[-1] for path in puts if f"iteration_{iteration:07}/" in path]
        same((names[-1], names.count("manifest.json"), len(set(names))), ("manifest.json", 1, 3), f"what is put there of iteration {iteration}: {names}")
    log = runs.train("elsewhere", "--checkpoints", "s3://runs/kept")
    expect("so there is nothing to train" in log, log)
    folder = runs.folder / "elsewhere/checkpoints/iteration_0000008"
    there = {name.split("/")[-1]: data for name, (data, _) in runs.server.objects.items() if name.startswith("runs/kept/iteration_0000008/")}
    same({path.name: path.read_bytes() for path in folder.iterdir()}, there, "what came back")
    same(runs.here("elsewhere"), [folder.name], "what came back")
    runs.train("kept", "--checkpoints", "s3://runs/kept", iterations=10)
    log = runs.train("elsewhere", "--checkpoints", "s3://runs/kept", iterations=10)
    expect("after iteration 10; the recipe has 10, so there is nothing to train" in log, log)


def goes_on(runs):
    faults = [{"method": method, "path": "/runs/lost", "do": "status", "status": 503, "after": after, "times": 1}
              for method, after in (("PUT", 2), ("PUT", 7), ("GET", 1), ("DELETE", 1))]
    faults += [{"method": "PUT", "path": "manifest", "do": "lose", "after": 1}, {"method": "PUT", "path": "rank_", "do": "lose"},
               {"method": "GET", "path": "rank_", "do": "reset", "bytes": 1000}, {"method": "GET", "path": "index", "do": "cut", "bytes": 10}]
    runs.fail(*faults)
    runs.train("lost", "--checkpoints", "s3://runs/lost", *KILL, code=-9)
    whole, _ = runs.kept("lost")
    expect(whole[-1] in (4, 6), whole)
    runs.server.put("runs/lost/iteration_0000007/rank_00000.h5", b"a part of one that was killed")
    runs.server.put("runs/lost/iteration_0000007/index.h5", b"")
    runs.server.put("runs/lost/notes.txt", b"somebody's")
    text = runs.train("found", "--checkpoints", "s3://runs/lost", code=1)
    expect(f"s3://runs/lost is where another run keeps its checkpoints: that in {runs.folder}/lost on " in text and "--take-over" in text, text)
    expect(not (runs.folder / "found/checkpoints").exists(), "a run that is refused has begun")
    log = runs.train("found", "--checkpoints", "s3://runs/lost", "--take-over")
    expect(f"note: s3://runs/lost is taken over from another run, that in {runs.folder}/lost on " in log, log)
    expect(f"after iteration {whole[-1]}" in log, log)
    same(runs.server.faults[-1]["times"], 0, "faults that are left")
    expected = {k: v for k, v in runs.losses_of("plain").items() if k > whole[-1]}
    same(runs.losses_of("found"), expected, "losses behind the checkpoint")
    same(runs.kept("lost"), ([6, 8], []), "parts of checkpoints go, and older ones")
    expect("runs/lost/notes.txt" in runs.server.objects, "what is no checkpoint's is gone")
    same(runs.here("found"), ["iteration_0000008"], "what stays in the folder")
    runs.fail()


def flipped(data):
    at = len(data) // 2
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1:]


def flip(runs, name):
    data = flipped(runs.server.objects[name][0])
    runs.server.put(name, data)
    return data


def damaged(runs):
    name = "runs/lost/iteration_0000008/rank_00000.h5"
    data = flip(runs, name)
    log = runs.train("damaged", "--checkpoints", "s3://runs/lost", iterations=8)
    expect("checkpoint s3://runs/lost/iteration_0000008 is damaged and not used" in log and "after iteration 6" in log, log)
    same({k: v for k, v in runs.losses_of("plain").items() if k > 6}, runs.losses_of("damaged"), "losses")
    expect(runs.server.objects[name][0] != data, "the damaged one is not replaced")
    for name in [name for name in runs.server.objects if name.startswith("runs/lost/iteration_0000006/")]:
        runs.server.objects.pop(name)
    runs.server.put("runs/lost/iteration_0000008/index.h5", b"short")
    text = runs.train("damaged_all", "--checkpoints", "s3://runs/lost", code=1)
    expect("s3://runs/lost holds no whole checkpoint" in text and "give another checkpoint.upload" in text, text)


def not_counted(runs):
    runs.train("counted", "--checkpoints", "s3://runs/counted", iterations=4)
    flip(runs, "runs/counted/iteration_0000004/rank_00000.h5")
    log = runs.train("counted_on", "--checkpoints", "s3://runs/counted", "--set", "checkpoint.interval=3", iterations=6)
    expect("checkpoint s3://runs/counted/iteration_0000004 is damaged and not used" in log and "after iteration 2" in log, log)
    same(runs.kept("counted"), ([3, 4, 6], []), "two whole ones, and the damaged one between them")


def copied(runs):
    """Under the names of 8 and 10, which are in the bucket, the folder has somebody's copies of the other."""
    root = runs.folder / "copied/checkpoints"
    for held, name in ((8, 10), (10, 8)):
        folder = root / f"iteration_{name:07}"
        folder.mkdir(parents=True)
        for key, (data, _) in list(runs.server.objects.items()):
            if key.startswith(f"runs/kept/iteration_{held:07}/"):
                (folder / key.split("/")[-1]).write_bytes(data)
    log = runs.train("copied", "--checkpoints", "s3://runs/kept", iterations=10)
    expect("after iteration 10; the recipe has 10, so there is nothing to train" in log, log)
    same(runs.here("copied"), ["iteration_0000008", "iteration_0000010", "iteration_0000010.other-1"], "copies stay")
    held = [json.loads((root / name / "manifest.json").read_text())["iteration"] for name in runs.here("copied")]
    same(held, [10, 10, 8], "what they hold")


def refused(runs):
    def refuse(iteration, times=1):
        return {"method": "PUT", "path": f"refused/iteration_{iteration:07}/manifest", "do": "status", "status": 403, "code": "AccessDenied",
                "times": times}

    runs.requests()
    runs.fail(refuse(4), refuse(8))
    text = runs.train("refused", "--checkpoints", "s3://runs/refused", code=1)
    expect(re.search("warning: .*iteration_0000004 is whole, but could not be copied to s3://runs/refused.*403 AccessDenied.*with the next", text), text)
    expect("engine run: refused/checkpoints/iteration_0000008 is whole, but could not be copied" in text, text)
    same(runs.manifests_put(), [2, 4, 4, 6, 8], "manifests that were sent")
    same((runs.kept("refused"), runs.here("refused")), (([4, 6], [8]), ["iteration_0000006", "iteration_0000008"]), "what is where")
    same(runs.losses_of("refused"), runs.losses_of("plain"), "losses")
    log = runs.train("refused", "--checkpoints", "s3://runs/refused")
    expect("so there is nothing to train" in log and "/iteration_0000008 to s3://runs/refused" in log, log)
    same((runs.manifests_put(), runs.kept("refused"), runs.here("refused")), ([8], ([6, 8], []), ["iteration_0000008"]), "all is there")
    runs.train("refused", "--checkpoints", "s3://runs/refused")
    same(runs.manifests_put(), [], "manifests that were sent again")


def damaged_here(runs):
    runs.fail({"method": "PUT", "path": "left/.*manifest", "do": "status", "status": 403, "code": "AccessDenied", "times": 9})
    runs.train("left", "--checkpoints", "s3://runs/left", code=1, iterations=4)
    same((runs.kept("left"), runs.here("left")), (([], [2]), ["iteration_0000002", "iteration_0000004"]), "what is where")
    runs.fail()
    runs.requests()
    path = runs.folder / "left/checkpoints/iteration_0000002/rank_00000.h5"
    path.write_bytes(flipped(path.read_bytes()))
    log = runs.train("left", "--checkpoints", "s3://runs/left")
    expect("warning: checkpoint left/checkpoints/iteration_0000002 is damaged and not used" in log, log)
    same((runs.manifests_put(), runs.kept("left")), ([4, 6, 8], ([6, 8], [])), "what is there")


def restarts(runs):
    faults = [word for iteration in (3, 5, 7) for word in ("--fault", f"rank=0,iteration={iteration},at=forward,kind=kill")]
    runs.requests()
    runs.train("restarts", "--processes", "--max-restarts", "5", "--checkpoints", "s3://runs/restarts", "--set", "debug.faults=true",
               "--set", "checkpoint.background=false", "--set", "checkpoint.memory=false", *faults)
    fetched = [request["path"] for request in runs.requests() if request["method"] == "GET" and "/iteration_" in request["path"]]
    same((fetched, runs.kept("restarts")), ([], ([6, 8], [])), "what is fetched again, and what is there")


def beside(runs):
    # While the manifest of iteration 4 is on its way, the iterations up to the next checkpoint are trained.
    runs.fail({"method": "PUT", "path": "beside/iteration_0000004/manifest", "do": "together", "count": 1 << 30})
    metrics = runs.folder / "beside/metrics.jsonl"

    def let_go():  # the server waits until then
        while not (metrics.exists() and '"iteration":7' in metrics.read_text()):
            time.sleep(0.01)
        runs.server.most_busy = 1 << 30

    waiting = threading.Thread(target=let_go, daemon=True)
    waiting.start()
    runs.train("beside", "--checkpoints", "s3://runs/beside", "--set", "checkpoint.interval=4", "--set", "logging.interval=1")
    waiting.join(timeout=10)
    lines = metrics.read_text().splitlines()
    saved = next(at for at, line in enumerate(lines) if "save_seconds" in line)
    expect(sum('"loss"' in line for line in lines[:saved]) >= 7, lines)
    runs.fail()


def processes(runs):
    two = ("--processes", "--set", "parallelism.dp=2", "--checkpoints", "s3://runs/processes")
    runs.requests()
    runs.train("processes", *two, iterations=4)
    puts = [request["path"] for request in runs.requests() if request["method"] == "PUT" and "manifest" in request["path"]]
    same(len(puts), 2, f"manifests that are put there: {puts}")
    log = runs.train("processes_again", *two, "--set", "checkpoint.interval=3")
    expect("after iteration 4" in log, log)
    same((runs.kept("processes"), runs.here("processes_again")), (([6, 8], []), ["iteration_0000008"]), "what is there")


def parts(runs):
    runs.requests()
    runs.train("parts", "--checkpoints", "s3://runs/parts", "--set", "model.hidden=256", "--set", "model.mlp.hidden=1024", iterations=1)
    expect(any("uploadId" in request["path"] for request in runs.requests()), "no upload in parts")
    same((runs.kept("parts"), runs.server.uploads), (([1], []), {}), "what is there")
    log = runs.train("parts_again", "--checkpoints", "s3://runs/parts", "--set", "model.hidden=256", "--set", "model.mlp.hidden=1024",
                     iterations=1)
    expect("so there is nothing to train" in log, log)


    # What the server says after 200 is no word of another run's: training goes on.
    runs.fail({"method": "POST", "path": "parts_late/iteration_0000002/rank.*uploadId", "do": "error200", "code": "InvalidPart"})
    log = runs.train("parts_late", "--checkpoints", "s3://runs/parts_late", "--set", "model.hidden=256", "--set", "model.mlp.hidden=1024",
                     iterations=4)
    expect(re.search("warning: .*iteration_0000002 is whole, but could not be copied to s3://runs/parts_late: .*InvalidPart", log), log)
    same(runs.kept("parts_late"), ([2, 4], []), "what is there")
    runs.fail()


def owner_of(runs, key):
    return json.loads(runs.server.objects[f"runs/{key}/owner.json"][0])


def by_recipe(runs):
    runs.requests()
    key = ("--set", "checkpoint.upload=s3://runs/by_recipe")
    recipe = runs.recipe("checkpoints", "text_text_document")
    text = runs.run("check", recipe, *key, without=("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"))
    expect("note: s3://runs/by_recipe: " in text and "AWS_ACCESS_KEY_ID" in text, text)
    expect("note" not in runs.run("check", recipe, *key), "a note though nothing is missing")
    same(runs.requests(), [], "requests of engine check")
    runs.train("by_recipe", *key, iterations=4)
    same((runs.kept("by_recipe"), runs.here("by_recipe")), (([2, 4], []), ["iteration_0000004"]), "what is where")
    expect('upload = "s3://runs/by_recipe"' in (runs.folder / "by_recipe/resolved.toml").read_text(), "no key in resolved.toml")
    runs.train("by_flag", *key, "--checkpoints", "s3://runs/by_flag", iterations=2)
    same((runs.kept("by_recipe"), runs.kept("by_flag")), (([2, 4], []), ([2], [])), "the flag overrides the key")


def owners(runs):
    place = ("--checkpoints", "s3://runs/owned")
    runs.train("owned", *place, iterations=2)
    first = owner_of(runs, "owned")
    same((first["attempt"], first["ended"], first["folder"]), (1, True, f"{runs.folder}/owned"), "who wrote there")
    same(json.loads((runs.folder / "owned/bucket_run.json").read_text())["run"], first["run"], "the folder's own name of the run")
    runs.train("owned", *place, *KILL, code=-9)
    killed = owner_of(runs, "owned")
    same((killed["attempt"], killed["ended"], killed["run"]), (2, False, first["run"]), "one that was killed")
    runs.train("owned", *place)  # in its own folder it needs no leave
    same((owner_of(runs, "owned")["attempt"], owner_of(runs, "owned")["ended"]), (3, True), "one that goes on")
    # An error of its own is an end too; of a name that says nothing it is told.
    runs.server.put("runs/owned/owner.json", b'{"run": 7}')
    text = runs.train("owned", *place, code=1)
    expect('s3://runs/owned/owner.json does not say which run keeps checkpoints there: it has no text under "run"; remove it' in text, text)


def replaced(runs):
    """Another run, or attempt, takes the place while this one trains: it ends, and touches nothing."""
    for number, (held, keep, kept, other) in enumerate((
            ("0000002/manifest", 2, ([2, 100], []), "another run"),  # found out before anything of 4 is sent
            ("0000004/rank", 2, ([2, 100], [4]), "a later attempt of it"),  # before its manifest is
            ("0000004/manifest", 1, ([2, 4, 100], []), "another run"))):  # before 2 is deleted
        key = f"replaced{number}"
        name = f"runs/{key}"
        runs.server.most_busy = 0
        runs.fail({"method": "PUT", "path": f"{key}/iteration_{held}", "do": "together", "count": 1 << 30})

        def take(key=key, name=name, held=held, other=other):
            end = time.monotonic() + 60
            while runs.server.faults[-1].get("end") is None and time.monotonic() < end:
                time.sleep(0.005)
            owner = owner_of(runs, key)
            owner.update(attempt=2, host="elsewhere", folder="/theirs")
            if other == "another run":
                owner["run"] = "0" * 32
            runs.server.put(f"{name}/owner.json", json.dumps(owner).encode())
            runs.server.put(f"{name}/iteration_0000100/manifest.json", b"theirs")
            runs.server.most_busy = 1 << 30  # lets go

        taking = threading.Thread(target=take, daemon=True)
        taking.start()
        text = runs.train(key, "--checkpoints", f"s3://{name}", "--set", f"checkpoint.keep={keep}", code=1)
        taking.join(timeout=10)
        expect(f"s3://{name} is no longer this run's place for checkpoints" in text and f"{other} has it, that in /theirs on elsewhere" in text, text)
        same(runs.kept(key), kept, f"what is there, held at {held}")
        same((owner_of(runs, key)["host"], owner_of(runs, key)["ended"]), ("elsewhere", False), "the new owner's words")
    runs.fail()


def taken_once(runs):
    """A run that is started again does not take over a second time: by then another may have done so."""
    place = ("--checkpoints", "s3://runs/once", "--set", "checkpoint.interval=100")
    runs.train("once_before", *place, *KILL, code=-9)

    def take():
        end = time.monotonic() + 60
        while not (runs.folder / "once/faults.jsonl").exists() and time.monotonic() < end:
            time.sleep(0.005)
        runs.server.put("runs/once/owner.json", json.dumps(owner_of(runs, "once") | {"run": "0" * 32, "attempt": 9}).encode())

    taking = threading.Thread(target=take, daemon=True)
    taking.start()
    text = runs.train("once", *place, "--take-over", "--processes", "--max-restarts", "2", "--set", "debug.faults=true",
                      "--fault", "rank=0,iteration=3,at=forward,kind=hang:1", "--fault", "rank=0,iteration=4,at=forward,kind=kill", code=1)
    taking.join(timeout=10)
    expect("s3://runs/once is taken over from another run" in text and "s3://runs/once is where another run keeps its checkpoints" in text, text)
    same((owner_of(runs, "once")["attempt"], owner_of(runs, "once")["ended"]), (9, False), "the new owner's words")


def read(runs):
    """What reads folders reads s3://, too."""
    runs.requests()
    text = runs.run("checkpoint", "info", "s3://runs/kept")
    expect(re.search(r" 8 .*whole", text) and re.search(r" 10 .*whole", text), text)
    text = runs.run("checkpoint", "info", "s3://runs/kept/iteration_0000010", "--tensors")
    expect("iteration         10" in text and "embedding" in text, text)
    expect(not any("rank_" in request["path"] and request["method"] == "GET" and "list-type" not in request["path"] for request in runs.requests()),
           "info has read tensors")
    expect("checksums match" in runs.run("checkpoint", "info", "s3://runs/kept/iteration_0000010", "--verify"), "--verify")
    runs.requests()
    (runs.folder / "prompt").write_text("5 6 7\n")
    prompt = ("--tokens-in", "prompt", "--tokens-out", "--tokens", "4", "--temperature", "0", "--device", "cpu")
    here = runs.run("generate", "kept", *prompt).splitlines()[0]
    text = runs.run("generate", "s3://runs/kept", *prompt)
    expect("note: s3://runs/kept/iteration_0000010 is read from its copy, " in text, text)
    same(text.splitlines()[0], here, "what is generated")
    fetched = [request["path"] for request in runs.requests() if "rank_" in request["path"] and "list-type" not in request["path"]]
    same(fetched, [], "fetched again")  # --verify has made the copy
    (runs.folder / "texts.jsonl").write_text('{"text": "line 9 of 3"}\n')
    tiny = ("--set", "model.mlp.bias=true", "--set", "data.tokenizer.kind=byte")
    runs.train("gpt2", "--checkpoints", "s3://runs/gpt2", *tiny, iterations=2)

    def evaluated(name):
        text = runs.run("evaluate", name, "--task", "perplexity=texts.jsonl", "--json", "--device", "cpu")
        return json.loads(text.split("\nnote: ")[0])

    here, there = (evaluated(name) for name in ("gpt2", "s3://runs/gpt2"))
    same(there, here, "what is evaluated")
    runs.run("export", "hf", "gpt2", "--out", "exported_here", "--dtype", "fp32")
    runs.run("export", "hf", "s3://runs/gpt2", "--out", "exported", "--dtype", "fp32")
    same((runs.folder / "exported/model.safetensors").read_bytes(), (runs.folder / "exported_here/model.safetensors").read_bytes(), "weights")
    # --verify reads what is there, whatever has been copied before.
    runs.run("checkpoint", "info", "s3://runs/kept", "--verify")
    whole = flip(runs, "runs/kept/iteration_0000008/rank_00000.h5")
    text = runs.run("checkpoint", "info", "s3://runs/kept", "--verify", code=1)
    expect(re.search(r" 8 .*damaged: ", text) and re.search(r" 10 .*whole", text), text)
    runs.server.put("runs/kept/iteration_0000008/rank_00000.h5", flipped(whole))
    # Another checkpoint under the same name is not taken for its copy.
    runs.train("seed", "--checkpoints", "s3://runs/seed", *tiny, "--set", "training.seed=7", iterations=2)
    for name, (data, _) in list(runs.server.objects.items()):
        if name.startswith("runs/seed/iteration_"):
            runs.server.put(name.replace("seed", "gpt2"), data)
    here, there = (evaluated(name) for name in ("seed", "s3://runs/gpt2"))
    same(there, here, "what is evaluated of another under the name")
    # Copies that nobody has used for a day go when another one comes.
    copies = runs.folder / "cache/checkpoints"
    before = set(copies.iterdir())
    same(len(before), 4, "copies")
    for copy in before:
        os.utime(copy, (0, time.time() - 90000))
    runs.run("generate", "s3://runs/kept", *prompt)
    same(set(copies.iterdir()), before, "copies, where none has come")
    evaluated("s3://runs/seed")
    same((len(before & set(copies.iterdir())), len(list(copies.iterdir()))), (1, 2), "copies that stay, and copies")
    for name, wanted in (("s3://runs/nothing", "s3://runs/nothing holds no checkpoint"), ("s3://runs", "names a bucket"),
                         ("s3://runs/kept/iteration_0000099", "404"), ("http://h/x", "is no place of checkpoints")):
        for command in (("checkpoint", "info", name), ("generate", name, *prompt)):
            text = runs.run(*command, code=1)
            expect(wanted in text, text)


def stops(runs):
    """A signal while the checkpoint of iteration 4 is still being put there."""
    for grace in (1, 300):
        key = f"stops{grace}"
        runs.server.most_busy = 0
        runs.fail({"method": "PUT", "path": f"{key}/iteration_0000004/manifest", "do": "together", "count": 1 << 30})
        command = [runs.engine, "run", runs.recipe("checkpoints", "text_text_document"), "--device", "cpu", "--threads", "1", "--out", key,
                   "--set", "training.iterations=100000", "--set", "checkpoint.interval=4", "--set", "checkpoint.keep=0",
                   "--set", f"launch.grace_period_s={grace}", "--set", "logging.interval=1", "--checkpoints", f"s3://runs/{key}",
                   "--set", "debug.faults=true", "--fault", "rank=0,iteration=6,at=forward,kind=hang:1"]
        with subprocess.Popen(command, env=runs.environment, cwd=runs.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as run:
            end = time.monotonic() + 60
            while not (runs.folder / key / "faults.jsonl").exists() and time.monotonic() < end:
                time.sleep(0.01)
            run.terminate()
            time.sleep(2)
            runs.server.most_busy = 1 << 30  # lets go
            log = run.communicate(timeout=60)[0]
        same(run.returncode, 0, log)
        if grace == 1:
            expect("iteration 6 is not saved: the checkpoint of iteration 4 took " in log, log)
            same(runs.kept(key), ([4], []), "what is there")
        else:
            expect("saved checkpoint of iteration 6" in log, log)
            same(runs.kept(key), ([4, 6], []), "what is there")
    runs.fail()


def mistakes(runs):
    runs.requests()
    for url, wanted in (("/tmp/x", "/tmp/x is no place for checkpoints"), ("http://h/x", "is no place for checkpoints"), ("s3://runs", "names a bucket"),
                        ("s4://runs/x", "s4")):
        text = runs.train("none", "--checkpoints", url, code=1)
        expect(wanted in text, text)
    text = runs.train("none", "--checkpoints", "s3://runs/x", "--set", "guard.on_nonfinite=rewind", code=1)
    expect("may go back to earlier checkpoints" in text, text)
    text = runs.train("none", "--take-over", code=2)
    expect("--take-over goes with checkpoints in a bucket" in text, text)
    same(runs.requests(), [], "requests")
    text = runs.train("none", "--checkpoints", "s3://runs/kept", "--fresh", code=1)
    expect("--fresh: s3://runs/kept already holds checkpoints (iteration_0000010)" in text, text)
    runs.fail({"method": "PUT", "do": "status", "status": 403, "code": "AccessDenied", "times": 9})
    text = runs.train("none", "--checkpoints", "s3://runs/new", code=1)
    expect("403 AccessDenied" in text and "loss" not in text, text)
    runs.fail()


def main():
    engine = str(pathlib.Path(sys.argv[1]).resolve())
    with tempfile.TemporaryDirectory(prefix="engine-s3-") as folder:
        runs = Runs(engine, pathlib.Path(folder).resolve())
        for check in (keeps, read, copied, goes_on, damaged, not_counted, refused, damaged_here, restarts, beside, processes, parts, by_recipe,
                      owners, replaced, taken_once, stops, mistakes):
            try:
                check(runs)
            except Failed as failure:
                print(f"{check.__name__}: {failure}")
                return 1
            print(f"{check.__name__}: as it should be")
    return 0


if __name__ == "__main__":
    sys.exit(main())
