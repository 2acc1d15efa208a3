#!/usr/bin/python3
"""Data sets in buckets of s3rver, an S3 server that others wrote (npm): made there, looked at, trained on, with bytes and losses of files.

One of 40 MB goes there in parts. s3rver takes wrong keys, so that refusals are not tested with it; object_server.py checks signatures.

usage: s3rver.py ENGINE NODE_MODULES     77: there is no s3rver (tools/setup --bench fetches it)
"""
import contextlib
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "gpu"))
from small_run import RECIPE, SIZES  # noqa: E402

SKIPPED = 77


@contextlib.contextmanager
def server(program, folder):
    process = subprocess.Popen([program, "-d", folder, "-p", "0", "-a", "127.0.0.1", "--no-vhost-buckets",
                                "--configure-bucket", "sets"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        for line in process.stdout:
            if found := re.search(r"listening on .*?:(\d+)", line):
                yield f"http://127.0.0.1:{found[1]}"
                return
        raise SystemExit("s3rver does not start")
    finally:
        process.terminate()
        process.wait()


def main():
    engine, modules = str(pathlib.Path(sys.argv[1]).resolve()), pathlib.Path(sys.argv[2])
    program = modules / ".bin" / "s3rver"
    if not program.exists():
        print(f"skipped: {program} is missing; tools/setup --bench fetches it")
        return SKIPPED
    with tempfile.TemporaryDirectory(prefix="engine-s3rver-") as name:
        folder = pathlib.Path(name)
        words = random.Random(1)
        lines = (json.dumps({"text": " ".join(str(words.randrange(1000)) for _ in range(1000))}) for _ in range(5200))
        (folder / "text.jsonl").write_text("\n".join(lines))
        (folder / "store").mkdir()
        with server(program, folder / "store") as url:
            environment = os.environ | {"AWS_ACCESS_KEY_ID": "S3RVER", "AWS_SECRET_ACCESS_KEY": "S3RVER", "AWS_REGION": "us-east-1",
                                        "AWS_ENDPOINT_URL": url, "no_proxy": "127.0.0.1", "ENGINE_CACHE": str(folder / "cache")}

            def run(*arguments):
                done = subprocess.run([engine, *map(str, arguments)], env=environment, cwd=folder, capture_output=True, text=True)
                assert done.returncode == 0, done.stdout + done.stderr
                return done.stdout.splitlines()

            run("data", "build", "--input", "text.jsonl", "--output-prefix", "local")
            run("data", "build", "--input", "text.jsonl", "--output-prefix", "s3://sets/a folder/made+1")
            prefixes = {"local": folder / "local_text_document", "s3": "s3://sets/a folder/made+1_text_document"}
            info = {where: run("data", "info", prefix)[1:] for where, prefix in prefixes.items()}
            assert info["local"] == info["s3"], info
            run("data", "merge", prefixes["s3"], "--output-prefix", "s3://sets/again")
            assert run("data", "info", "s3://sets/again")[2:] == info["local"][1:]
            losses = {}
            for where, prefix in prefixes.items():
                (folder / "r.toml").write_text(RECIPE.format(data=prefix, **SIZES["cpu"]))
                run("run", "r.toml", "--device", "cpu", "--threads", "1", "--out", f"out-{where}")
                losses[where] = [line["loss"] for line in map(json.loads, (folder / f"out-{where}/metrics.jsonl").open()) if "loss" in line]
            assert losses["local"] == losses["s3"] and len(losses["s3"]) == 4, losses
            size = (folder / "local_text_document.bin").stat().st_size
            print(f"{size / 1e6:.0f} MB made in a bucket, read, merged and trained on as files are: losses {losses['s3']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
