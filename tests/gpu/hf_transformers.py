#!/usr/bin/env python3
"""Hugging Face's folders both ways against transformers itself: of each family a small random model, made and saved by
transformers, is imported, trained for a step, and exported. Needs torch, transformers (5, or a late 4), safetensors and a built
`engine`, no network and, but for the last column, no GPU. One table; the exit code is 0 if all agree, else 1.

  fp32     our logits of two samples against transformers', of a model saved in float32: the largest difference over the
           largest logit, at most 2e-5
  bf16     the same of the model saved in bfloat16 and in shards; the numbers are the same, and both compute in float32
  export   what `engine export hf` writes of each of the two: the same names, types and bytes as what it was imported from
  load     from_pretrained of the export: no missing and no unexpected keys, no warnings, the same config, equal logits
  loss     the loss of two samples as `engine run` has it, from a folder (training.weights_from): relative difference, at most 1e-5
  step     the weights after one step of AdamW, exported, against torch's: the largest difference, at most 2e-5 (a weight moves
           by up to 1e-2)
  gpu      the loss of a larger model, both in bfloat16 on the GPU: relative difference, at most 1e-2

  tests/gpu/hf_transformers.py --engine build/engine
  tests/gpu/hf_transformers.py --engine build/engine --families llama,gpt2 --no-gpu --keep /tmp/folders
"""
import argparse
import contextlib
import json
import logging
import math
import multiprocessing
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from concurrent.futures import ThreadPoolExecutor

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
import numpy as np
import torch
import transformers
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM

COLUMNS = {"fp32": 2e-5, "bf16": 2e-5, "export": None, "load": None, "loss": 1e-5, "step": 2e-5, "gpu": 1e-2}
NEW = int(transformers.__version__.split(".")[0]) >= 5
RATE, EPSILON = 1e-2, 1e-3  # of AdamW: a gradient that is rounding alone must not move a weight by the rate
# Widths: odd ones, and some that a GPU's kernels take. E: of a head where a config says it; groups: D, H and K of grouped queries;
# latent: of queries, of keys and values, then of a head not rotated, rotated, and of its values; std: of
# matrices.
SMALL = dict(V=131, D=40, H=5, K=1, E=12, F=37, L=3, P=32, S=16, W=5, R=4, X=7, T=2, G=11, Y=23, std=0.2, groups=(36, 6, 2),
             latent=(14, 10, 6, 8, 7))
LARGE = dict(V=512, D=256, H=4, K=1, E=64, F=512, L=2, P=256, S=128, W=48, R=32, X=8, T=2, G=64, Y=128, std=0.08, groups=(256, 4, 2),
             latent=(128, 64, 128, 64, 128))


# Families: name → model_type and what a config has beside the common keys, of widths `s`.

def rope(theta, partial=None, **more):
    """transformers 5 has one dict; 4 has keys beside the others, some under names of a family's own."""
    if NEW:
        keys = {"rope_type": "default", "rope_theta": theta, **more}
        return {"rope_parameters": keys if partial is None else {**keys, "partial_rotary_factor": partial}}
    keys = {"rope_theta": theta} | ({"rope_scaling": more} if more else {})
    return keys if partial is None else {**keys, "partial_rotary_factor": partial}


def base(s, **more):
    return dict(vocab_size=s["V"], hidden_size=s["D"], num_hidden_layers=s["L"], num_attention_heads=s["H"], tie_word_embeddings=False,
                max_position_embeddings=s["P"], **more)


def llama(s, kv=None, **more):
    return base(s, num_key_value_heads=kv or s["K"], intermediate_size=s["F"], rms_norm_eps=1e-6, attention_dropout=0.0) | more


def grouped(s):
    width, heads, kv = s["groups"]
    return dict(s, D=width, H=heads, K=kv)


