#!/usr/bin/python3
"""Data sets in a bucket and on a web server, by the program itself, against object_server.py on loopback.

`data build` from compressed text in a bucket into a bucket makes the bytes that it makes from files; `info`, `verify`, `merge` and
`split` say and make the same; a run has the same losses in all digits, while the server fails now and then, in two layouts and
resumed; masks of the loss are used where they are there; what is wrong is one located error before training starts, and `engine check`
asks no server. Paths open no socket.

usage: s3_data.py ENGINE
"""
import gzip
import itertools
import json
import os
import pathlib
import random
import re
import shutil
import struct
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "gpu"))
from object_server import Server  # noqa: E402
from small_run import RECIPE, SIZES  # noqa: E402


class Failed(Exception):
    pass


class Bench:
    def __init__(self, engine, folder):
        self.engine, self.folder, self.server = engine, folder, Server()
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        self.environment |= self.server.environment() | {"ENGINE_CACHE": str(folder / "cache")}

    def run(self, *arguments, code=0, without=(), extra=None):
        environment = {name: value for name, value in self.environment.items() if name not in without} | (extra or {})
        done = subprocess.run([self.engine, *map(str, arguments)], env=environment, cwd=self.folder, timeout=120,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode != code:
            raise Failed(f"{' '.join(map(str, arguments))}: exit code {done.returncode}, not {code}\n{done.stdout}{done.stderr}")
        return done.stdout + done.stderr

    def requests(self):
        with self.server.lock:
            log, self.server.log = self.server.log, []
        return log

    def upload(self, prefix, bucket_prefix):
        for ending in (".bin", ".idx"):
            self.server.put(bucket_prefix + ending, pathlib.Path(str(prefix) + ending).read_bytes())

    def recipe(self, name, data):
        text = RECIPE.format(data=data, **SIZES["cpu"]).replace('split = "1,0,0"', 'split = "9,1"')
        text = text.replace("[checkpoint]", "[evaluation]\ninterval = 2\niterations = 1\n[checkpoint]")
        path = self.folder / f"{name}.toml"
        path.write_text(text)
        return path

    def losses(self, name, data, *settings, flags=()):
        out = self.folder / f"out-{name}"
        options = [word for setting in settings for word in ("--set", setting)]
        log = self.run("run", self.recipe(name, data), "--device", "cpu", "--threads", "1", "--out", out, *options, *flags)
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        return [{key: line[key] for key in ("iteration", "loss", "grad_norm", "validation_loss") if key in line}
                for line in lines if "loss" in line or "validation_loss" in line], log


def expect(condition, what):
    if not condition:
        raise Failed(what)


def same(a, b, what):
    expect(a == b, f"{what}:\n{a}\n{b}")


def builds(bench):
    words = random.Random(1)
    lines = [json.dumps({"text": " ".join(str(words.randrange(1000)) for _ in range(40))}) for _ in range(2000)]
    texts = {"a.jsonl.gz": gzip.compress("\n".join(lines[:1200]).encode()), "b.jsonl": "\n".join(lines[1200:]).encode()}
    (bench.folder / "texts").mkdir()
    for name, data in texts.items():
        (bench.folder / "texts" / name).write_bytes(data)
        bench.server.put(f"texts/in/{name}", data)
        bench.server.put(f"public/in/{name}", data)
    bench.server.put("texts/in/.hidden", b"no JSON")
    bench.server.put("texts/in/folder/", b"")
    local = bench.run("data", "build", "--input", "texts", "--output-prefix", "local", "--append-eod")
    made = bench.run("data", "build", "--input", "s3://texts/in/", "--output-prefix", "s3://sets/made", "--append-eod")
    expect("s3://sets/made_text_document" in made and "passed over: 1 hidden" in made, made)
    same(local.splitlines()[0].split(" from ")[0], made.splitlines()[0].split(" from ")[0], "what is said")
    objects = bench.server.objects
    for ending in (".bin", ".idx"):
        same(objects["sets/made_text_document" + ending][0], (bench.folder / ("local_text_document" + ending)).read_bytes(), ending)
    manifest = json.loads(objects["sets/made.json"][0])
    same(manifest["datasets"][0]["prefix"], "s3://sets/made_text_document", "the manifest")
    same([entry["path"] for entry in manifest["inputs"]], ["s3://texts/in/a.jsonl.gz", "s3://texts/in/b.jsonl"], "its inputs")
    expect(str(bench.folder) not in objects["sets/made.json"][0].decode(), "the manifest names a folder of this machine")
    expect(sorted(objects.keys() - {k for k in objects if not k.startswith("sets/")}) ==
           ["sets/made.json", "sets/made_text_document.bin", "sets/made_text_document.idx"], "more than was made is there")
    expect(list((bench.folder / "cache/builds").iterdir()) == [], "what was put into the bucket stays here")
    web = [f"{bench.server.url}/public/in/{name}" for name in texts]
    bench.run("data", "build", "--input", *web, "--output-prefix", "web", "--append-eod")
    same((bench.folder / "web_text_document.bin").read_bytes(), (bench.folder / "local_text_document.bin").read_bytes(), "by http://")


def conversations(bench):
    chat = pathlib.Path(__file__).resolve().parent.parent / "data/chat"
    bench.server.put("texts/chat.jsonl", (chat / "conversations.jsonl").read_bytes())
    build = ("data", "build", "--format", "chat", "--chat-template", chat / "chatml.jinja")
    bench.run(*build, "--input", chat / "conversations.jsonl", "--output-prefix", "chat")
    bench.requests()
    made = bench.run(*build, "--input", "s3://texts/chat.jsonl", "--output-prefix", "s3://chats/set")
    expect(made.endswith("s3://chats/set\ns3://chats/set_loss_mask\n"), made)
    changes = [r["path"].rsplit("/", 1)[-1] for r in bench.requests() if r["method"] in ("PUT", "DELETE") and r["path"].endswith(".idx")]
    same(changes, ["set.idx", "set_loss_mask.idx", "set_loss_mask.idx", "set.idx"], "a data set is in the bucket without its mask")
    objects = bench.server.objects
    for ending in (".bin", ".idx", "_loss_mask.bin", "_loss_mask.idx"):
        same(objects["chats/set" + ending][0], (bench.folder / ("chat" + ending)).read_bytes(), ending)
    manifest = json.loads(objects["chats/set.json"][0])
    same([manifest["datasets"][0][key] for key in ("prefix", "loss_mask")], ["s3://chats/set", "s3://chats/set_loss_mask"], "the manifest")
    same(manifest["inputs"][0]["content"], json.loads((bench.folder / "chat.json").read_text())["inputs"][0]["content"], "its input")
    show = ("--sample", "1", "--tokenizer", "byte")
    same(bench.run("data", "show", "s3://chats/set", *show).split(", ", 1)[1], bench.run("data", "show", "chat", *show).split(", ", 1)[1],
         "what is shown")


def looks(bench):
    bench.upload(bench.folder / "local_text_document", "public/set")
    prefixes = ["s3://sets/made_text_document", f"{bench.server.url}/public/set"]
    local = bench.run("data", "info", "local_text_document", "--sample", "3", "--tokenizer", "byte").splitlines()
    for prefix in prefixes:
        same(bench.run("data", "info", prefix, "--sample", "3", "--tokenizer", "byte").splitlines()[1:], local[1:], prefix)
    bench.run("data", "verify", *prefixes, "--vocab", "257")
    bench.run("data", "verify", *prefixes, "--vocab", "100", code=1)
    bench.run("data", "split", prefixes[0], "--parts", "2", "--output-prefix", "s3://sets/half")
    bench.run("data", "merge", "s3://sets/half_0", "s3://sets/half_1", "--output-prefix", "s3://sets/again")
    same(bench.server.objects["sets/again.bin"][0], bench.server.objects["sets/made_text_document.bin"][0], "split and merged")


def runs(bench):
    local, _ = bench.losses("local", bench.folder / "local_text_document")
    expect(sum("loss" in line for line in local) == 4, local)
    bench.requests()
    remote, _ = bench.losses("s3", "s3://sets/made_text_document")
    same(remote, local, "losses of s3://")
    asked = bench.requests()
    expect(all(r["range"] for r in asked) and any(r["if_match"] for r in asked), "there is more than ranges, or without If-Match")
    for index in ("document.idx", "document_loss_mask.idx"):  # whether the copy is that of now, and whether there is a mask
        same(sum(index in r["path"] for r in asked), 1, f"requests for {index}, of which there is a copy, or which is not there")
    same(bench.losses("web", f"{bench.server.url}/public/set")[0], local, "losses of http://")
    same(bench.losses("dp2", "s3://sets/made_text_document", "parallelism.dp=2", "training.micro_batch=2")[0],
         bench.losses("local-dp2", bench.folder / "local_text_document", "parallelism.dp=2", "training.micro_batch=2")[0], "dp2")
    # Faults of all kinds, in turn; indexes are read from copies.
    bin_path = "made_text_document\\.bin"
    bench.server.faults = [{"path": bin_path, "after": after, "times": 1, **fault} for after, fault in enumerate((
        {"do": "status", "status": 503}, {"do": "reset", "bytes": 100}, {"do": "cut", "bytes": 1000}, {"do": "status", "status": 429},
        {"do": "short", "bytes": 10}, {"do": "long"}, {"do": "status", "status": 500}))]
    same(bench.losses("faults", "s3://sets/made_text_document")[0], local, "losses while the server fails")
    expect(all(fault["times"] == 0 for fault in bench.server.faults), f"not all faults were met: {bench.server.faults}")
    bench.server.faults = []
    # Resumed, it goes on as it was.
    bench.losses("resumed", "s3://sets/made_text_document", "training.iterations=2", "schedule.kind=constant")
    resumed, log = bench.losses("resumed", "s3://sets/made_text_document")
    same([line for line in resumed if line["iteration"] > 2], [line for line in local if line["iteration"] > 2], "resumed")
    expect("made_text_document.bin" not in log and "made_text_document.idx" not in log, log)  # that they have changed


def mask_of(index):
    """A mask of the loss for the data set of that index, its .bin and its .idx. Each third label does not count."""
    sequences, documents = struct.unpack_from("<QQ", index, 18)
    lengths = struct.unpack_from(f"<{sequences}i", index, 34)
    pointers = [0, *itertools.accumulate(lengths)][:-1]
    rest = index[34 + 12 * sequences:]
    expect(len(rest) == 8 * documents, "the index is not of the form that is expected here")
    mask = index[:17] + b"\x01" + struct.pack(f"<QQ{sequences}i{sequences}q", sequences, documents, *lengths, *pointers) + rest
    return bytes(int(i % 3 != 0) for i in range(sum(lengths))), mask


def masks(bench):
    plain, _ = bench.losses("plain", bench.folder / "local_text_document")
    for ending in (".bin", ".idx"):
        shutil.copy(bench.folder / f"local_text_document{ending}", bench.folder / f"masked{ending}")
    for ending, data in zip((".bin", ".idx"), mask_of((bench.folder / "masked.idx").read_bytes())):
        (bench.folder / f"masked_loss_mask{ending}").write_bytes(data)
    masked, _ = bench.losses("masked", bench.folder / "masked")
    expect(masked != plain, "the mask changes nothing")
    for name in ("masked", "masked_loss_mask"):
        bench.upload(bench.folder / name, f"public/{name}")
    for name, prefix in (("masked-s3", "s3://public/masked"), ("masked-web", f"{bench.server.url}/public/masked")):
        losses, log = bench.losses(name, prefix)
        same(losses, masked, f"losses of {prefix}")
        expect(f"{prefix}_loss_mask says which count in the loss" in log, log)
    # A bucket that may not be listed answers 403 for a mask that is not there.
    bench.upload(bench.folder / "masked", "unlisted/set")
    losses, log = bench.losses("unlisted", "s3://unlisted/set")
    same(losses, plain, "losses without a mask, where 403 is answered for it")
    expect("s3://unlisted/set_loss_mask.idx may not be read" in log, log)
    # Once the mask's index is there, the rest has to be there too.
    for bucket, wanted in (("sets", "404 NoSuchKey"), ("unlisted", "403 AccessDenied")):
        bench.upload(bench.folder / "masked", f"{bucket}/half")
        bench.server.put(f"{bucket}/half_loss_mask.idx", (bench.folder / "masked_loss_mask.idx").read_bytes())
        text = bench.run("run", bench.recipe("half", f"s3://{bucket}/half"), "--device", "cpu", "--out", "none", code=1)
        expect(re.search(r"half\.toml:\d+:\d+: error: data\.paths: the mask of the loss: .*half_loss_mask\.bin.*" + wanted, text), text)
    # A server that answers anything with a page.
    for ending in (".bin", ".idx"):
        bench.server.put(f"sets/half_loss_mask{ending}", b"<html>There is nothing here, but see what else there is.</html>")
    text = bench.run("run", bench.recipe("page", "s3://sets/half"), "--device", "cpu", "--out", "none", code=1)
    expect("half_loss_mask.idx: is not an index, it does not start with MMIDIDX" in text, text)


def reads_ahead(bench):
    """A run begins with requests for many microbatches at once, the process of a pipeline's last stage as that of its first."""
    copies = ["local_text_document"] * 8  # so that samples lie far from one another
    bench.run("data", "merge", *copies, "--output-prefix", "s3://sets/long")
    # One process has at most 16 requests under way. The first of each, the supervisor among them, is for the size of the file.
    for pp, count, flags in ((1, 8, ()), (2, 20, ("--processes",))):
        bench.server.most_busy = 0
        bench.server.faults = [{"method": "GET", "path": "long\\.bin", "after": pp + len(flags), "times": 1 << 30, "do": "together",
                                "count": count}]
        bench.losses(f"ahead{pp}", "s3://sets/long", "training.micro_batch=1", "training.iterations=1", f"parallelism.pp={pp}", flags=flags)
        bench.server.faults = []
        expect(bench.server.most_busy >= count, f"pp {pp}: at most {bench.server.most_busy} requests under way at once")


def mistakes(bench):
    recipe = bench.recipe("good", "s3://sets/made_text_document")
    bench.requests()
    same(bench.run("check", recipe, without=("AWS_REGION", "AWS_SECRET_ACCESS_KEY")).count("error:"), 0, "check without credentials")
    for data, wanted in (("gs://b/x", "gs://: this scheme is not known"), ("s3://B/x", "is no bucket's name"),
                         ("http:///x", "names no host"), ("s3://sets", "names a bucket and nothing in it")):
        for command in ("check", "run"):
            text = bench.run(command, bench.recipe("bad", data), code=1)
            expect(re.search(r"bad\.toml:\d+:\d+: error: .*" + re.escape(wanted), text), text)
    for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"):
        text = bench.run("run", recipe, "--device", "cpu", "--out", "none", code=1, without=(variable,))
        expect(re.search(r"good\.toml:\d+:\d+: error: data\.paths: s3://sets/made_text_document.*" + variable, text), text)
        expect(bench.environment["AWS_SECRET_ACCESS_KEY"] not in text, "a secret is shown")
    same(bench.requests(), [], "requests")
    text = bench.run("run", recipe, "--device", "cpu", "--out", "none", code=1, extra={"AWS_SECRET_ACCESS_KEY": "hunter2"})
    expect("403 SignatureDoesNotMatch" in text and "hunter2" not in text, text)
    text = bench.run("run", bench.recipe("missing", "s3://sets/missing"), "--device", "cpu", "--out", "none", code=1)
    expect(re.search(r"missing\.toml:\d+:\d+: error: .*404 NoSuchKey", text) and "engine data build" in text, text)
    expect(not (bench.folder / "none").exists(), "a run that cannot start has left a folder")
    text = bench.run("run", bench.recipe("vocab", "s3://sets/made_text_document"), "--device", "cpu", "--out", "vocab",
                     "--set", "model.vocab=50", "--set", "data.tokenizer.kind=none", code=1)
    expect("made_text_document.bin: token" in text and "is outside the model's vocabulary, 0 to 49" in text, text)
    with bench.server.lock:
        data = bytearray(bench.server.objects["sets/made_text_document.bin"][0])
    bench.server.put("sets/changing.bin", bytes(data))
    bench.server.put("sets/changing.idx", bench.server.objects["sets/made_text_document.idx"][0])
    bench.server.faults = [{"path": "changing\\.bin", "after": 2, "do": "change", "bytes": 2}]
    text = bench.run("run", bench.recipe("changing", "s3://sets/changing"), "--device", "cpu", "--out", "changing", code=1)
    expect("it has changed since it was opened" in text, text)
    bench.server.faults = []
    for output, wanted in (("http://h/x", "by http(s)://"), ("s3://sets", "names a bucket and nothing in it"), ("s3://sets/", "names a bucket")):
        text = bench.run("data", "build", "--input", "texts", "--output-prefix", output, code=1)
        expect(wanted in text, text)
    bench.server.faults = [{"method": "PUT", "do": "status", "status": 403, "code": "AccessDenied", "times": 9}]
    text = bench.run("data", "build", "--input", "texts", "--output-prefix", "s3://sets/refused", code=1)
    expect("403 AccessDenied" in text and len(bench.requests()) > 0, text)
    bench.server.faults = [{"method": "PUT", "path": "\\.bin", "do": "status", "status": 403, "code": "AccessDenied", "times": 9}]
    text = bench.run("data", "build", "--input", "texts", "--output-prefix", "s3://sets/refused", code=1)
    folder = pathlib.Path(text.strip().split("; what was made is in ")[1])
    expect((folder / "made_text_document.idx").is_file(), text)
    bench.server.faults = []


def sockets(bench):
    if shutil.which("strace") is None:
        print("skipped: strace is missing, so whether paths open sockets is not looked at")
        return
    trace = bench.folder / "trace"
    probe = subprocess.run(["strace", "-f", "-e", "trace=network", "-o", str(trace), bench.engine, "data", "info", "local_text_document"],
                           cwd=bench.folder, env=bench.environment, capture_output=True, text=True)
    if probe.returncode != 0:
        print(f"skipped: strace does not work here: {probe.stderr.strip()}")
        return
    expect("socket(" not in trace.read_text(), trace.read_text())


def main():
    engine = str(pathlib.Path(sys.argv[1]).resolve())
    with tempfile.TemporaryDirectory(prefix="engine-s3-") as folder:
        bench = Bench(engine, pathlib.Path(folder).resolve())
        for check in (builds, conversations, looks, runs, masks, reads_ahead, mistakes, sockets):
            try:
                check(bench)
            except Failed as failure:
                print(f"{check.__name__}: {failure}")
                return 1
            print(f"{check.__name__}: as it should be")
    return 0


if __name__ == "__main__":
    sys.exit(main())
