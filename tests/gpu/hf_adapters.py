#!/usr/bin/env python3
"""Low-rank adapters against PEFT: small random models are made by transformers, trained with [lora] by `engine`, and what
`engine export hf` writes is loaded by PEFT. Needs torch, transformers, peft, safetensors and a built `engine`; no GPU. One
table; the exit code is 0 if all agree, else 1.

  merged   logits of the base model with the exported adapter, as PEFT applies it, against those of `--merge`, read by
           transformers: the largest difference over the largest logit, at most 2e-5
  ours     the same against those of the run itself (`engine generate --logits`)
  moved    how far the adapter has moved the logits, at least 1e-3
  steps    the adapter after two steps of AdamW against torch's with PEFT, from the same first adapter: the largest difference, at
           most 5e-5 (a number moves by up to 2e-2). Of families each of whose modules is one matrix of ours; elsewhere A is shared by
           what PEFT has apart, and the sum of its gradients is another

  tests/gpu/hf_adapters.py --engine build/engine
"""
import argparse
import itertools
import json
import pathlib
import sys
import tempfile

import torch
from hf_transformers import EPSILON, RATE, SMALL, Engine, Failed, made, ready, relative, saved, write_tokens
from peft import PeftModel
from transformers import AutoModelForCausalLM

FAMILIES = ["llama", "gpt2", "gpt_neox", "phi3", "qwen3", "mixtral"]
ONE_MATRIX_A_MODULE = {"gpt_neox", "falcon"}
LIMITS = {"merged": 2e-5, "ours": 2e-5, "steps": 5e-5}
SAMPLES = 4  # two batches of two


def run(engine, folder, name, source, s, tokens, rate):
    """Two iterations with adapters of rank 4; the run's folder and its losses."""
    prefix = write_tokens(folder / "data", tokens)
    engine("import", "hf", source, "--recipe", folder / "model.toml")
    recipe = folder / f"{name}.toml"
    recipe.write_text(f"""extends = ["model.toml"]
[data]
source = "files"
paths = ["{prefix}"]
split = "1,0,0"
sequence_length = {s["S"]}
[optimizer]
learning_rate = {rate}
epsilon = {EPSILON}
weight_decay = 0.0
clip_grad_norm = 0.0
[schedule]
kind = "constant"
warmup_fraction = 0.0
[training]
global_batch = 2
micro_batch = 2
iterations = 2
weights_from = "{source}"
[lora]
rank = 4
alpha = 10.0
""")
    out = folder / name
    engine("run", recipe, "--out", out, "--device", "cpu", "--quiet", "--threads", 1)
    lines = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
    return out, [line["loss"] for line in lines if "loss" in line]


def loss_of(model, samples):
    inputs, labels = samples[:, :-1], samples[:, 1:]
    logits = model(input_ids=inputs, use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def batches_of(model, samples, first_loss):
    """The two batches: which samples come first is the engine's choice, which its first loss tells."""
    def error(pair):
        with torch.no_grad():
            return abs(float(loss_of(model, samples[list(pair)])) - first_loss)
    first = min(itertools.combinations(range(SAMPLES), 2), key=error)
    if error(first) > 1e-5 * first_loss:
        raise Failed(f"no two samples have a loss of {first_loss}: {error(first):.1e} off")
    return samples[list(first)], samples[[i for i in range(SAMPLES) if i not in first]]


def family(engine, name, folder):
    s, cells = SMALL, {}
    torch.manual_seed(3)
    source = folder / "base"
    made(name, s).save_pretrained(source)
    tokens = torch.randint(4, s["V"], (SAMPLES * s["S"] + 1,))
    samples = torch.stack([tokens[i * s["S"]:(i + 1) * s["S"] + 1] for i in range(SAMPLES)])
    rows = samples[:2, :-1]

    def base():
        return ready(AutoModelForCausalLM.from_pretrained(source, attn_implementation="eager").float())

    trained, losses = run(engine, folder, "trained", source, s, tokens, RATE)
    engine("export", "hf", trained, "--adapter", "--out", folder / "adapter")
    engine("export", "hf", trained, "--merge", "--dtype", "fp32", "--out", folder / "merged")
    with torch.no_grad():
        plain = base()(input_ids=rows, use_cache=False).logits
        adapted = PeftModel.from_pretrained(base(), folder / "adapter").eval()(input_ids=rows, use_cache=False).logits
        merged = ready(AutoModelForCausalLM.from_pretrained(folder / "merged", attn_implementation="eager").float())(
            input_ids=rows, use_cache=False).logits
    cells["merged"] = relative(merged, adapted)
    cells["ours"] = relative(engine.logits(trained, rows), adapted)
    cells["moved"] = relative(adapted, plain)
    if cells["moved"] < 1e-3:
        raise Failed("the adapter has hardly moved")
    if name not in ONE_MATRIX_A_MODULE:
        return cells
    still, _ = run(engine, folder, "still", source, s, tokens, 0.0)
    engine("export", "hf", still, "--adapter", "--out", folder / "first")
    model = PeftModel.from_pretrained(base(), folder / "first", is_trainable=True).eval()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=RATE, betas=(0.9, 0.999), eps=EPSILON,
                                  weight_decay=0.0)
    for batch, ours in zip(batches_of(model, samples, losses[0]), losses):
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        if abs(float(loss.detach()) - ours) > 1e-5 * ours:
            raise Failed(f"loss {ours}, and PEFT's is {float(loss.detach())}")
        loss.backward()
        optimizer.step()
    model.save_pretrained(folder / "torch")
    ours, theirs = saved(folder / "adapter"), saved(folder / "torch")
    if ours.keys() != theirs.keys():
        raise Failed(f"other names: {sorted(ours.keys() ^ theirs.keys())[:4]}")
    cells["steps"] = max(float((ours[key] - value).abs().max()) for key, value in theirs.items())
    return cells


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", required=True)
    parser.add_argument("--families", default=",".join(FAMILIES))
    arguments = parser.parse_args()
    engine, failed = Engine(arguments.engine), []
    columns = ["merged", "ours", "moved", "steps"]
    print("| family | " + " | ".join(columns) + " |\n" + "|---" * (len(columns) + 1) + "|", flush=True)
    with tempfile.TemporaryDirectory() as root:
        for name in arguments.families.split(","):
            folder = pathlib.Path(root) / name
            folder.mkdir()
            try:
                cells = family(engine, name, folder)
                good = all(cells.get(column, 0) <= limit for column, limit in LIMITS.items())
                print(f"| {name} | " + " | ".join(f"{cells[c]:.1e}" if c in cells else "–" for c in columns) + " |", flush=True)
            except Exception as error:  # of any kind: the other families go on
                good = False
                print(f"| {name} | FAILED: {str(error)[:700]} |", flush=True)
            if not good:
                failed.append(name)
    if failed:
        print("FAILED: " + ", ".join(failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