def old(s, **more):
    return dict(vocab_size=s["V"], n_positions=s["P"], n_embd=s["D"], n_layer=s["L"], n_head=s["H"], n_inner=s["F"], resid_pdrop=0.0,
                embd_pdrop=0.0, attn_pdrop=0.0, activation_function="gelu_new", layer_norm_epsilon=1e-5, **more)


def gemma(s, **more):
    return llama(s, head_dim=s["E"], hidden_activation="gelu_pytorch_tanh", tie_word_embeddings=True) | more


def sliding(s, full_every):
    return ["full_attention" if (i + 1) % full_every == 0 else "sliding_attention" for i in range(s["L"])]


def local_and_global():
    if NEW:
        return {"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                                    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}}
    return dict(rope_theta=1e6, rope_local_base_freq=1e4, rope_scaling={"rope_type": "linear", "factor": 8.0})


def latent(s, **more):
    query, low, nope, turned, value = s["latent"]
    return base(s, num_key_value_heads=s["H"], intermediate_size=s["F"], rms_norm_eps=1e-6, kv_lora_rank=low, q_lora_rank=query,
                qk_nope_head_dim=nope, qk_rope_head_dim=turned, v_head_dim=value, first_k_dense_replace=1, n_shared_experts=2,
                moe_intermediate_size=s["G"], num_experts_per_tok=3, attention_bias=False, attention_dropout=0.0) | more


def experts(s, **more):
    return dict(num_experts=s["X"], num_experts_per_tok=s["T"], moe_intermediate_size=s["G"], decoder_sparse_step=1, mlp_only_layers=[],
                use_sliding_window=False, router_aux_loss_coef=0.0, **more)


def long_factors(s):
    half = s["D"] // s["H"] // 2
    return dict(rope_type="longrope", long_factor=[1.5 + 0.5 * i for i in range(half)], short_factor=[1.0 + 0.1 * i for i in range(half)])


LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=0.1, high_freq_factor=1.25, original_max_position_embeddings=8)
YARN = dict(rope_type="yarn", factor=4.0, beta_fast=32.0, beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0)
FAMILIES = {
    "gpt2": ("gpt2", lambda s: old(s)),
    "gpt_neox": ("gpt_neox", lambda s: base(s, intermediate_size=s["F"], hidden_act="gelu", layer_norm_eps=1e-5, attention_dropout=0.0,
                                            hidden_dropout=0.0, use_parallel_residual=True)
                 | (rope(1e4, 0.5) if NEW else dict(rotary_pct=0.5, rotary_emb_base=10000))),
    "gptj": ("gptj", lambda s: old(s, rotary_dim=s["R"], tie_word_embeddings=False)),
    "opt": ("opt", lambda s: base(s) | dict(ffn_dim=s["F"], word_embed_proj_dim=s["D"], do_layer_norm_before=True, dropout=0.0,
                                            attention_dropout=0.0, layerdrop=0.0, activation_function="relu",
                                            tie_word_embeddings=True)),
    "falcon": ("falcon", lambda s: base(s) | rope(1e4) | dict(
        ffn_hidden_size=s["F"], multi_query=True, parallel_attn=True, bias=False, alibi=False, new_decoder_architecture=False,
        hidden_dropout=0.0, attention_dropout=0.0, tie_word_embeddings=True)),
    "falcon_grouped": ("falcon", lambda s: base(grouped(s)) | rope(1e4) | dict(
        ffn_hidden_size=s["F"], num_kv_heads=grouped(s)["K"], new_decoder_architecture=True, bias=False, alibi=False,
        hidden_dropout=0.0, attention_dropout=0.0, tie_word_embeddings=True)),
    "llama": ("llama", lambda s: llama(grouped(s)) | rope(5e5)),
    "llama3": ("llama", lambda s: llama(s, s["H"]) | rope(1e4, **LLAMA3)),
    "llama_tied": ("llama", lambda s: llama(s, tie_word_embeddings=True, attention_bias=True) | rope(1e4)),
    "mistral": ("mistral", lambda s: llama(s, head_dim=s["E"], sliding_window=s["W"]) | rope(1e4)),
    "qwen2": ("qwen2", lambda s: llama(grouped(s), use_sliding_window=False) | rope(1e6)),
    "qwen3": ("qwen3", lambda s: llama(s, head_dim=s["E"], tie_word_embeddings=True) | rope(1e6)),
    "gemma": ("gemma", lambda s: gemma(s, hidden_act="gelu_pytorch_tanh") | rope(1e4)),
    "gemma2": ("gemma2", lambda s: gemma(grouped(s), query_pre_attn_scalar=11, sliding_window=s["W"], layer_types=[
        "full_attention" if i % 2 else "sliding_attention" for i in range(s["L"])], attn_logit_softcapping=2.0,
        final_logit_softcapping=3.0) | rope(1e4)),
    "gemma3_text": ("gemma3_text", lambda s: gemma(dict(s, L=6), query_pre_attn_scalar=11, sliding_window=s["W"],
                                                   layer_types=sliding(dict(s, L=6), 6)) | local_and_global()),
    "phi3": ("phi3", lambda s: llama(s, s["H"], sliding_window=s["W"], original_max_position_embeddings=s["P"]) | rope(1e4)),
    "phi3_long": ("phi3", lambda s: llama(s, s["H"], original_max_position_embeddings=s["S"])
                  | rope(1e4, **long_factors(s))),
    "olmo2": ("olmo2", lambda s: llama(grouped(s), attention_bias=False) | rope(5e5)),
    "stablelm": ("stablelm", lambda s: {key: value for key, value in llama(s).items() if key != "rms_norm_eps"}
                 | dict(layer_norm_eps=1e-5, use_qkv_bias=True, qk_layernorm=False, use_parallel_residual=False,
                        hidden_dropout=0.0) | rope(1e4, 0.5)),
    "mixtral": ("mixtral", lambda s: llama(s, intermediate_size=s["G"], num_local_experts=s["X"], num_experts_per_tok=s["T"],
                                           sliding_window=None, router_aux_loss_coef=0.0) | rope(1e6)),
    "olmoe": ("olmoe", lambda s: llama(s, s["H"], intermediate_size=s["G"], num_experts=s["X"], num_experts_per_tok=s["T"],
                                       norm_topk_prob=False, clip_qkv=None, router_aux_loss_coef=0.0) | rope(1e4)),
    "qwen2_moe": ("qwen2_moe", lambda s: llama(grouped(s), shared_expert_intermediate_size=s["Y"], norm_topk_prob=False)
                  | experts(s) | rope(1e6)),
    "qwen3_moe": ("qwen3_moe", lambda s: llama(s, head_dim=s["E"], norm_topk_prob=True) | experts(s) | rope(1e6)),
    # transformers 5 does not multiply V2's scores by the square of YaRN's mscale_all_dim, which DeepSeek's own code does: no YaRN.
    "deepseek_v2": ("deepseek_v2", lambda s: latent(s, n_routed_experts=s["X"], q_lora_rank=None, n_group=1, topk_group=1,
                                                    topk_method="greedy", norm_topk_prob=False, routed_scaling_factor=1.0)
                    | rope(1e4)),
    "deepseek_v3": ("deepseek_v3", lambda s: latent(s, n_routed_experts=12, n_group=4, topk_group=2, norm_topk_prob=True,
                                                    routed_scaling_factor=2.5)
                    | rope(1e4, **YARN, original_max_position_embeddings=s["P"] // 4)),
}


class Failed(Exception):
    pass


class Lacks(Exception):
    pass


# transformers' side

def made(name, s):
    """A model of the family with weights in which mistakes are visible, all of them numbers of bfloat16."""
    kind, keys = FAMILIES[name]
    try:
        config = AutoConfig.for_model(kind, **keys(s), bos_token_id=1, eos_token_id=2, pad_token_id=None)
    except (ValueError, KeyError) as error:
        if "nrecognized model" in str(error):
            raise Lacks(str(error)) from error
        raise
    torch.manual_seed(sum(map(ord, name)))
    model = ready(AutoModelForCausalLM.from_config(config, attn_implementation="eager").float())
    gain = 0.0 if kind.startswith("gemma") else 1.0
    with torch.no_grad():
        named = dict(model.named_parameters())
        named |= {key: value for key, value in model.named_buffers() if key.endswith("e_score_correction_bias")}
        for key, value in named.items():
            drawn = (0.2 if value.ndim == 1 else s["std"]) * torch.randn(value.shape)
            if key.endswith("e_score_correction_bias"):
                drawn = drawn.abs()
            elif value.ndim == 1 and key.endswith("weight"):
                drawn = drawn + gain
            value.copy_(drawn.bfloat16().float())
    return model


def ready(model):
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")
    return model.eval()


def tokens_of(s):
    """Two samples and the token that follows each; none of the first ids, which may stand for padding."""
    return torch.from_numpy(np.random.default_rng(7).integers(4, s["V"], 2 * s["S"] + 1))


def inputs_of(s, tokens):
    return tokens[:-1].reshape(2, s["S"]), tokens[1:].reshape(2, s["S"])


def loss_of(model, s, tokens):
    inputs, labels = inputs_of(s, tokens)
    logits = model(input_ids=inputs, use_cache=False).logits.float()
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def saved(folder):
    """Of a folder of safetensors: name → tensor."""
    tensors = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as opened:
            tensors |= {key: opened.get_tensor(key) for key in opened.keys()}
    return tensors


# Ours

def write_tokens(prefix, tokens):
    """Megatron-LM's files of one document of one sequence."""
    prefix.with_suffix(".bin").write_bytes(tokens.numpy().astype("<u2").tobytes())
    prefix.with_suffix(".idx").write_bytes(b"MMIDIDX\0\0" + struct.pack("<QBQQiqqq", 1, 8, 1, 2, len(tokens), 0, 0, 1))
    return prefix


# Losses of routers that our recipes have and no key of the config turns off: transformers has none of them.
NO_ROUTER_LOSSES = {
    "olmoe": "[block.mlp]\nsteps.router = { z_loss = 0.0 }\n",
    "deepseek_v2": "[block.moe]\nsteps.router = { aux_loss = 0.0 }\n",
    "deepseek_v3": "[block.moe]\nsteps.router = { aux_loss = 0.0 }\n",
}


class Engine:
    def __init__(self, program):
        self.program = str(pathlib.Path(program).resolve())

    def __call__(self, *arguments):
        words = [self.program, *map(str, arguments)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=200, check=False)
        if done.returncode != 0:
            lines = (done.stderr + done.stdout).strip().splitlines()
            raise Failed(f"engine {' '.join(words[1:])} → {done.returncode}\n      " + "\n      ".join(lines[-12:]))
        return done.stdout

    def logits(self, run, rows):
        results = []
        for row in rows:
            self("generate", run, "--threads", 1, "--tokens-in", " ".join(map(str, row.tolist())), "--logits", run / "logits.npy")
            results.append(torch.from_numpy(np.load(run / "logits.npy")))
        return torch.stack(results)

    def step(self, folder, source, s, tokens, compute, device, kind="adamw"):
        """One iteration from the folder `source`; the run's folder."""
        prefix = write_tokens(folder / "data", tokens)
        self("import", "hf", source, "--recipe", folder / "model.toml")
        (folder / "step.toml").write_text(f"""extends = ["model.toml"]
[data]
source = "files"
paths = ["{prefix}"]
split = "1,0,0"
sequence_length = {s["S"]}
[precision]
compute = "{compute}"
[optimizer]
kind = "{kind}"
learning_rate = {RATE}
epsilon = {EPSILON}
weight_decay = 0.0
clip_grad_norm = 0.0
[schedule]
kind = "constant"
warmup_fraction = 0.0
[training]
global_batch = 2
micro_batch = 2
iterations = 1
weights_from = "{source}"
{next((text for name, text in NO_ROUTER_LOSSES.items() if name in folder.parts), "")}""")
        run = folder / "stepped"
        threads = ["--threads", 1] if device == "cpu" else []
        self("run", folder / "step.toml", "--out", run, "--device", device, "--quiet", *threads)
        for line in (run / "metrics.jsonl").read_text().splitlines():
            if "loss" in (record := json.loads(line)):
                return run, record["loss"]
        raise Failed("metrics.jsonl has no loss")


# Comparisons: each gives a number that its column bounds, or raises.

def relative(ours, theirs):
    """The largest difference over the largest number; NaN is the worst of all."""
    difference = float((ours.double() - theirs.double()).abs().max() / theirs.double().abs().max())
    return math.inf if math.isnan(difference) else difference


def same_files(ours, theirs):
    a, b = saved(ours), saved(theirs)
    if a.keys() != b.keys():
        raise Failed(f"missing {sorted(b.keys() - a.keys())[:5]}, more {sorted(a.keys() - b.keys())[:5]}")
    for key, value in b.items():
        if a[key].dtype != value.dtype or a[key].shape != value.shape:
            raise Failed(f"{key}: {a[key].dtype} {tuple(a[key].shape)}, not {value.dtype} {tuple(value.shape)}")
        if not torch.equal(a[key].contiguous().flatten().view(torch.uint8), value.contiguous().flatten().view(torch.uint8)):
            raise Failed(f"{key}: {int((a[key] != value).sum())} of {value.numel()} numbers differ")
    return "same"


@contextlib.contextmanager
def warned(records):
    """Adds what is warned of to the list."""
    class Keep(logging.Handler):
        def emit(self, record):
            records.append(record.getMessage())

    handler, loggers = Keep(logging.WARNING), [logging.getLogger("transformers"), logging.getLogger()]
    for logger in loggers:
        logger.addHandler(handler)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield
        records += [str(warning.message) for warning in caught if issubclass(warning.category, (UserWarning, FutureWarning))]
    finally:
        for logger in loggers:
            logger.removeHandler(handler)


def loads(folder, source, expected, config, rows):
    """Of the source's own warnings the export may have the same."""
    its_own, records = [], []
    with warned(its_own):
        AutoModelForCausalLM.from_pretrained(source, attn_implementation="eager")
    with warned(records):
        model, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, attn_implementation="eager")
    if more := [text for text in dict.fromkeys(records) if text not in its_own]:
        raise Failed("warnings: " + " | ".join(more)[:600])
    for kind, keys in info.items():
        if keys:
            raise Failed(f"{kind}: {str(keys)[:300]}")
    ours, theirs = model.config.to_dict(), config.to_dict()
    other = [f"{key}: {ours.get(key)}, not {theirs.get(key)}" for key in sorted(ours.keys() | theirs.keys())
             if ours.get(key) != theirs.get(key) and key not in ("_name_or_path", "transformers_version", "dtype", "torch_dtype",
                                                                  "architectures", "_attn_implementation_autoset")]
    if other:
        raise Failed("config: " + "; ".join(other)[:400])
    with torch.no_grad():
        logits = ready(model.float())(input_ids=rows, use_cache=False).logits
    if not torch.equal(logits, expected):
        raise Failed(f"logits differ by {relative(logits, expected):.1e}")
    return "same"


def stepped(engine, model, folder, source, s, tokens):
    """Loss and one step: (relative difference of the loss, largest difference of a weight)."""
    run, loss = engine.step(folder, source, s, tokens, "fp32", "cpu")
    engine("export", "hf", run, "--out", folder / "stepped-hf", "--dtype", "fp32")
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.999), eps=EPSILON, weight_decay=0.0)
    expected = loss_of(model, s, tokens)
    expected.backward()
    optimizer.step()
    model.save_pretrained(folder / "stepped-torch")
    before, ours, theirs = saved(source), saved(folder / "stepped-hf"), saved(folder / "stepped-torch")
    if ours.keys() != theirs.keys():
        raise Failed(f"other names after a step: {sorted(ours.keys() ^ theirs.keys())[:5]}")
    # What corrects a router's choice is moved by a rule of the training's own.
    differences = {key: float((ours[key] - value).abs().max()) for key, value in theirs.items()
                   if not key.endswith("e_score_correction_bias")}
    worst = max(differences, key=lambda key: math.inf if math.isnan(differences[key]) else differences[key])
    if not any(float((value - before[key]).abs().max()) > 1e-3 for key, value in theirs.items()):
        raise Failed("torch's step moved nothing")
    expected = float(expected.detach())
    return abs(loss - expected) / expected, differences[worst], worst


