#!/usr/bin/python3
"""`cmake --install` into an empty folder: what is there, and that the program which is there works by itself, also with
the libraries of the tarball (tools/package).

usage: install.py BUILD-FOLDER
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

FILES = """
    bin/engine share/engine/recipes/quickstart.toml share/engine/configs/models/llama3-8b.toml
    share/engine/schemas/recipe.schema.json share/engine/schemas/study.schema.json share/engine/.taplo.toml
    share/bash-completion/completions/engine share/zsh/site-functions/_engine share/fish/vendor_completions.d/engine.fish
    share/man/man1/engine.1 share/doc/engine/LICENSE share/doc/engine/README.md share/doc/engine/docs/ci.md
""".split()

# Libraries that the tarball leaves to the system: those of the packages libc6, libstdc++6 and libgcc-s1.
SYSTEM_LIBRARIES = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1", "libresolv.so.2", "libstdc++.so.6",
                    "libgcc_s.so.1"}

USER_RECIPE = """extends = ["engine:configs/models/gpt2-124m.toml", "engine:configs/data/fortunes.toml",
           "engine:configs/clusters/cpu.toml"]
[data]
sequence_length = 1024
[optimizer]
learning_rate = 1e-3
[training]
global_batch = 4
micro_batch = 1
iterations = 10
"""


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    failures = []

    def check(holds, what):
        if not holds:
            failures.append(what)

    with tempfile.TemporaryDirectory() as name:
        top = pathlib.Path(name)
        prefix = top / "pre fix"
        environment = {key: value for key, value in os.environ.items() if key not in ("DESTDIR", "ENGINE_DATA")}
        subprocess.run(["cmake", "--install", build, "--prefix", prefix], check=True, stdout=subprocess.DEVNULL,
                       env=environment)
        for file in FILES:
            check((prefix / file).is_file() and (prefix / file).stat().st_size > 0, f"{file} is not installed")
        check(not any(prefix.rglob("CMakeCache.txt")), "the build's own files are installed")

        def engine(*arguments, **variables):
            result = subprocess.run([prefix / "bin/engine", *map(str, arguments)], cwd=top, capture_output=True,
                                    text=True, env={**environment, **variables}, check=False)
            return result.returncode, result.stdout + result.stderr

        shipped = prefix / "share/engine/recipes/quickstart.toml"
        code, text = engine("check", shipped)
        check(code == 0, f"an installed recipe: {text}")
        code, text = engine("check", "--strict", "engine:recipes/quickstart.toml", "engine:recipes/studies/gelu-swiglu.toml")
        check(code == 0, f"an installed recipe and study by name: {text}")

        user = top / "user" / "mine.toml"
        user.parent.mkdir()
        user.write_text(USER_RECIPE)
        code, text = engine("check", "--root", user.parent, user)
        check(code == 0, f"a user's recipe that extends engine:configs: {text}")
        code, text = engine("resolve", user)
        check(re.search(r"^layers = 12 +# engine:configs/models/gpt2-124m.toml:\d+:\d+$", text, re.M), f"origins: {text}")
        user.write_text(USER_RECIPE.replace("gpt2-124m", "nothing"))
        code, text = engine("check", user)
        check(code == 1 and f"is not in '{prefix}/share/engine' (" in text, f"a shipped file that is missing: {text}")
        user.write_text(USER_RECIPE)
        code, text = engine("check", user, ENGINE_DATA=str(top))
        check(code == 1 and f"is not in '{top}' (" in text, f"ENGINE_DATA: {text}")

        # CUDA's libraries are looked for where the build looks for them, and nothing in the build folder is.
        paths = [{path for line in re.findall(r"R(?:UN)?PATH.*\[(.*)\]", subprocess.run(
                      ["readelf", "-d", program], check=True, text=True, capture_output=True).stdout)
                  for path in line.split(":") if path}
                 for program in (build / "engine", prefix / "bin/engine")]
        check(paths[1] == paths[0] | {"$ORIGIN/../lib/engine"} and str(build) not in str(paths[1]),
              f"where libraries are looked for: {paths}")
        built = subprocess.run([build / "engine", "--version"], check=True, text=True, capture_output=True).stdout
        check(engine("--version") == (0, built), "the version of what was built")

        # The tarball's libraries: all come from its own folder, which may lie anywhere.
        subprocess.run(["cmake", "--install", build, "--component", "libraries", "--prefix", prefix], check=True,
                       stdout=subprocess.DEVNULL, env=environment)
        prefix = prefix.rename(top / "moved")
        libraries = dict(re.findall(r"^\s*(\S+) => (.*) \(0x", subprocess.run(
            ["ldd", prefix / "bin/engine"], check=True, text=True, capture_output=True, env=environment).stdout, re.M))
        outside = {name: path for name, path in libraries.items()
                   if name not in SYSTEM_LIBRARIES and pathlib.Path(path).resolve().parent != prefix / "lib/engine"}
        check(len(libraries) > 20 and not outside, f"libraries of the tarball that come from outside: {outside} of {len(libraries)}")
        licences = {file.name for file in (prefix / "share/doc/engine/licences").iterdir() if file.stat().st_size > 0}
        check({"libdnnl2", "zlib1g"} <= licences or {"libdnnl3", "zlib1g"} <= licences, f"licences of the libraries: {licences}")
        check(engine("check", "--strict", "engine:recipes/quickstart.toml")[0] == 0, "the installation that was moved")

    print("\n".join(failures) or f"{len(FILES)} files installed, and the program runs from there")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
