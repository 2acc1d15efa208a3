#!/usr/bin/python3
"""schemas/recipe.schema.json as others read it: an independent validator over all recipes, and over the spoilt ones.

Every file of recipes/ and configs/ must be valid. A file of tests/recipe/bad/ must be refused exactly where `engine
check` finds a mistake of that file's own keys and values (E102) or text (E101): rules across keys and what a file
extends are beyond a schema. TOML is read by Python's tomllib and validated by Debian's python3-jsonschema; with --taplo,
by npm's @taplo/cli as well.
usage: schema.py ENGINE [--taplo PROGRAM]
"""
import argparse
import json
import pathlib
import re
import subprocess
import sys
import tomllib

import jsonschema

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SCHEMA = ROOT / "schemas/recipe.schema.json"
BEYOND = {  # what draft-07 or a validator's number type cannot say
    "number_nan.toml": "JSON has no NaN, and comparisons with it are false",
    "number_infinite.toml": "a number without an upper limit",
    "number_float_overflow.toml": "reads as infinity",
    "number_integer_overflow.toml": "an integer of any length",
    "type_integer_from_float.toml": "2.0 is an integer to JSON Schema",
}


def is_valid(validator, file):
    try:
        return validator.is_valid(tomllib.loads(file.read_text()))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):
        return False


def refused_by_taplo(taplo, files):
    command = [taplo, "lint", "--colors", "never", "--schema", SCHEMA.as_uri(), *map(str, files)]
    log = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT).stderr
    return {pathlib.Path(path) for path in re.findall(r'invalid file .*path="([^"]+)"', log)}


def refused_by_engine(engine, files):
    """The files with a mistake in their own text, keys or values."""
    report = json.loads(subprocess.run([engine, "check", "--format", "json", *map(str, files)], capture_output=True,
                                       check=False).stdout)
    return {pathlib.Path(entry["file"]) for entry in report["files"]
            if any(d["code"] in ("E101", "E102") and d["file"] == entry["file"] for d in entry["diagnostics"])}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine")
    parser.add_argument("--taplo")
    arguments = parser.parse_args()
    schema = json.loads(SCHEMA.read_text())
    jsonschema.Draft7Validator.check_schema(schema)

    good = sorted(f for top in ("recipes", "configs") for f in (ROOT / top).rglob("*.toml")
                  if "[study]" not in f.read_text())
    bad = sorted((ROOT / "tests/recipe/bad").glob("*.toml"))
    refused = refused_by_engine(arguments.engine, bad)
    validator = jsonschema.Draft7Validator(schema)
    invalid = {"jsonschema": {file for file in good + bad if not is_valid(validator, file)}}
    if arguments.taplo:
        invalid["taplo"] = refused_by_taplo(arguments.taplo, good + bad)
    failures = 0
    for name, files in invalid.items():
        wrong = [f"{file.relative_to(ROOT)}: refused by {name}" for file in good if file in files]
        for file in bad:
            if file.name not in BEYOND and (file in files) != (file in refused):
                wrong.append(f"{file.relative_to(ROOT)}: {name} says {'invalid' if file in files else 'valid'}, "
                             f"engine check {'refuses' if file in refused else 'passes'} its keys and values")
        print("\n".join(wrong) or f"{name}: {len(good)} recipes valid, {len(bad)} spoilt ones as engine check has them")
        failures += len(wrong)
    return 1 if failures or not good or not bad else 0


if __name__ == "__main__":
    sys.exit(main())
