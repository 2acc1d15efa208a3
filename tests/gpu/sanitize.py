#!/usr/bin/python3
"""Runs every compiled form of attention once under NVIDIA's compute-sanitizer: reads and writes out of bounds (memcheck),
races in shared memory (racecheck), wrong barriers (synccheck), reads of memory that nothing has written (initcheck).

Each tensor of the test is an allocation of its own, of its size, and nothing writes to outputs and scratch before the
kernels. Exit code 77, skipped, where the tool is not on the machine.

usage: sanitize.py BUILD/test_gpu [TOOL...]
"""
import glob
import os
import shutil
import subprocess
import sys
import time

TOOLS = ["memcheck", "racecheck", "synccheck", "initcheck"]
TEST = "gpu attention: every compiled form once"
FOUND = 9  # exit code of the tool where it finds something
SKIPPED = 77


def sanitizer():
    beside_cuda = glob.glob(os.path.join(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "bin", "compute-sanitizer"))
    return shutil.which("compute-sanitizer") or next(iter(beside_cuda), None)


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    program = sanitizer()
    if program is None:
        print("skipped: no compute-sanitizer on this machine")
        return SKIPPED
    failed = []
    for tool in sys.argv[2:] or TOOLS:
        command = [program, "--tool", tool, "--error-exitcode", str(FOUND), "--print-limit", "20",
                   sys.argv[1], "--no-skip", f"--test-case={TEST}"]
        begin = time.monotonic()
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        seconds = time.monotonic() - begin
        print(f"{tool}: exit code {result.returncode}, {seconds:.0f} s")
        if result.returncode != 0:
            failed.append(tool)
            print(result.stdout[-8000:] + result.stderr[-2000:])
    print("found something: " + ", ".join(failed) if failed else "clean")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