# A family

def on_cpu(task):
    name, program, root = task
    torch.set_num_threads(1)
    begin, cells, notes = time.time(), {}, []
    engine, folder, s = Engine(program), pathlib.Path(root) / name, SMALL
    folder.mkdir(parents=True)

    def cell(column, compare, *arguments):
        try:
            cells[column] = compare(*arguments)
        except Exception as error:  # of any kind: the other cells go on
            text = str(error) if isinstance(error, Failed) else "".join(traceback.format_exception(error)[-2:])
            cells[column] = "FAILED"
            notes.append(f"{column}: {text.strip()[:1500]}")

    try:
        model = made(name, s)
        fp32, bf16 = folder / "fp32", folder / "bf16"
        model.save_pretrained(fp32)
        config = AutoConfig.from_pretrained(fp32)
        tokens = tokens_of(s)
        rows = inputs_of(s, tokens)[0]
        with torch.no_grad():
            expected = model(input_ids=rows, use_cache=False).logits
        rounded = AutoModelForCausalLM.from_pretrained(fp32, attn_implementation="eager").to(torch.bfloat16)
        rounded.save_pretrained(bf16, max_shard_size="20KB")
        del rounded
    except Lacks as error:
        return name, {column: "lacks" for column in COLUMNS}, [str(error)[:200]], 0.0
    except Exception as error:
        return name, {"fp32": "FAILED"}, [f"transformers: {''.join(traceback.format_exception(error)[-3:])[:1500]}"], 0.0

    def logits(source, run):
        engine("import", "hf", source, "--out", run)
        return relative(engine.logits(run, rows), expected)

    def export():
        for source, run, dtype in ((fp32, "run-fp32", "fp32"), (bf16, "run-bf16", "bf16")):
            out = folder / f"export-{dtype}"
            engine("export", "hf", folder / run, "--out", out, "--dtype", dtype)
            same_files(out, source)
        return "same"

    def step():
        cells["loss"], difference, worst = stepped(engine, model, folder, fp32, s, tokens)
        if not difference <= COLUMNS["step"]:
            notes.append(f"step: {worst} is off by {difference:.1e}")
        return difference

    cell("fp32", logits, fp32, folder / "run-fp32")
    cell("bf16", logits, bf16, folder / "run-bf16")
    cell("export", export)
    cell("load", loads, folder / "export-fp32", fp32, expected, config, rows)
    cell("step", step)
    return name, cells, notes, time.time() - begin


