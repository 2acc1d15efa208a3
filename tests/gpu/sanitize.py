#!/usr/bin/python3
"""Runs every compiled form of attention once under NVIDIA's compute-sanitizer: reads and writes out of bounds (memcheck),
wrong barriers (synccheck). Two more have to be asked for. Races in shared memory (racecheck) are looked for in a build with
-DENGINE_RACECHECK=ON; in others that tool reports what it cannot follow. Reads of memory that nothing has written (initcheck) take
minutes, and what the TMA unit writes is unwritten to that tool (version 2025.3.1).

Each tensor of the test is an allocation of its own, of its size, and nothing writes to outputs and scratch before the
kernels. The forms of each size of heads have a process of their own, all of them at once. Exit code 77, skipped, where the tool
is not on the machine.

usage: sanitize.py BUILD/test_gpu [TOOL...]
"""
import glob
import os
import shutil
import subprocess
import sys
import time

TOOLS = ["memcheck", "synccheck"]
TESTS = "gpu attention: every compiled form once*"
FOUND = 9  # exit code of the tool where it finds something
SKIPPED = 77


def sanitizer():
    beside_cuda = glob.glob(os.path.join(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "bin", "compute-sanitizer"))
    return shutil.which("compute-sanitizer") or next(iter(beside_cuda), None)


def cases_of(test_gpu):
    """The names of the test cases."""
    listed = subprocess.run([test_gpu, "--no-skip", "--list-test-cases", f"--test-case={TESTS}"], capture_output=True, text=True,
                            check=True)
    return [line for line in listed.stdout.splitlines() if line.startswith(TESTS.rstrip("*"))]


def run(program, tool, test_gpu, cases):
    """Of each case what the tool printed, where it found something."""
    begin = time.monotonic()
    # In names a comma stands between patterns, so that it is a "?" there.
    processes = {}
    for case in cases:
        command = [program, "--tool", tool, "--error-exitcode", str(FOUND), "--print-limit", "20", test_gpu, "--no-skip",
                   "--test-case=" + case.replace(",", "?")]
        processes[case] = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    found = []
    for case, process in processes.items():
        output = process.communicate()[0]
        ran = "1 passed" in output
        seconds = time.monotonic() - begin
        print(f"{tool}, {case}: exit code {process.returncode}, {'passed' if ran else 'not passed'}, {seconds:.0f} s", flush=True)
        if process.returncode != 0 or not ran:
            found.append(output[-8000:])
    return found


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    program = sanitizer()
    if program is None:
        print("skipped: no compute-sanitizer on this machine")
        return SKIPPED
    cases = cases_of(sys.argv[1])
    if not cases:
        sys.exit(f"{sys.argv[1]} has no test cases {TESTS}")
    failed = []
    for tool in sys.argv[2:] or TOOLS:
        found = run(program, tool, sys.argv[1], cases)
        if found:
            failed.append(tool)
            print("\n".join(found))
    print("found something: " + ", ".join(failed) if failed else "clean")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
