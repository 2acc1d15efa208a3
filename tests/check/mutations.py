#!/usr/bin/python3
"""Mutated recipes: `engine check` against tests/oracles/lawful.py.

First every key at the borders of its range, then recipes of this repository, spoilt: keys dropped, doubled, misspelt,
moved; values off by one, negative, huge, of the wrong type; sections swapped; texts cut. Fails where the program crashes,
hangs or lets an unlawful recipe pass, and where it refuses a lawful one for a reason that arithmetic decides (codes
E1.., E2.., E303). Refusals that need a plan (E301, E302, E305) are counted and listed. Of 5000 and more, each rule of lawful.py
must have refused something.

usage: mutations.py ENGINE [--count N] [--seed N] [--keep DIR]
"""
import argparse
import collections
import itertools
import json
import math
import pathlib
import random
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests/oracles"))
import lawful  # noqa: E402

BATCH = 100  # recipes of one call
SECONDS_A_CALL, SECONDS_ALONE = 120, 30

# A recipe, and what is set in it so that more rules have something to refuse. None: the key is left out.
BASES = [
    ("recipes/quickstart.toml", {}),
    ("recipes/quickstart.toml", {"schedule.kind": "wsd", "schedule.wsd_decay_iterations": 100}),
    ("recipes/quickstart.toml", {"training.iterations": 0, "training.samples": 9600, "schedule.decay_iterations": 0,
                                 "schedule.warmup_iterations": 0, "schedule.warmup_samples": 800,
                                 "schedule.decay_samples": 9000, "data.weights": [1.0]}),
    ("recipes/quickstart.toml", {"training.rampup.start": 8, "training.rampup.increment": 8,
                                 "training.rampup.samples": 800, "schedule.warmup_iterations": 0,
                                 "schedule.decay_iterations": 0}),
    ("recipes/quickstart.toml", {"parallelism.pp": 2, "parallelism.layers_per_stage": [5, 3],
                                 "parallelism.sequence_parallel": True, "model.attention.kv_heads": 4}),
    ("recipes/quickstart.toml", {"data.documents": "masked", "data.packing": "best_fit", "data.tokenizer.kind": "byte",
                                 "data.mask_end_of_document_loss": True}),
    ("recipes/gpt2-large-dp2pp2.toml", {}),
    ("recipes/gpt2-large-cp2tp2.toml", {"parallelism.exchange": "push"}),
    ("recipes/gpt2-large-pp2-zb.toml", {"cluster.nodes": 0}),
    ("recipes/gpt2-large-4gpu-zero3.toml", {"precision.gradient_dtype": "bf16", "cluster.devices_per_node": 0}),
    ("recipes/llama-7b-1gpu-fp8.toml", {"precision.fp8_head": True}),
    ("recipes/llama3-8b-cp2.toml", {"model.attention.rope_scaling.factor": 8.0, "precision.master_dtype": "bf16",
                                  "model.attention.rope_scaling.low_frequency_factor": 3}),
    ("recipes/quickstart.toml", {"parallelism.pp": 2, "parallelism.virtual_stages": 2,
                                 "parallelism.schedule": "interleaved"}),
    ("recipes/quickstart.toml", {"model.hidden": 24, "model.mlp.hidden": 0, "parallelism.tp": 1}),
    # Unlawful as they are.
    ("recipes/quickstart.toml", {"recompute.granularity": "selective", "recompute.modules": []}),
    ("recipes/quickstart.toml", {"data.documents": "masked", "data.tokenizer.kind": None}),
    ("recipes/quickstart.toml", {"training.rampup.start": 8, "training.rampup.increment": 8, "training.rampup.samples": 800,
                                 "training.pad_batch": True, "parallelism.pp": 2, "parallelism.virtual_stages": 2,
                                 "parallelism.schedule": "interleaved", "schedule.warmup_iterations": 0,
                                 "schedule.decay_iterations": 0}),
    ("recipes/quickstart.toml", {"cluster.nodes": 0, "cluster.devices_per_node": 3}),
    ("recipes/quickstart.toml", {"data.mask_end_of_document_loss": True, "data.tokenizer.kind": "none"}),
    ("recipes/gpt2-large-4gpu-zero3.toml", {"precision.compute": "fp8"}),
    ("recipes/quickstart.toml", {f"parallelism.{axis}": 1048576 for axis in ("dp", "tp", "pp", "cp")}),
    ("recipes/quickstart.toml", {"model.hidden": 1 << 30, "model.mlp.hidden": 1 << 20, "parallelism.dp": 1}),
]
WRONG = ['"x"', '"12"', "true", "1.5", "[]", "[1]", "{}", "{ a = 1 }", "1979-05-27", "07:32:00", "nan", "-inf", '""']
HUGE = ["2147483648", "4611686018427387904", "9223372036854775807", "9223372036854775808", "1" + 30 * "0", "1e300", "1e999",
        "1000000000000000", "1073741824", "1048576", "0xFFFFFFFF"]