def on_gpu(names, engine, root, jobs):
    """name → (cell, note): the loss of a larger model in bfloat16, transformers' here and ours in programs side by side."""
    results, sources, losses = {}, {}, {}
    tokens = tokens_of(LARGE)
    for name in names:
        try:
            sources[name] = pathlib.Path(root) / name / "large"
            model = made(name, LARGE).to(torch.bfloat16)
            model.save_pretrained(sources[name])
            with torch.no_grad():
                losses[name] = float(loss_of(model.cuda(), LARGE, tokens.cuda()))
            del model
        except Exception as error:
            sources.pop(name, None)
            results[name] = "FAILED", f"gpu: transformers: {''.join(traceback.format_exception(error)[-2:])[:800]}"
    torch.cuda.empty_cache()

    def ours(name):
        try:
            folder = sources[name].parent / "gpu"
            folder.mkdir()
            _, loss = engine.step(folder, sources[name], LARGE, tokens, "bf16", "cuda")
            return name, (abs(loss - losses[name]) / losses[name], "")
        except Exception as error:
            return name, ("FAILED", f"gpu: {str(error)[:1200]}")

    with ThreadPoolExecutor(jobs) as pool:
        return results | dict(pool.map(ours, sources))


def good(column, cell):
    limit = COLUMNS[column]
    return cell in ("same", "lacks", "–") if limit is None or isinstance(cell, str) else cell <= limit


