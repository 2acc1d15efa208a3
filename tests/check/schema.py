#!/usr/bin/python3
"""The schemas as others read them: an independent validator over all recipes and studies, and over the spoilt ones.

Every file of recipes/ and configs/ must be valid. A file of tests/recipe/bad/ must be refused exactly where `engine
check` finds a mistake of that file's own keys and values (E102) or text (E101): rules across keys and what a file
extends are beyond a schema. The studies below must be refused exactly where `engine check` refuses them. Each file of
recipes/ and configs/ names its schema, or .taplo.toml does. TOML is read by Python's tomllib and validated by Debian's python3-jsonschema; with --taplo,
by npm's @taplo/cli as well.
usage: schema.py ENGINE [--taplo PROGRAM]
"""
import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import tomllib

import jsonschema

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SCHEMA = ROOT / "schemas/recipe.schema.json"
STUDY_SCHEMA = ROOT / "schemas/study.schema.json"
BEYOND = {  # what draft-07 or a validator's number type cannot say
    "number_nan.toml": "JSON has no NaN, and comparisons with it are false",
    "number_infinite.toml": "a number without an upper limit",
    "number_float_overflow.toml": "reads as infinity",
    "number_integer_overflow.toml": "an integer of any length",
    "type_integer_from_float.toml": "2.0 is an integer to JSON Schema",
    "split_four.toml": "its pattern says what engine check has a rule for (E206)",
    "split_words.toml": "its pattern says what engine check has a rule for (E206)",
    "prometheus_textfile.toml": "its pattern says what engine check has a rule for (E210)",
}

HEAD = f'[study]\nbase = "{ROOT}/recipes/quickstart.toml"\n'
STUDIES = {  # that `engine check` takes, or not
    "list": HEAD + '[variants.a]\nmodel.mlp = { hidden = 256, activation = "gelu_erf" }\n[variants.b]\ntraining.seed = 1\n',
    "grid": HEAD + "[grid]\noptimizer.learning_rate = [1e-3, 2e-3]\nmodel.mlp = [{ hidden = 256 }, { hidden = 384 }]\n",
    "one": HEAD + 'seeds = [1, 2]\nmetric = "train_loss"\nmetric_iterations = 5\n[one_at_a_time]\nmodel.mlp.hidden = [256]\n',
    "no base": '[study]\ntitle = "x"\n[grid]\noptimizer.learning_rate = [1e-3]\n',
    "no variants": HEAD,
    "empty variants": HEAD + "[variants]\n",
    "two forms": HEAD + "[grid]\noptimizer.learning_rate = [1e-3]\n[variants.a]\ntraining.seed = 1\n",
    "unknown section": HEAD + "[grids]\noptimizer.learning_rate = [1e-3]\n",
    "unknown key": HEAD + "seed = [1]\n[grid]\noptimizer.learning_rate = [1e-3]\n",
    "unknown key of a variant": HEAD + "[variants.a]\nmodel.hiden = 128\n",
    "unknown key of a grid": HEAD + "[grid]\nmodel.hiden = [128]\n",
    "no list": HEAD + "[grid]\noptimizer.learning_rate = 1e-3\n",
    "an empty list": HEAD + "[grid]\noptimizer.learning_rate = []\n",
    "wrong type": HEAD + '[grid]\noptimizer.learning_rate = ["fast"]\n',
    "wrong type in a table": HEAD + '[grid]\nmodel.mlp = [{ hidden = "wide" }]\n',
    "out of range": HEAD + "[variants.a]\nmodel.layers = 0\n",
    "a name of no folder": HEAD + '[variants."a/b"]\ntraining.seed = 1\n',
    "a metric that is none": HEAD + 'metric = "loss"\n[variants.a]\ntraining.seed = 1\n',
    "seeds twice": HEAD + "seeds = [1, 1]\n[variants.a]\noptimizer.learning_rate = 1e-4\n",
    "no iterations": HEAD + "metric_iterations = 0\n[variants.a]\ntraining.seed = 1\n",
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


def wrong_studies(engine):
    """Studies of which the schema and the program think differently."""
    schema = json.loads(STUDY_SCHEMA.read_text())
    jsonschema.Draft7Validator.check_schema(schema)
    validator = jsonschema.Draft7Validator(schema)
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        for name, text in STUDIES.items():
            file = pathlib.Path(folder) / "study.toml"
            file.write_text(text)
            passes = subprocess.run([engine, "check", file], capture_output=True, check=False).returncode == 0
            if validator.is_valid(tomllib.loads(text)) != passes:
                wrong.append(f"study '{name}': engine check {'passes' if passes else 'refuses'} it, the schema does not")
    for file in studies():
        if not is_valid(validator, file):
            wrong.append(f"{file.relative_to(ROOT)}: refused by {STUDY_SCHEMA.name}")
    return wrong


def shipped():
    return sorted(f for top in ("recipes", "configs") for f in (ROOT / top).rglob("*.toml"))


def studies():
    return [f for f in shipped() if re.search(r"^\[study\]", f.read_text(), re.M)]


def files_without_schema():
    """Shipped files that lead an editor to no schema, or to the wrong one."""
    covered = tomllib.loads((ROOT / ".taplo.toml").read_text())["rule"]
    wrong = []
    for file in shipped():
        expected = STUDY_SCHEMA if file in studies() else SCHEMA
        named = re.match(r"(?:#[^\n]*\n)*?#:schema (\S+)\n", file.read_text())
        if named:
            found = (file.parent / named[1]).resolve()
        else:
            found = next((ROOT / rule["schema"]["path"] for rule in covered
                          if any(file in ROOT.glob(pattern) for pattern in rule["include"])), None)
        if found != expected:
            wrong.append(f"{file.relative_to(ROOT)}: its schema is {found}, not {expected}")
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine")
    parser.add_argument("--taplo")
    arguments = parser.parse_args()
    schema = json.loads(SCHEMA.read_text())
    jsonschema.Draft7Validator.check_schema(schema)

    good = [f for f in shipped() if f not in studies()]
    bad = sorted((ROOT / "tests/recipe/bad").glob("*.toml"))
    refused = refused_by_engine(arguments.engine, bad)
    validator = jsonschema.Draft7Validator(schema)
    invalid = {"jsonschema": {file for file in good + bad if not is_valid(validator, file)}}
    if arguments.taplo:
        invalid["taplo"] = refused_by_taplo(arguments.taplo, good + bad)
    others = wrong_studies(arguments.engine) + files_without_schema()
    print("\n".join(others) or f"{len(STUDIES)} studies as engine check has them; all shipped files name their schema")
    failures = len(others)
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