def quoted(value):
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, list):
        return "[" + ", ".join(quoted(item) for item in value) + "]"
    return repr(value)


def base_sections(path, changes):
    """[[section, [[key, text of the value]]]] of a recipe, in the order of lawful.KEYS."""
    values, reasons = lawful.flatten(lawful.load(ROOT / path), WARNINGS)
    assert not reasons, reasons
    values.update(changes)
    values = {key: value for key, value in values.items() if value is not None}
    sections = {name: [] for name in lawful.KEYS}
    for key, value in values.items():
        table, name = key.rsplit(".", 1)
        sections[table].append([name, quoted(value)])
    return [[name, lines] for name, lines in sections.items() if lines]


def to_text(sections):
    return "\n".join(f"[{name}]\n" + "".join(f"{key} = {value}\n" for key, value in lines) for name, lines in sections)


def numbers_in(sections):
    return [line for _, lines in sections for line in lines if re.fullmatch(r"-?\d+", line[1])]


def pick(sections, random):
    lines = random.choice([lines for _, lines in sections if lines])
    return lines, random.randrange(len(lines))


def put(sections, table, key, value):
    for name, lines in sections:
        if name == table:
            lines[:] = [line for line in lines if line[0] != key] + [[key, value]]
            return
    sections.append([table, [[key, value]]])


def drop(sections, random):
    lines, at = pick(sections, random)
    del lines[at]


def double(sections, random):
    lines, at = pick(sections, random)
    lines.insert(random.randrange(len(lines) + 1), list(lines[at]))


def misspell(sections, random):
    lines, at = pick(sections, random)
    key = lines[at][0]
    i = random.randrange(len(key))
    lines[at][0] = random.choice([key[:i] + key[i + 1:], key[:i] + key[i] + key[i:], key[:i] + "x" + key[i + 1:],
                                  key.capitalize(), key + "s", key[::-1]]) or "x"


def move(sections, random):
    lines, at = pick(sections, random)
    random.choice(sections)[1].append(lines.pop(at))


def nudge(sections, random):
    line = random.choice(numbers_in(sections))
    line[1] = str(int(line[1]) + random.choice([-1, 1]))