def shown(column, cell):
    return cell if isinstance(cell, str) else f"{cell:.1e}" + ("" if good(column, cell) else " !")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", required=True)
    parser.add_argument("--families", help="separated by commas (default: all)")
    parser.add_argument("--jobs", type=int, default=min(12, os.cpu_count()))
    parser.add_argument("--no-gpu", action="store_true")
    parser.add_argument("--gpu-jobs", type=int, default=4, help="programs that share the GPU")
    parser.add_argument("--keep", metavar="DIR", help="an empty folder for what is written; it stays")
    arguments = parser.parse_args()
    names = arguments.families.split(",") if arguments.families else list(FAMILIES)
    if unknown := [name for name in names if name not in FAMILIES]:
        parser.error(f"no families {unknown}; there are {', '.join(FAMILIES)}")
    root = arguments.keep or tempfile.mkdtemp(prefix="hf_transformers_")
    os.environ.setdefault("ENGINE_CACHE", root + "/cache")
    begin = time.time()
    try:
        rows = []
        with multiprocessing.get_context("fork").Pool(arguments.jobs, maxtasksperchild=1) as pool:
            tasks = [(name, arguments.engine, root) for name in names]
            for row in pool.imap(on_cpu, tasks, chunksize=1):
                rows.append(row)
                print(f"{row[0]}: {row[3]:.0f} s", file=sys.stderr, flush=True)
        gpu = {}
        with_gpu = not arguments.no_gpu and torch.cuda.is_available()
        if with_gpu:
            present = [name for name, cells, _, _ in rows if cells.get("fp32") != "lacks"]
            gpu = on_gpu(present, Engine(arguments.engine), root, arguments.gpu_jobs)
        device = torch.cuda.get_device_name() if with_gpu else "no GPU"
        print(f"transformers {transformers.__version__}, torch {torch.__version__}, {device}, {time.time() - begin:.0f} s\n")
        print("| family | " + " | ".join(COLUMNS) + " |\n" + "|---" * (1 + len(COLUMNS)) + "|")
        bad, lacking = [], []
        for name, cells, notes, _ in rows:
            if name in gpu:
                cells["gpu"] = gpu[name][0]
                notes += [gpu[name][1]] if gpu[name][1] else []
            cells = {column: cells.get(column, "–" if column == "gpu" or cells.get("fp32") == "lacks" else "FAILED")
                     for column in COLUMNS}
            print(f"| {name} | " + " | ".join(shown(column, cells[column]) for column in COLUMNS) + " |")
            if cells["fp32"] == "lacks":
                lacking.append(name)
            elif not all(good(column, cells[column]) for column in COLUMNS):
                bad.append(name)
        for name, _, notes, _ in rows:
            for note in notes:
                print(f"\n{name}: {note}")
        if lacking:
            print(f"\nnot in this transformers: {', '.join(lacking)}")
        print(f"\n{'FAILED: ' + ', '.join(bad) if bad else 'all agree'}")
        sys.exit(1 if bad else 0)
    finally:
        if not arguments.keep:
            shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