def scale(sections, random):
    """By small factors, so that many stay lawful."""
    line = random.choice(numbers_in(sections))
    value = int(line[1])
    line[1] = str(random.choice([value * 2, value * 3, value // 2, value * 4, max(1, value // 3)]))


def negate(sections, random):
    line = random.choice(numbers_in(sections))
    line[1] = random.choice(["-" + line[1].lstrip("-"), "-1", "0", "-9223372036854775808"])


def inflate(sections, random):
    lines, at = pick(sections, random)
    lines[at][1] = random.choice(HUGE)


def mistype(sections, random):
    lines, at = pick(sections, random)
    lines[at][1] = random.choice(WRONG)


def exchange_values(sections, random):
    a, b = random.sample(numbers_in(sections), 2)
    a[1], b[1] = b[1], a[1]


def set_another(sections, random):
    """Any key at all, to a value at or beyond the border of its range, or to a word."""
    table = random.choice(list(lawful.KEYS))
    key, kind = random.choice(list(lawful.KEYS[table].items()))
    inner = kind[1] if kind[0] == "list" else kind
    if inner[0] == "word":
        value = quoted(random.choice(inner[1] or WARNINGS) + random.choice(["", "", "", "x"]))
    elif inner[0] in ("whole", "real"):
        low, high = (0 if abs(bound) == lawful.INF else bound for bound in inner[1:3])
        value = repr(random.choice([low, high, low + 1, low - 1, high + 1, high - 1, 2, 4]))
    elif inner[0] == "bytes":
        value = random.choice(["0", '"80 GB"', '"1.5 GiB"', '"80 gigabytes"', "-1", '"9 PB"', "1e9"])
    elif inner[0] == "flag":
        value = random.choice(["true", "false", "1"])
    else:
        value = random.choice(['"949,50,1"', '"1,0,0"', '"0,1"', '"a"', '"1,2,3,4"', '""', '"1"'])
    if kind[0] == "list":
        value = "[" + ", ".join([value] * random.randrange(4)) + "]"
    put(sections, table, key, value)


def swap_sections(sections, random):
    a, b = random.sample(sections, 2)
    a[0], b[0] = b[0], a[0]


def reorder(sections, random):
    """Lawful: the order of sections means nothing."""
    random.shuffle(sections)


def double_section(sections, random):
    name, lines = random.choice(sections)
    sections.append([name, [] if random.random() < 0.5 else [list(line) for line in lines]])


def drop_section(sections, random):
    del sections[random.randrange(len(sections))]


def rename_section(sections, random):
    section = random.choice(sections)
    section[0] = random.choice([section[0] + "s", section[0][1:] or "x", section[0].upper(), "a." + section[0], "extends"])


ARITHMETIC = [nudge, scale, exchange_values, set_another]
STRUCTURED = [drop, double, misspell, move, negate, inflate, mistype, swap_sections, reorder, double_section, drop_section,
              rename_section, *ARITHMETIC]


def spoil_text(text, random):
    """What no structure survives: a cut, a character less or another one."""
    at = random.randrange(len(text))
    return random.choice([text[:at], text[:at] + text[at + 1:],
                          text[:at] + random.choice("[]{}=.,\"'\\\n#0é\t") + text[at + 1:],
                          text[:at] + text[random.randrange(len(text)):]])


def borders(kind):
    """Texts of values at, next to and beyond the borders of a key's range, and of other types."""
    name, *limits = kind
    if name == "list":
        return ["[]"] + [f"[{text}]" for text in borders(kind[1])]
    if name == "word":
        return [quoted(word) for word in limits[0] or WARNINGS[:2]] + ['"x"', '""', "1"]
    if name == "flag":
        return ["true", "false", "0"]
    if name == "text":
        return ['"x"', '""', "1", "true"]
    if name == "bytes":
        return ["-1", "0", "1", str(lawful.COUNT), str(lawful.COUNT + 1), '"1 PB"', '"1 XB"', "1.0"]
    low, high = limits[:2]
    if name == "whole":
        top = 2**63 - 1 if high == lawful.INF else high
        return [str(low - 1), str(low), str(low + 1), str(top - 1), str(top), str(top + 1), f"{low}.0"]
    values = [0 if low == -lawful.INF else low] + ([] if high == lawful.INF else [high])
    return [repr(v) for value in map(float, values)
            for v in (value, math.nextafter(value, -math.inf), math.nextafter(value, math.inf))] + ["1", '"1"']


def sweep():
    """Each key of the table once at each border."""
    for table, keys in lawful.KEYS.items():
        for key, kind in keys.items():
            for value in borders(kind):
                sections = base_sections(*BASES[0])
                put(sections, table, key, value)
                yield to_text(sections)


def mutants(count, seed):
    generator = random.Random(seed)
    yield from itertools.islice(sweep(), count)
    while True:
        sections = base_sections(*generator.choice(BASES))
        arithmetic = generator.random() < 0.5
        for _ in range(generator.choice([1, 1, 1, 2, 2, 3])):
            mutate = generator.choice(ARITHMETIC) if arithmetic else generator.choice(STRUCTURED)
            mutate(sections, generator)
        text = to_text(sections)
        yield spoil_text(text, generator) if not arithmetic and generator.random() < 0.15 else text


def call(engine, files, seconds):
    """Diagnostics by file; None where the program crashed or hung."""
    try:
        result = subprocess.run([engine, "check", "--format", "json", *files], capture_output=True, timeout=seconds,
                                check=False)
        if result.returncode not in (0, 1):
            return None
        report = json.loads(result.stdout)
    except (subprocess.TimeoutExpired, json.JSONDecodeError):
        return None
    return {entry["file"]: entry["diagnostics"] for entry in report["files"]}


def check_all(engine, files):
    """(diagnostics by file, files that crash or hang the program)."""
    found, fatal = {}, []
    for first in range(0, len(files), BATCH):
        batch = files[first:first + BATCH]
        together = call(engine, batch, SECONDS_A_CALL)
        for file in batch:
            one = {file: together[file]} if together else call(engine, [file], SECONDS_ALONE)
            if one is None:
                fatal.append(file)
            else:
                found.update(one)
    return found, fatal


def compare(texts, found, fatal):
    """Prints what disagrees and a summary; (number of failures, how often each reason refused)."""
    failures, plan_refusals, fired, tally = 0, collections.Counter(), collections.Counter(), collections.Counter()

    def fail(file, what):
        nonlocal failures
        failures += 1
        print(f"FAIL {file}: {what}")

    for file, text in texts.items():
        if file in fatal:
            fail(file, "the program crashed or hung")
            continue
        reasons = lawful.reasons_of_text(text, WARNINGS)
        fired.update(set(reasons))
        errors = [d for d in found[file] if d["severity"] == "error"]
        tally["lawful" if not reasons else "unlawful", "refused" if errors else "passed"] += 1
        if reasons and not errors:
            fail(file, f"passed although {'; '.join(reasons)}")
        elif errors and not reasons:
            for error in errors:
                if error["code"] in ("E301", "E302", "E305"):
                    text_alone = re.sub(r"[0-9][0-9.,]*", "N", error["message"].splitlines()[0])[:90]
                    plan_refusals[f"{error['code']} {text_alone}"] += 1
                else:
                    fail(file, f"lawful, but refused: {error['code']} {error['message']}")
        if any(d["code"] == "" and d["severity"] != "note" for d in found[file]):
            fail(file, "a diagnostic without a code")
    for (judged, done), count in sorted(tally.items()):
        print(f"{count:6} {judged}, {done}")
    for reason, count in plan_refusals.most_common():
        print(f"{count:6} of the lawful refused by the plan: {reason}")
    return failures, fired


def all_reasons():
    """The sentences that the rules of lawful.py can yield."""
    source = (ROOT / "tests/oracles/lawful.py").read_text()
    return set(re.findall(r'yield "([^"]+)"', source))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine")
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=pathlib.Path, help="write the mutants here, and leave them")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.keep or pathlib.Path(temporary)
        folder.mkdir(exist_ok=True)
        texts = {}
        for number, text in enumerate(itertools.islice(mutants(arguments.count, arguments.seed),
                                                        arguments.count)):
            file = folder / f"{number:05}.toml"
            file.write_text(text)
            texts[str(file)] = text
        found, fatal = check_all(arguments.engine, list(texts))
    failures, fired = compare(texts, found, fatal)
    never = sorted(all_reasons() - set(fired))
    print(f"rules of lawful.py that refused none: {', '.join(never) or 'none'}")
    print(f"{len(texts) - failures} passed, {failures} failed")
    return 1 if failures or (never and arguments.count >= 5000) else 0


# Codes that check.allow takes, from the page that the program writes.
WARNINGS = re.findall(r"^## (W\d+) ", (ROOT / "docs/warnings.md").read_text(), re.MULTILINE)

if __name__ == "__main__":
    sys.exit(main())
